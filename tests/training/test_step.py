"""Whatever a step is made of, every backend takes it as a loop over clients in float64 does, to rounding."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from cohorts import CLASSES, CLIENTS, ETA, FORMS, STEPS, WAYS, Cohort, of_clients, train
from hypothesis import given, settings
from hypothesis import strategies as st

from efl.models.vectors import flatten
from efl.training import local_work
from efl.training.step import PLAIN, Step


def compare(cohort, step):
    """Every backend against the loop by hand."""
    expected = cohort.by_hand(step)
    for way, watched in itertools.product(WAYS, (False, True)):
        for got, wanted in zip(train(cohort.work(way), step, watched), expected, strict=True):
            if got is not None:
                assert torch.allclose(got.double(), wanted.double(), rtol=1e-4, atol=1e-5), (way, watched)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_of_step_is_taken_by_every_backend(form):
    cohort = Cohort()
    step = form.step(cohort.model.n)
    compare(cohort, step)
    if step.drift is not None or step.keep is not None:
        plain, other = (train(cohort.work("eager"), one, watched=False)[0] for one in (PLAIN, step))
        assert not torch.allclose(plain, other, atol=1e-2)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.lists(st.integers(1, 40), max_size=2),
    st.sampled_from([0.0, 0.25]),
    st.booleans(),
    st.integers(1, 12),
    st.lists(st.integers(1, 9), min_size=CLIENTS, max_size=CLIENTS),
    st.sampled_from(FORMS),
)
def test_random_chains_too(features, hidden, slope, bias, batch, steps, form):
    torch.manual_seed(0)
    cohort = Cohort(features, hidden, slope, bias, batch, sorted(steps, reverse=True))
    compare(cohort, form.step(cohort.model.n))


@pytest.mark.parametrize("way", WAYS[1:])  # row by row, nobody is grouped
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_grouping_does_not_change_a_bit(form, way):
    """Products of PyTorch round by where in memory their factors begin, so here all of them begin with a vector."""
    cohort = Cohort(features=64, hidden=(32,), batch=16, outputs=16)
    assert cohort.model.n % 16 == 0
    step = form.step(cohort.model.n)
    for watched in (False, True):
        grouped_otherwise(cohort, way, step, watched)


@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("native")])
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 40), max_size=2), st.integers(1, 12), st.sampled_from(FORMS))
def test_no_size_makes_compiled_code_depend_on_grouping(way, features, hidden, batch, form):
    torch.manual_seed(0)
    cohort = Cohort(features, hidden, batch=batch)
    grouped_otherwise(cohort, way, form.step(cohort.model.n), watched=form.explicit)


def grouped_otherwise(cohort, way, step, watched):
    together = train(cohort.work(way), step, watched)
    for clients in ((0, 3), (1, 2), (3,)):
        apart = train(cohort.work(way, clients), of_clients(step, clients), watched)
        for alone, whole in zip(apart, together, strict=True):
            assert whole is None or torch.equal(alone, whole[list(clients)]), (clients, watched)


@pytest.mark.parametrize("way", WAYS)
def test_the_sum_of_gradients_moves_nothing(way):
    cohort = Cohort()
    work = cohort.work(way)
    total = work.gradient_sum()
    assert torch.equal(work.W, cohort.model.w.expand(CLIENTS, -1))
    for client in range(CLIENTS):
        found = [cohort.gradient(cohort.model.w, x, y) for x, y in cohort.batches(client)]
        assert torch.allclose(total[client].double(), sum(gradient for _, gradient in found), rtol=1e-4, atol=1e-6)
        assert work.losses[client] == pytest.approx(sum(loss for loss, _ in found) / len(found), rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_over_gradients_is_a_step_of_ones_own(way):
    """Shadow models see the same mini-batches; here they stay where they are."""
    cohort = Cohort()
    work, total = cohort.work(way), torch.zeros(CLIENTS, cohort.model.n)
    shadows, actives = work.shadow_models(), []
    for active, gradient in work.gradients(shadows):
        work.W[:active] -= ETA * gradient
        total[:active] += shadows.G[:active]
        actives.append(active)
    assert actives == [4, 3, 3, 3, 1, 1]
    assert torch.allclose(work.W.double(), cohort.by_hand(PLAIN)[0], rtol=1e-4, atol=1e-6)
    assert torch.allclose(total, cohort.work(way).gradient_sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_the_full_gradient_is_that_over_all_samples(way, monkeypatch):
    monkeypatch.setattr(local_work, "SAMPLES_AT_ONCE", 5)  # of twelve
    cohort = Cohort()
    work = cohort.work(way)
    gradients, losses = work.full_gradient()
    assert torch.equal(work.W, cohort.model.w.expand(CLIENTS, -1))
    for client in range(CLIENTS):
        x, y = cohort.federation.batch(torch.from_numpy(cohort.federation.train[client]))
        loss, gradient = cohort.gradient(cohort.model.w, x, y)
        assert torch.allclose(gradients[client].double(), gradient, rtol=1e-4, atol=1e-6)
        assert losses[client] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("done", [1, 3, 5])
@pytest.mark.parametrize("way", WAYS)
def test_all_rows_stop_when_time_is_up(way, done):
    cohort = Cohort()
    calls = itertools.count(1)
    work = cohort.work(way, time_left=lambda: next(calls) < done)
    got = train(work, PLAIN, watched=True)
    cohort.steps = [min(steps, done) for steps in STEPS]
    assert work.steps.tolist() == cohort.steps
    assert next(calls) == done + 1  # nobody asks again
    for stopped, short in zip(got, train(cohort.work(way), PLAIN, watched=True), strict=True):
        assert torch.equal(stopped, short)


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_of_gradients_ends_with_the_time(way):
    cohort = Cohort()
    left = iter([True, False])
    work = cohort.work(way, time_left=lambda: next(left))
    total = work.gradient_sum()
    cohort.steps = (2, 2, 2, 1)
    assert work.steps.tolist() == [2, 2, 2, 1]
    assert torch.equal(total, cohort.work(way).gradient_sum())


N = 6 * 5 + 5 + 5 * CLASSES + CLASSES  # parameters of the usual chain


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (ValueError, {"drift": torch.zeros(N - 1)}),
        (ValueError, {"drift": torch.zeros(1, N)}),
        (ValueError, {"drift": torch.zeros(CLIENTS + 1, N)}),
        (ValueError, {"drift": torch.zeros(1)}),
        (ValueError, {"keep": torch.ones(N)}),
        (ValueError, {"shift": torch.zeros(N)}),
        (ValueError, {"keep": torch.ones(1), "shift": torch.zeros(1)}),
        (ValueError, {"keep": torch.ones(N), "shift": torch.zeros(1)}),
        (ValueError, {"keep": torch.ones(3, N), "shift": torch.zeros(3, N)}),
        (ValueError, {"keep": torch.ones(N), "shift": torch.zeros(N), "index": torch.arange(3)}),
        (ValueError, {"keep": torch.ones(3), "shift": torch.zeros(2), "index": torch.arange(3)}),
        (ValueError, {"keep": torch.ones(3, 3), "shift": torch.zeros(3), "index": torch.arange(3)}),
        (IndexError, {"keep": torch.ones(2), "shift": torch.zeros(2), "index": torch.tensor([0, N])}),
        (IndexError, {"keep": torch.ones(2), "shift": torch.zeros(2), "index": torch.tensor([-1, 0])}),
        (IndexError, {"keep": torch.ones(CLIENTS, 1), "shift": torch.zeros(1), "index": torch.tensor([N])}),
    ],
    ids=lambda value: " ".join(f"{k}{tuple(v.shape)}" for k, v in value.items()) if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("way", WAYS)
def test_a_step_that_does_not_fit_is_refused(way, error, parts, explicit):
    cohort = Cohort()
    work = cohort.work(way)
    with pytest.raises(error, match="step"):
        work.train(Step(**parts, explicit=explicit))
    assert torch.equal(work.W, cohort.model.w.expand(CLIENTS, -1))


@pytest.mark.parametrize("way", WAYS)
def test_a_step_at_no_coordinate_pulls_nothing(way):
    cohort = Cohort()
    nowhere = Step(keep=torch.ones(0), shift=torch.ones(0), index=torch.zeros(0, dtype=torch.int64))
    got, plain = (train(cohort.work(way), step, watched=False)[0] for step in (nowhere, PLAIN))
    assert torch.equal(got, plain)


@pytest.mark.parametrize("client", range(CLIENTS))
def test_alone_with_one_step_it_is_pytorchs_own_sgd(client):
    """E = 1: to the last bit."""
    cohort = Cohort(steps=(1, 1, 1, 1))
    work = cohort.work("eager", [client])
    work.train()
    module = cohort.model.module_at(cohort.model.w, cohort.model.buffers)
    ((x, y),) = cohort.batches(client)
    optimiser = torch.optim.SGD(module.parameters(), lr=ETA)
    F.cross_entropy(module(x), y).backward()
    optimiser.step()
    assert torch.equal(work.W[0], flatten(module.parameters()))
