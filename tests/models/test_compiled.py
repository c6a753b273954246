"""Compiled code does what PyTorch does, to rounding, and the same for a model whatever its company."""

from ctypes import ArgumentError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from efl.federation.preprocessing import Pixels, fetched, inputs_for, selected, source_of
from efl.models import Batches, FlatModel
from efl.native import NotCompiledError, loops
from efl.training.fisher import exact_fisher

try:
    loops()
except NotCompiledError as problem:
    pytest.skip(str(problem), allow_module_level=True)

ETA, BATCH, STEPS, CLASSES = 0.1, 7, 9, 4
widths = st.lists(st.integers(1, 40), min_size=1, max_size=3)


def chain_of(features, hidden, outputs, bias=True, slope=0.0):
    layers, inputs = [nn.Flatten()], features
    for width in hidden:
        layers += [nn.Linear(inputs, width, bias), nn.LeakyReLU(slope) if slope else nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs, bias))


def both(module):
    """The model twice: as PyTorch runs it, and compiled."""
    eager, compiled = FlatModel(module), FlatModel(module)
    compiled.compile()
    assert compiled.compiled is not None
    return eager, compiled


@given(
    widths, st.integers(1, 40), st.integers(1, 20), st.integers(1, 23), st.booleans(), st.sampled_from([0.0, 0.25, 1.0])
)
def test_gradients_are_those_of_pytorch(hidden, features, outputs, batch, bias, slope):
    torch.manual_seed(0)
    eager, compiled = both(chain_of(features, hidden, outputs, bias, slope))
    start = eager.w + torch.randn(eager.n) / 10
    expected, got = (model.rows(start, 3, batched=True) for model in (eager, compiled))
    x, y = torch.randn(3, batch, features), torch.randint(0, outputs, (3, batch))
    assert torch.allclose(got.gradient(3, x, y), expected.gradient(3, x, y), atol=1e-5)
    assert torch.allclose(got.G, expected.G, atol=1e-5)


