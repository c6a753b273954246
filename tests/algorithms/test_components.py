import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from efl.algorithms.components.elastic import ElasticField, completion_scale, elastic_step
from efl.algorithms.components.information import as_large_as
from efl.algorithms.components.reduction import averaged_increment, averaged_model
from efl.algorithms.compression.error_feedback import _left
from efl.algorithms.compression.ternary import LONG, largest, sparsify_ternary
from efl.training.observers import SquaredGradients
from efl.wire import Dense, Layout


def dense(sent):
    return torch.stack([torch.from_numpy(row.onto(np.zeros(row.layout.n, np.float32))) for row in sent])


def test_st_by_hand():
    """n = 8, q = 1/4: k = 2, e = 4, μ = (5 + 4) / 2; the second row in two halves of k = 1 each."""
    row = torch.tensor([[0.0, 5.0, -4.0, 3.0, 1.0, -2.0, 0.5, 0.0]])
    assert torch.equal(
        dense(sparsify_ternary(row, 0.25, Layout.flat(8))), torch.tensor([[0, 4.5, -4.5, 0, 0, 0, 0, 0]])
    )
    halves = dense(sparsify_ternary(row, 0.25, Layout(((4,), (4,))), whole=False))
    assert torch.equal(halves, torch.tensor([[0, 5.0, 0, 0, 0, -2.0, 0, 0]]))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 999), density=st.floats(0.001, 1.0), rows=st.integers(1, 4), cut=st.integers(1, 59))
def test_sent_and_left_make_what_was_there(seed, density, rows, cut):
    matrix = torch.randn(rows, 60, generator=torch.Generator().manual_seed(seed))
    sent = sparsify_ternary(matrix, density, Layout(((cut,), (60 - cut,))), whole=False)
    left = _left(matrix.clone(), sent)
    assert torch.allclose(dense(sent) + left, matrix, atol=1e-6)
    for row, update in enumerate(sent):
        for a, b in ((0, cut), (cut, 60)):
            kept = (update.positions >= a) & (update.positions < b)
            assert kept.sum() == max(int((b - a) * density), 1)
            smallest = matrix[row, update.positions[kept]].abs().min()
            others = np.setdiff1d(np.arange(a, b), update.positions)
            assert not len(others) or matrix[row, others].abs().max() <= smallest


def test_st_of_zeros_sends_nothing_and_of_few_values_only_those():
    rows = torch.tensor([[0.0] * 10, [0.0] * 9 + [2.0]])
    sent = sparsify_ternary(rows, 0.5, Layout(((5,), (5,))), whole=False)
    assert len(sent[0].positions) == 0
    assert (sent[1].positions.tolist(), sent[1].values.tolist()) == ([9], [2.0])
    assert sent[0].scales.tolist() == [0.0, 0.0]


def test_of_ties_at_the_threshold_the_first_are_kept():
    sent = sparsify_ternary(torch.tensor([[1.0, -1.0, 1.0, 0.5]]), 0.5, Layout.flat(4))[0]
    assert sent.positions.tolist() == [0, 1]
    assert sent.values.tolist() == [1.0, -1.0]


def test_zeros_at_the_end_change_no_mean():
    """A last segment, or a last row, with nothing to send."""
    halves = Layout(((4,), (2,)))
    alone = sparsify_ternary(torch.tensor([[1.0, 2, 3, 4, 0, 0]]), 1.0, halves, whole=False)[0]
    assert alone.scales.tolist() == [2.5, 0.0]
    rows = torch.tensor([[4.0, 6.0, 0.0], [0.0, 0.0, 0.0]])
    assert [sent.scales.tolist() for sent in sparsify_ternary(rows, 1.0, Layout.flat(3))] == [[5.0], [0.0]]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    n=st.integers(LONG, 3 * LONG),
    share=st.floats(0.0001, 1.1),
    kind=st.sampled_from(["plain", "heavy tail", "ties", "mostly zero", "sorted", "the sample sees only small ones"]),
)
def test_the_largest_of_many_are_those_a_stable_sort_finds(seed, n, share, kind):
    magnitude = np.abs(np.random.default_rng(seed).standard_normal(n)).astype(np.float32)
    if kind == "heavy tail":
        magnitude **= 9
    elif kind == "ties":
        magnitude = np.rint(magnitude)
    elif kind == "mostly zero":
        magnitude[magnitude < 2] = 0
    elif kind == "sorted":
        magnitude.sort()
    elif kind.startswith("the sample"):
        magnitude[::17] *= 1e-3
    count = max(1, int(n * share))
    expected = np.sort(np.argsort(-magnitude, kind="stable")[:count])
    assert largest(magnitude, count).tolist() == expected[magnitude[expected] > 0].tolist()


def field(n=5):
    return ElasticField(None, torch.tensor([0.0, 0.1, 1.0, 30.0, 1e4])[:n], torch.linspace(-1, 1, n))


def test_implicit_step_by_hand():
    """w = 1, g = 2, η = 0.1, λ = 5, U = 4, c = 0.5: (1 − 0.2 + 0.1·5·4·0.5) / (1 + 0.1·5·4) = 1.8 / 3."""
    w = torch.tensor([[1.0]])
    pull = ElasticField(None, torch.tensor([4.0]), torch.tensor([0.5]))
    elastic_step(pull, 0.1, 5.0, "implicit").take(w, torch.tensor([[2.0]]), 0.1)
    assert torch.allclose(w, torch.tensor([[0.6]]))


