"""The short form of `efl bench fuzz`, and that it would notice."""

import numpy as np
import pytest

from efl.bench import fuzz as bench
from efl.bench.fuzz_corpus import MLP, SMALL, Receiver, samples
from efl.errors import WireError
from efl.wire import Ternary


def test_a_few_thousand_mutated_messages():
    """`efl bench fuzz` tries a million."""
    outcome = bench.fuzz(3000)
    assert (outcome.crashed, outcome.wrong, outcome.failures) == (0, 0, [])
    assert outcome.accepted + outcome.refused == 3000
    assert outcome.refused > 1500
    assert outcome.accepted > 100
    assert outcome.room <= bench.most_room(MLP)
    assert outcome.slowest < 4 * bench.SECONDS  # beside other tests
    assert "other exceptions: 0; wrongly accepted: 0" in str(outcome)


def test_most_messages_to_begin_with_are_honest():
    """Else mutations would not get past the first check."""
    refused = 0
    for sample in samples(SMALL):
        try:
            bench.check(sample, sample.read(sample.blob), thoroughly=True)
        except WireError:
            refused += 1
    assert refused <= 10


def unsorted(self, blob):
    return None, [Ternary(SMALL, np.array([5, 3]), np.ones(2, bool), np.ones(1, np.float32))]


def recursion(self, blob):
    raise RecursionError("too deep")


@pytest.mark.parametrize(("read", "count"), [(unsorted, "wrong"), (recursion, "crashed")])
def test_what_goes_wrong_is_counted(monkeypatch, read, count):
    monkeypatch.setattr(Receiver, "merged", read)
    outcome = bench.fuzz(200, layouts=[SMALL])
    assert getattr(outcome, count) >= 8
    assert not outcome.passed
    assert len(outcome.failures) == bench.SHOWN
    assert "merged" in outcome.failures[0]


def test_slow_and_greedy_messages_are_noticed(monkeypatch):
    def greedy(self, blob):
        np.ones(10_000_000)
        return None, []

    monkeypatch.setattr(Receiver, "merged", greedy)
    outcome = bench.fuzz(150, layouts=[SMALL])
    assert outcome.room > bench.most_room(MLP)
    assert not outcome.passed
