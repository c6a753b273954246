"""Compiled code does what PyTorch does, to rounding, and the same for a model whatever its company."""

from ctypes import ArgumentError

import pytest
import torch
from backends import backend, rows_of
from hypothesis import given
from hypothesis import strategies as st
from levels import LEVELS, using
from torch import nn

from efl.federation.preprocessing import Pixels, fetched, inputs_for, selected, source_of
from efl.models import FlatModel
from efl.training.backends import native
from efl.training.backends.chain import Chain
from efl.training.backends.native import CompiledChain, NativeBatches, NativeWork
from efl.training.fisher import exact_fisher
from efl.training.local_work import Assignment, CohortData, RoundSettings, no_deadline
from efl.training.observers import SquaredGradients
from efl.training.step import PLAIN, Step

ETA, BATCH, STEPS, CLASSES = 0.1, 7, 9, 4
FEATURES, HIDDEN = (3, 4, 4), 13
N = 49 * HIDDEN + (HIDDEN + 1) * CLASSES  # parameters
widths = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@pytest.fixture(scope="module", autouse=True, params=LEVELS)
def _level(request):
    with using(request.param):
        yield


def chain_of(features, hidden, outputs, bias=True, slope=0.0):
    layers, inputs = [nn.Flatten()], features
    for width in hidden:
        layers += [nn.Linear(inputs, width, bias), nn.LeakyReLU(slope) if slope else nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs, bias))


def both(model, count, w=None):
    """Rows of the model twice: as PyTorch runs them, and compiled."""
    return (rows_of(name, model, count, w) for name in ("batched", "native"))


@given(
    widths, st.integers(1, 40), st.integers(1, 20), st.integers(1, 23), st.booleans(), st.sampled_from([0.0, 0.25, 1.0])
)
def test_gradients_are_those_of_pytorch(hidden, features, outputs, batch, bias, slope):
    torch.manual_seed(0)
    model = FlatModel(chain_of(features, hidden, outputs, bias, slope))
    expected, got = both(model, 3, model.w + torch.randn(model.n) / 10)
    x, y = torch.randn(3, batch, features), torch.randint(0, outputs, (3, batch))
    assert torch.allclose(got.gradient(3, x, y), expected.gradient(3, x, y), atol=1e-5)
    assert torch.allclose(got.G, expected.G, atol=1e-5)


