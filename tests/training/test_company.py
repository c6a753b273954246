"""A client's work has the same bits whoever works beside it, whatever the shapes of its network."""

import pytest
import torch
from torch import nn

import efl


@pytest.mark.parametrize(("outputs", "loss"), [(1, "mse"), (3, "mse"), (3, "cross_entropy")])
def test_rows_do_not_change_the_model(outputs, loss):
    torch.manual_seed(0)
    x = torch.randn(240, 5)
    y = x[:, :outputs].clone() if loss == "mse" else (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    federation = efl.Federation.from_tensors(x, y, clients=8)
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, outputs))
    found = {
        efl.train(
            federation, network, "fedavg", loss=loss, engine={"rows": rows, "workers": 1, "compile": False},
            rounds=2, cohort=4, local_steps=5,
        ).summary["model_sha256"]
        for rows in (1, 2, 3, 4)
    }  # fmt: skip
    assert len(found) == 1