def test_explicit_step_by_hand():
    """The same: 1 − 0.1·(2 + 5·(4·1 − 4·0.5)) = −0.2."""
    w = torch.tensor([[1.0]])
    pull = ElasticField(None, torch.tensor([4.0]), torch.tensor([0.5]))
    elastic_step(pull, 0.1, 5.0, "explicit").take(w, torch.tensor([[2.0]]), 0.1)
    assert torch.allclose(w, torch.tensor([[-0.2]]))


def test_implicit_step_is_stable_where_the_explicit_one_is_not():
    w_implicit, w_explicit = torch.ones(1, 5), torch.ones(1, 5)
    for _ in range(100):
        elastic_step(field(), 0.1, 10.0, "implicit").take(w_implicit, torch.zeros(1, 5), 0.1)
        elastic_step(field(), 0.1, 10.0, "explicit").take(w_explicit, torch.zeros(1, 5), 0.1)
    assert (w_implicit.abs() <= 1).all()
    assert not torch.isfinite(w_explicit).all() or w_explicit.abs().max() > 1e6


@settings(max_examples=60, deadline=None)
@given(
    local_steps=st.integers(1, 60),
    elasticity=st.sampled_from([0.0, 0.01, 1.0, 10.0, 1e3]),
    eta=st.floats(1e-3, 1.0),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["implicit", "explicit"]),
)
def test_scaled_displacement_of_any_s_is_that_of_all_steps(local_steps, elasticity, eta, seed, kind):
    """Under a constant gradient, to 1e-5 of the displacement's size."""
    generator = torch.Generator().manual_seed(seed)
    gradient, start = torch.randn(1, 5, generator=generator).double(), torch.randn(1, 5, generator=generator).double()
    stable = field().fisher.double().clamp(max=0.9 / (eta * elasticity) if kind == "explicit" and elasticity else 1e9)
    pulls = ElasticField(None, stable, field().anchor.double()) if elasticity else None
    step = elastic_step(pulls, eta, elasticity, kind)
    w, moved = start.clone(), []
    for _ in range(local_steps):
        step.take(w, gradient, eta)
        moved.append(w - start)
    scale = completion_scale(pulls, eta, elasticity, torch.arange(1, local_steps + 1), local_steps, 5, kind)
    for done, displacement in enumerate(moved):
        scaled = scale[done].double() * displacement
        assert torch.allclose(scaled, moved[-1], rtol=1e-5, atol=1e-5 * float(moved[-1].abs().max()))


def test_scale_without_pull_is_e_over_s_and_exactly_one_when_complete():
    scale = completion_scale(None, 0.1, 1.0, torch.tensor([1, 4, 20]), 20, 5)
    assert scale.tolist() == [[20.0], [5.0], [1.0]]
    scale = completion_scale(field(), 0.1, 1.0, torch.tensor([20, 5]), 20, 5)
    assert (scale[0] == 1).all()
    assert scale[1, 0] == 4.0
    assert (scale[1, 1:] < 4.0).all()


def test_one_clients_whole_model_comes_back_bit_for_bit():
    w, model = torch.randn(100), torch.randn(100)
    assert torch.equal(averaged_model(w, [Dense(model.numpy())], [1.0]), model)


@pytest.mark.parametrize("weights", [[0.25, 0.75], [0.5, 0.1], [1.0, 2.0]])
def test_averages_of_models_and_of_increments_agree(weights):
    w, a, b = torch.randn(3, 50).unbind()
    payloads = [Dense(a.numpy()), Dense(b.numpy())]
    expected = w + weights[0] * (a - w) + weights[1] * (b - w)
    assert torch.allclose(averaged_model(w, payloads, weights), expected, atol=1e-5)
    assert torch.allclose(w + averaged_increment(w, payloads, weights), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["implicit", "explicit"])
def test_a_sparse_field_pulls_like_a_dense_one_that_is_zero_elsewhere(kind):
    sparse = ElasticField(torch.tensor([1, 4]), torch.tensor([2.0, 0.5]), torch.tensor([1.0, -1.0]))
    dense = ElasticField(None, torch.tensor([0, 2, 0, 0, 0.5, 0]), torch.tensor([0, 1.0, 0, 0, -1, 0]))
    w, gradient = torch.randn(2, 6), torch.randn(2, 6)
    one, other = w.clone(), w.clone()
    elastic_step(sparse, 0.1, 3.0, kind).take(one, gradient, 0.1)
    elastic_step(dense, 0.1, 3.0, kind).take(other, gradient, 0.1)
    assert torch.allclose(one, other)
    steps = torch.tensor([3, 10])
    scales = [completion_scale(f, 0.1, 3.0, steps, 10, 6) for f in (sparse, dense)]
    assert torch.allclose(*scales)


def test_running_fisher_by_hand():
    """B · (1² + 3²) / 2 for the row seen twice, B · 2² for the one seen once."""
    fisher = SquaredGradients(torch.zeros(2, 1), batch_size=10)
    assert [step for step in range(9) if fisher.watches(step)] == [0, 4, 8]
    fisher.squares += torch.tensor([[1.0 + 9.0], [4.0]])
    assert fisher.mean(torch.tensor([5, 4])).tolist() == [[50.0], [40.0]]


def test_exact_information_is_made_as_large_as_the_running_one():
    running, exact = torch.tensor([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0]]), torch.tensor([[1.0, 1.0], [1.0, 3.0], [0, 0]])
    assert as_large_as(running, exact).tolist() == [[2.0, 2.0], [1.0, 3.0], [0.0, 0.0]]


def test_running_fisher_on_another_device_than_the_steps():
    """Steps are known on the CPU; a fake tensor of another device refuses to meet them."""
    with FakeTensorMode():
        fisher = SquaredGradients(torch.zeros(2, 3, device="cuda"), batch_size=5)
        assert fisher.mean(torch.tensor([4, 2])).device.type == "cpu"
