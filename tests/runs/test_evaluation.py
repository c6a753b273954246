"""When models are evaluated, and of which clients."""

import pytest

from efl import train
from efl.config import parse
from efl.runs.evaluation import EvaluationSchedule, worst_decile
from efl.runs.loop import Run
from efl.runs.setup import build


def test_worst_decile():
    assert worst_decile([0.2, 0.4] + [1.0] * 18) == pytest.approx(0.3)
    assert worst_decile([0.5]) == 0.5


def test_evaluating_personalised_models_costs_about_a_twentieth():
    training = parse({}).training

    def schedule(clients):
        return EvaluationSchedule(training, clients, 10)

    assert [schedule(clients).personalised_interval for clients in (50, 10, 1000)] == [100, 20, 2000]
    assert schedule(50).personalised_clients().tolist() == list(range(50))
    some = schedule(100_000).personalised_clients().tolist()  # 100 rounds of 10 clients afford to evaluate 50
    assert len(some) == len(set(some)) == 50
    assert schedule(100_000).personalised_clients().tolist() == some


def test_the_global_model_is_evaluated_more_rarely_where_there_is_much_test_data(digits):
    training = parse({}).training
    assert EvaluationSchedule.of(training, 20, sum(map(len, digits.test))).interval == 10
    many = 100_000  # to evaluate them takes as long as to train on 25,000 samples; 4,000 per round
    assert EvaluationSchedule.of(training, 100, many).interval == 130
    assert EvaluationSchedule.of(parse({"training": {"evaluate_every": 3}}).training, 100, many).interval == 3


def test_personalised_models_are_evaluated_only_if_wanted(digits):
    settings = {"rounds": 2, "cohort": 3, "local_steps": 2, "evaluate_every": 1}
    summary = train(digits, "linear", evaluate_own_every="never", **settings).summary
    assert summary["bmta_local"] is None
    assert train(digits, "linear", **settings).summary["bmta_local"] is not None


def test_the_same_model_is_evaluated_once(digits):
    setup = build(parse({"federation": {"clients": 20}, "training": {"rounds": 4, "evaluate_every": 2}}), digits)
    run = Run(setup)
    host, evaluated = run.coordinator.transport.host, []
    evaluate = host.evaluate

    def watched(requests):
        evaluated.append(requests.personalisation is not None)
        return evaluate(requests)

    host.evaluate = watched
    run.execute()
    assert evaluated == [False, False, True]  # after rounds 2 and 4; the summary needs no more
