"""The first of native, batched and eager that can compute a run's steps does."""

import dataclasses

import pytest
import torch
from backends import NAMES, backend
from torch import nn

from efl import Federation
from efl.models import FlatModel
from efl.training.backends import selection
from efl.training.backends.batched import BatchedRows
from efl.training.backends.eager import EagerRows
from efl.training.backends.native import NativeRows, NativeWork
from efl.training.backends.selection import Batched, Eager, Native, select_backend
from efl.training.local_work import Assignment, LocalWork, RoundSettings
from efl.training.trainer import Trainer

BATCH = 5
needs_compiler = pytest.mark.skipif("native" not in NAMES, reason="there is no C compiler")


class Skip(nn.Module):
    """Not a chain."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) + x[:, :3]


def chain(activation=nn.ReLU):
    return nn.Sequential(nn.Linear(4, 7), activation(), nn.Linear(7, 3))


def selected(module, federation, **more):
    return type(select_backend(FlatModel(module), federation, BATCH, **more))


@needs_compiler
def test_a_chain_is_compiled(tiny):
    found = select_backend(FlatModel(chain()), tiny, BATCH)
    assert type(found) is Native
    assert (found.name, found.batched) == ("native", True)
    assert type(found.rows(found.model.w, 2)) is NativeRows


@needs_compiler
def test_unless_nobody_wants_it(tiny):
    found = select_backend(FlatModel(chain()), tiny, BATCH, native=False)
    assert type(found) is Batched
    assert (found.name, found.batched) == ("batched", True)
    assert type(found.rows(found.model.w, 2)) is BatchedRows


@needs_compiler
def test_large_steps_are_pytorchs_row_by_row(tiny, monkeypatch):
    multiplications = FlatModel(chain()).n * BATCH
    for worth, expected in ((multiplications, Native), (multiplications - 1, Eager)):
        monkeypatch.setattr(selection, "WORTH_COMPILING", worth)
        assert selected(chain(), tiny) is expected


def test_activations_that_compiled_code_does_not_know_are_pytorchs(tiny):
    assert selected(chain(nn.Tanh), tiny) is Batched


def test_what_is_no_chain_runs_row_by_row(tiny):
    found = select_backend(FlatModel(Skip()), tiny, BATCH)
    assert type(found) is Eager
    assert (found.name, found.batched) == ("eager", False)
    assert type(found.rows(found.model.w, 2)) is EagerRows


def test_linear_layers_over_more_than_one_dimension_run_row_by_row():
    federation = Federation.from_tensors(torch.randn(40, 2, 4), torch.arange(40) % 3, 4, "iid")
    assert selected(nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(10, 3)), federation) is Eager
    assert selected(nn.Sequential(nn.Flatten(), nn.Linear(8, 3)), federation, native=False) is Batched


def test_the_only_client_of_a_federation_runs_by_itself(tiny):
    assert selected(chain(), tiny.only(2)) is Eager


def test_fewer_samples_than_a_batch_will_do():
    federation = Federation.from_tensors(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]), 2, "iid", test_fraction=0.5)
    assert len(federation.x) < BATCH
    assert selected(chain(), federation, native=False) is Batched


def work(trainer):
    settings = RoundSettings(0, 0.1, 2, BATCH, trainer.model.layout)
    return trainer.work([Assignment(0, 2), Assignment(1, 1)], trainer.model.w, settings, {}, {})


@needs_compiler
def test_compiled_code_fetches_the_samples_it_can_read(tiny):
    own = dataclasses.replace(tiny, inputs=lambda x: x + 0)
    for federation, expected in ((tiny, NativeWork), (own, LocalWork)):
        trainer = Trainer(backend("native", FlatModel(chain())), federation, seed=0)
        assert type(work(trainer)) is expected


@pytest.mark.parametrize("name", NAMES)
def test_those_with_most_to_do_come_first_in_groups_for_every_worker(tiny, name):
    steps = {0: 2, 1: 5, 2: 0, 3: 5, 4: 1, 5: 3}
    trainer = Trainer(backend(name, FlatModel(chain())), tiny, seed=0, rows=4)
    groups = {workers: trainer.groups(steps, workers) for workers in (1, 2, 9)}
    alone = [[1], [3], [5], [0], [4]]
    if name == "eager":
        assert groups == {1: alone, 2: alone, 9: alone}
    else:
        assert groups == {1: [[1, 3, 5, 0], [4]], 2: [[1, 3, 5], [0, 4]], 9: alone}


@pytest.mark.parametrize("name", NAMES)
def test_predictions_do_not_depend_on_the_backend(tiny, name):
    model = FlatModel(chain())
    w, samples = torch.randn(model.n), tiny.train[1]
    got = Trainer(backend(name, model), tiny, seed=0).measure(w, model.buffers, samples)[:, 0, 0]
    x, y = tiny.batch(torch.from_numpy(samples))
    expected = model.module_at(w, model.buffers)(x).argmax(1) == y
    assert 0 < int(expected.sum()) < len(samples)
    assert got.tolist() == expected.double().tolist()
