"""What a client's host computes."""

import numpy as np
import pytest
import torch
from torch import nn

from efl import FedAvg, Federation
from efl.client.evaluation import EvaluateRequests
from efl.client.grouping import rows_at_once
from efl.client.host import ClientHost
from efl.models import FlatModel, Task
from efl.models import build as build_network
from efl.training.backends.selection import Eager, select_backend
from efl.training.batches import batch_indices, fisher_samples
from efl.training.trainer import Trainer


def test_accuracy_is_measured_on_each_clients_own_test_data():
    x = torch.eye(2).repeat(10, 1)
    federation = Federation(
        x, torch.zeros(20).long(), [np.arange(0, 8)] * 2, [np.arange(8, 20, 2), np.arange(9, 20, 2)], 2
    )
    model = FlatModel(nn.Linear(2, 2, bias=False))
    right_for_the_first_only = torch.tensor([1.0, 0.0, 0.0, 1.0])
    host = ClientHost(FedAvg(), Trainer(Eager(model), federation, seed=0))
    request = EvaluateRequests(0, np.arange(2), right_for_the_first_only, model.buffers)
    sums, weights = host.evaluate(request)["accuracy"]
    assert (sums / weights).tolist() == [1.0, 0.0]
    sums, weights = host.evaluate(request.only(np.array([1])))["accuracy"]
    assert (sums.tolist(), weights.tolist()) == ([0.0], [6.0])


def test_batches_go_through_all_samples_before_any_comes_again():
    indices = batch_indices(np.arange(100, 107), 3, 5, np.random.default_rng(0))
    assert indices.shape == (3, 5)
    order = indices.reshape(-1)
    assert sorted(order[:7]) == sorted(order[7:14]) == list(range(100, 107))


def test_fisher_samples_are_all_there_are_up_to_the_limit_each_with_equal_weight():
    chosen, weights = fisher_samples([np.arange(3), np.arange(10, 18)], 5, [np.random.default_rng(0)] * 2)
    assert chosen.shape == (2, 5)
    assert sorted(chosen[0, :3].tolist()) == [0, 1, 2]
    assert weights[0].tolist() == pytest.approx([1 / 3] * 3 + [0, 0])
    assert weights.sum(1).tolist() == pytest.approx([1, 1])


def test_rows_are_chosen_by_the_size_of_the_model():
    def rows(network, shape):
        model = FlatModel(build_network(network, Task(shape, 10), 0))
        federation = Federation.from_tensors(torch.rand(40, *shape), torch.arange(40) % 10, clients=2, partition="iid")
        return rows_at_once(select_backend(model, federation, 2, native=False), 10)

    assert rows("linear", (60,)) == 10
    assert rows("mlp200", (784,)) == 1
    assert rows("cnn", (1, 8, 8)) == 1