@pytest.mark.parametrize("features", [784, 200, 33])
def test_products_of_usual_sizes(features):
    eager, compiled = both(chain_of(features, [200, 64], 10))
    expected, got = (model.rows(model.w, 2, batched=True) for model in (eager, compiled))
    x, y = torch.rand(2, 20, features), torch.randint(0, 10, (2, 20))
    assert torch.allclose(got.gradient(2, x, y), expected.gradient(2, x, y), atol=1e-5)
    assert torch.allclose(got.G, expected.G, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_the_exact_fisher_diagonal_is_that_of_pytorch(bias):
    eager, compiled = both(chain_of(33, [20, 7], 5, bias))
    start = eager.w + torch.randn(eager.n) / 10
    expected, got = (model.rows(start, 3, batched=True) for model in (eager, compiled))
    x, y, weights = torch.randn(3, 11, 33), torch.randint(0, 5, (3, 11)), torch.rand(3, 11)
    weights[1, 6:] = 0
    diagonals = [exact_fisher(rows, x, y, weights) for rows in (expected, got)]
    assert torch.allclose(*diagonals, rtol=1e-4, atol=1e-7)
    padded = exact_fisher(got, *(torch.cat([part, part], 1) for part in (x, y)), torch.cat([weights, 0 * weights], 1))
    assert torch.equal(padded, diagonals[1])
    with pytest.raises(ValueError, match="weights"):
        compiled.compiled.fisher(got.W, x, y, weights[:, :3])


def test_fewer_rows_than_there_are():
    _, compiled = both(chain_of(5, [6], 3))
    rows = compiled.rows(compiled.w, 3, batched=True)
    rows.gradient(2, torch.randn(2, 4, 5), torch.randint(0, 3, (2, 4)))
    assert bool(rows.G[:2].any(1).all())
    assert not rows.G[2].any()


class Work:
    """Samples, and what four clients do with them: as many steps as they like, from models of their own."""

    def __init__(self, kind, features=(3, 4, 4)):
        torch.manual_seed(1)
        kinds = {"bytes": Pixels(), "colours": Pixels((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))}
        self.inputs = kinds.get(kind, inputs_for(torch.float32))
        self.samples = torch.randint(0, 256, (50, *features), dtype=torch.uint8)
        if kind == "floats":
            self.samples = torch.randn(50, *features)
        self.eager, self.compiled = both(chain_of(self.samples[0].numel(), [13], CLASSES))
        self.chosen = torch.randint(0, 50, (STEPS, 4, BATCH))
        self.labels = torch.randint(0, CLASSES, (STEPS, 4, BATCH))
        self.steps = torch.tensor([9, 5, 2, 1])
        self.w = self.eager.w + torch.randn(4, self.eager.n) / 10

    def by_pytorch(self, pull=None):
        rows = self.eager.rows(self.eager.w, 4, batched=True)
        rows.W.copy_(self.w)
        squares, losses = torch.zeros_like(rows.W), torch.zeros(4)
        for step in range(STEPS):
            active = int((self.steps > step).sum())
            x, y = self.inputs(selected(self.samples, self.chosen[step, :active])), self.labels[step, :active]
            losses[:active] += rows.descend(active, x, y, ETA, squares if step % 4 == 0 else None)
            if pull is not None:
                index, keep, shift = pull
                index = slice(None) if index is None else index
                rows.W[:active, index] = rows.W[:active, index] * keep + shift
        return rows.W, squares, losses

    def compiled_train(self, rows=slice(None), pull=None, at_once=STEPS):
        w, steps = self.w[rows].clone(), self.steps[rows].contiguous()
        squares, losses = torch.zeros_like(w), torch.zeros(len(w))
        source = source_of(self.samples, self.inputs)
        batches = Batches(source, self.chosen[:, rows].contiguous(), self.labels[:, rows].contiguous())
        for first in range(0, STEPS, at_once):
            some = range(first, min(first + at_once, STEPS))
            self.compiled.compiled.train(batches, w, steps, some, ETA, pull, squares, 4, losses)
        return w, squares, losses


@pytest.mark.parametrize("pulled", ["nowhere", "somewhere", "everywhere"])
@pytest.mark.parametrize("kind", ["bytes", "colours", "floats"])
def test_training_is_what_pytorch_does_step_by_step(kind, pulled):
    work = Work(kind)
    n = work.eager.n
    index = torch.randperm(n)[:20] if pulled == "somewhere" else None
    count = n if index is None else len(index)
    pull = None if pulled == "nowhere" else (index, torch.rand(count), torch.randn(count) / 10)
    for got, expected in zip(work.compiled_train(pull=pull), work.by_pytorch(pull), strict=True):
        assert torch.allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_neither_company_nor_breaks_change_a_bit():
    work = Work("colours")
    together = work.compiled_train()
    for interrupted, whole in zip(work.compiled_train(at_once=1), together, strict=True):
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
def test_answers_are_those_of_the_module(kind):
    work = Work(kind)
    chosen = torch.randint(0, 50, (47,))
    module = work.eager.module_at(work.w[0], work.eager.buffers)
    expected = module(work.inputs(selected(work.samples, chosen))).argmax(1)
    source = source_of(work.samples, work.inputs)
    assert torch.equal(work.compiled.compiled.answers(work.w[0], source, chosen), expected)
    with pytest.raises(IndexError):
        work.compiled.compiled.answers(work.w[0], source, torch.tensor([50]))


def test_what_does_not_exist_is_refused():
    work = Work("bytes")
    work.labels[3, 0, 0] = CLASSES
    with pytest.raises(IndexError):
        work.compiled_train()
    work.labels[3, 0, 0], work.chosen[4, 1, 2] = 0, -1
    with pytest.raises(IndexError):
        work.compiled_train()
    rows = work.compiled.rows(work.compiled.w, 1, batched=True)
    with pytest.raises(IndexError, match="label"):
        rows.gradient(1, torch.zeros(1, 2, 48), torch.tensor([[0, CLASSES]]))
    with pytest.raises(ValueError, match="shape"):
        rows.gradient(1, torch.zeros(1, 2, 47), torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    "pull",
    [
        (None, torch.tensor(0.5).expand(5), torch.zeros(5)),
        (None, torch.ones(2, 5), torch.zeros(2, 5)),
        (None, torch.ones(5).double(), torch.zeros(5)),
        (torch.arange(4), torch.ones(5), torch.zeros(5)),
    ],
    ids=["expanded", "two rows", "float64", "fewer places"],
)
def test_a_pull_of_another_kind_is_refused(pull):
    with pytest.raises(ValueError, match=r"contiguous|as many"):
        Work("floats").compiled_train(pull=pull)


@pytest.mark.parametrize("places", [torch.tensor([0, 10**6]), torch.tensor([-1, 0]), None], ids=str)
def test_a_pull_elsewhere_is_refused(places):
    count = 10**6 if places is None else 2
    with pytest.raises(IndexError, match="coordinates"):
        Work("floats").compiled_train(pull=(places, torch.ones(count), torch.zeros(count)))


def test_other_kinds_of_numbers_are_refused():
    work = Work("floats")
    rows = work.compiled.rows(work.compiled.w, 1, batched=True)
    with pytest.raises(ArgumentError, match="contiguous"):
        rows.gradient(1, torch.zeros(1, 2, 48).double(), torch.tensor([[0, 1]]))
    work.steps = work.steps[:3]
    with pytest.raises(ValueError, match="steps of 4 models"):
        work.compiled_train()


def test_pixels_of_another_kind_are_left_to_pytorch():
    class Inverted(Pixels):
        def __call__(self, x):
            return 1 - super().__call__(x)

    images = torch.zeros(2, 3, 3, 4, 4, dtype=torch.uint8)
    assert source_of(images, Inverted()) is None
    assert source_of(images, Pixels((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))) is None


def test_infinite_below_zero_is_zero_after_relu():
    eager, compiled = both(chain_of(3, [2], 2))
    with torch.no_grad():
        eager.w[:3] = -3e38
    rows = [model.rows(eager.w, 1, batched=True) for model in (eager, compiled)]
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
        nn.Sequential(nn.Conv2d(1, 1, 1)),
    ],
    ids=["tanh", "ends active", "begins active", "twice active", "negative slope", "no chain"],
)
def test_other_networks_stay_with_pytorch(module):
    model = FlatModel(module)
    model.compile()
    assert model.compiled is None