@pytest.mark.parametrize("features", [784, 200, 33])
def test_products_of_usual_sizes(features):
    expected, got = both(FlatModel(chain_of(features, [200, 64], 10)), 2)
    x, y = torch.rand(2, 20, features), torch.randint(0, 10, (2, 20))
    assert torch.allclose(got.gradient(2, x, y), expected.gradient(2, x, y), atol=1e-5)
    assert torch.allclose(got.G, expected.G, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_the_exact_fisher_diagonal_is_that_of_pytorch(bias):
    model = FlatModel(chain_of(33, [20, 7], 5, bias))
    expected, got = both(model, 3, model.w + torch.randn(model.n) / 10)
    x, y, weights = torch.randn(3, 11, 33), torch.randint(0, 5, (3, 11)), torch.rand(3, 11)
    weights[1, 6:] = 0
    diagonals = [exact_fisher(rows, x, y, weights) for rows in (expected, got)]
    assert torch.allclose(*diagonals, rtol=1e-4, atol=1e-7)
    padded = exact_fisher(got, *(torch.cat([part, part], 1) for part in (x, y)), torch.cat([weights, 0 * weights], 1))
    assert torch.equal(padded, diagonals[1])
    with pytest.raises(ValueError, match="weights"):
        got.squared_gradients(x, y, weights[:, :3])


def test_fewer_rows_than_there_are():
    rows = rows_of("native", FlatModel(chain_of(5, [6], 3)), 3)
    rows.gradient(2, torch.randn(2, 4, 5), torch.randint(0, 3, (2, 4)))
    assert bool(rows.G[:2].any(1).all())
    assert not rows.G[2].any()


NO_DATA = CohortData(*[None] * 4)  # compiled code fetches its own


class Work:
    """Samples, and what four clients do with them: as many steps as they like, from models of their own."""

    def __init__(self, kind):
        torch.manual_seed(1)
        kinds = {"bytes": Pixels(), "colours": Pixels((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))}
        self.inputs = kinds.get(kind, inputs_for(torch.float32))
        self.samples = torch.randint(0, 256, (50, *FEATURES), dtype=torch.uint8)
        if kind == "floats":
            self.samples = torch.randn(50, *FEATURES)
        self.model = FlatModel(chain_of(self.samples[0].numel(), [HIDDEN], CLASSES))
        self.chosen = torch.randint(0, 50, (STEPS, 4, BATCH))
        self.labels = torch.randint(0, CLASSES, (STEPS, 4, BATCH))
        self.steps = [9, 5, 2, 1]
        self.w = self.model.w + torch.randn(4, self.model.n) / 10

    def by_pytorch(self, step=PLAIN):
        rows = rows_of("batched", self.model, 4)
        rows.W.copy_(self.w)
        squares, losses, steps = torch.zeros_like(rows.W), torch.zeros(4), torch.tensor(self.steps)
        for number in range(STEPS):
            active = int((steps > number).sum())
            x, y = self.inputs(selected(self.samples, self.chosen[number, :active])), self.labels[number, :active]
            losses[:active] += rows.descend(active, x, y, ETA, squares if number % 4 == 0 else None)
            if step.keep is not None:
                index = slice(None) if step.index is None else step.index
                rows.W[:active, index] = rows.W[:active, index] * step.keep + step.shift
        return rows.W, squares, losses / steps

    def compiled_train(self, rows=slice(None), step=PLAIN, time_left=no_deadline):
        work = self.compiled_work(rows, time_left)
        observer = SquaredGradients(work.W, BATCH)
        work.train(step, observer)
        return work.W, observer.squares, work.losses

    def compiled_work(self, rows=slice(None), time_left=no_deadline):
        made = rows_of("native", self.model, len(self.w[rows]))
        made.W.copy_(self.w[rows])
        source = source_of(self.samples, self.inputs)
        batches = NativeBatches(source, self.chosen[:, rows].contiguous(), self.labels[:, rows].contiguous())
        settings = RoundSettings(0, ETA, STEPS, BATCH, self.model.layout)
        assignments = [Assignment(client, steps) for client, steps in enumerate(self.steps)][rows]
        return NativeWork(made, self.model.w, settings, assignments, {}, {}, NO_DATA, time_left, batches)


@pytest.mark.parametrize("pulled", ["nowhere", "somewhere", "everywhere"])
@pytest.mark.parametrize("kind", ["bytes", "colours", "floats"])
def test_training_is_what_pytorch_does_step_by_step(kind, pulled):
    work = Work(kind)
    n = work.model.n
    index = torch.randperm(n)[:20] if pulled == "somewhere" else None
    count = n if index is None else len(index)
    step = PLAIN if pulled == "nowhere" else Step(keep=torch.rand(count), shift=torch.randn(count) / 10, index=index)
    for got, expected in zip(work.compiled_train(step=step), work.by_pytorch(step), strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_neither_company_nor_breaks_change_a_bit(monkeypatch):
    work = Work("colours")
    together = work.compiled_train()
    breaks = [{"time_left": lambda: True}, {}]
    monkeypatch.setattr(native, "UNINTERRUPTED", 2 * work.w.numel() * BATCH)
    assert [work.compiled_work(**one)._steps_at_once() for one in breaks] == [1, 2]
    for one in breaks:
        for interrupted, whole in zip(work.compiled_train(**one), together, strict=True):
            assert torch.equal(interrupted, whole)
    for row in range(4):
        for alone, whole in zip(work.compiled_train(slice(row, row + 1)), together, strict=True):
            assert torch.equal(alone[0], whole[row])


@pytest.mark.parametrize("kind", ["bytes", "colours", "floats"])
def test_samples_are_fetched_as_pytorch_would(kind):
    work = Work(kind)
    expected = work.inputs(selected(work.samples, work.chosen))
    assert torch.allclose(fetched(work.samples, work.chosen, work.inputs), expected, atol=1e-6)
    assert torch.equal(
        fetched(work.samples, work.chosen.int(), work.inputs), fetched(work.samples, work.chosen, work.inputs)
    )
    with pytest.raises(IndexError, match="only 50 samples"):
        fetched(work.samples, torch.tensor([50]), work.inputs)


@pytest.mark.parametrize("kind", ["bytes", "colours", "floats"])
def test_predictions_are_those_of_the_module(kind):
    work = Work(kind)
    chosen = torch.randint(0, 50, (47,))
    module = work.model.module_at(work.w[0], work.model.buffers)
    expected = module(work.inputs(selected(work.samples, chosen))).argmax(1)
    source, compiled = source_of(work.samples, work.inputs), backend("native", work.model).compiled
    assert torch.equal(compiled.predict(work.w[0], source, chosen), expected)
    with pytest.raises(IndexError):
        compiled.predict(work.w[0], source, torch.tensor([50]))


def test_what_does_not_exist_is_refused():
    work = Work("bytes")
    work.labels[3, 0, 0] = CLASSES
    with pytest.raises(IndexError):
        work.compiled_train()
    work.labels[3, 0, 0], work.chosen[4, 1, 2] = 0, -1
    with pytest.raises(IndexError):
        work.compiled_train()
    rows = rows_of("native", work.model, 1)
    with pytest.raises(IndexError, match="label"):
        rows.gradient(1, torch.zeros(1, 2, 48), torch.tensor([[0, CLASSES]]))
    with pytest.raises(ValueError, match="shape"):
        rows.gradient(1, torch.zeros(1, 2, 47), torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    "step",
    [
        Step(keep=torch.tensor(0.5).expand(5), shift=torch.zeros(5)),
        Step(keep=torch.ones(2, 5), shift=torch.zeros(2, 5)),
        Step(keep=torch.ones(N).double(), shift=torch.zeros(N).double()),
        Step(drift=torch.zeros(N, dtype=torch.int64)),
        Step(keep=torch.ones(5), shift=torch.zeros(5), index=torch.arange(4)),
        Step(keep=torch.ones(5), shift=torch.zeros(5), index=torch.arange(5).int()),
    ],
    ids=["too short", "two rows", "float64", "whole numbers", "fewer places", "int32"],
)
def test_a_step_of_another_kind_is_refused(step):
    with pytest.raises(ValueError, match=r"contiguous|of shape"):
        Work("floats").compiled_train(step=step)


def test_an_expanded_step_is_laid_out():
    work, expanded = Work("floats"), torch.tensor(0.5).expand(N)
    got = work.compiled_train(step=Step(keep=expanded, shift=expanded))[0]
    assert torch.equal(got, work.compiled_train(step=Step(keep=expanded.clone(), shift=expanded.clone()))[0])


@pytest.mark.parametrize("index", [torch.tensor([0, 10**6]), torch.tensor([-1, 0])], ids=str)
def test_a_step_elsewhere_is_refused(index):
    with pytest.raises(IndexError, match="coordinates"):
        Work("floats").compiled_train(step=Step(keep=torch.ones(2), shift=torch.zeros(2), index=index))


def test_a_step_beyond_the_end_is_refused():
    with pytest.raises(ValueError, match="of shape"):
        Work("floats").compiled_train(step=Step(keep=torch.ones(10**6), shift=torch.zeros(10**6)))


def test_other_kinds_of_numbers_are_refused():
    work = Work("floats")
    rows = rows_of("native", work.model, 1)
    with pytest.raises(ArgumentError, match="contiguous"):
        rows.gradient(1, torch.zeros(1, 2, 48).double(), torch.tensor([[0, 1]]))
    work.steps = work.steps[:3]
    with pytest.raises(ValueError, match="steps of 4 models"):
        work.compiled_train()
    work.steps = [10, 5, 2, 1]
    with pytest.raises(ValueError, match="9 steps of 4 models; 10 of 4"):
        work.compiled_train()
    work.steps, work.labels = [9, 5, 2, 1], work.labels[:, :, 1:]
    with pytest.raises(ValueError, match="labels"):
        work.compiled_train()


def test_pixels_of_another_kind_are_left_to_pytorch():
    class Inverted(Pixels):
        def __call__(self, x):
            return 1 - super().__call__(x)

    images = torch.zeros(2, 3, 3, 4, 4, dtype=torch.uint8)
    assert source_of(images, Inverted()) is None
    assert source_of(images, Pixels((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))) is None


def test_infinite_below_zero_is_zero_after_relu():
    model = FlatModel(chain_of(3, [2], 2))
    model.w[:3] = -3e38
    rows = list(both(model, 1))
    x, y = torch.ones(1, 4, 3), torch.tensor([[0, 1, 0, 1]])
    expected, got = (row.gradient(1, x, y) for row in rows)
    assert torch.isfinite(expected).all()
    assert torch.allclose(got, expected)
    assert torch.allclose(rows[1].G, rows[0].G)


def test_a_model_that_runs_away_is_seen_to():
    work = Work("floats")
    work.w[1, 7] = float("nan")
    w, _, losses = work.compiled_train()
    assert torch.isfinite(losses).tolist() == [True, False, True, True]
    assert torch.isfinite(w).all(1).tolist() == [True, False, True, True]


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(3, 4)),
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.LeakyReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(-0.1), nn.Linear(4, 2)),
    ],
    ids=["tanh", "ends active", "begins active", "twice active", "negative slope"],
)
def test_other_networks_stay_with_pytorch(module):
    model = FlatModel(module)
    chain = Chain.of(model.module)
    assert chain is not None
    assert CompiledChain.of(chain, model) is None


def test_a_convolution_is_no_chain():
    assert Chain.of(nn.Sequential(nn.Conv2d(1, 1, 1))) is None
