"""The measurements run, and say what they should; how fast things are is not for a test to judge."""

from efl.algorithms import ALGORITHMS
from efl.bench import watch
from efl.bench.overhead import defence_prices, ratios
from efl.bench.scale import point, settings
from efl.bench.speed import multiplications, ratio
from efl.models import Task, build


def test_speed_compares_with_the_plain_loop():
    speed = ratio("logistic regression", "linear", rounds=2, workers=2)
    assert speed.ratio > 0
    assert "2 workers" in str(speed)


def test_multiplications_are_counted():
    assert multiplications(build("mlp200", Task((1, 28, 28), 10), 0), (1, 28, 28)) == 784 * 200 + 200 * 200 + 200 * 10
    convolutions = 28 * 28 * 32 * 25 + 14 * 14 * 64 * 32 * 25
    linear = 3136 * 512 + 512 * 10
    assert multiplications(build("cnn_large", Task((1, 28, 28), 10), 0), (1, 28, 28)) == convolutions + linear


def test_overhead_knows_every_algorithm(digits):
    overhead = ratios("mlp on digits", digits, "mlp", repeats=2, names=list(ALGORITHMS), warm_up=1)
    assert overhead.ratios["fedavg"] == 1
    assert set(overhead.ratios) == set(ALGORITHMS)


def test_a_defence_has_a_price():
    assert [line.split(":")[0] for line in defence_prices(1)] == [
        "mlp on digits",
        "mlp200 on images of 28 × 28",
    ]


def test_a_run_is_watched_and_not():
    assert watch.measure(1, 2).startswith("somebody watches 2 rounds on digits: ")


def test_ten_thousand_clients_take_no_more_room_than_their_cohort():
    few, many = (point(clients, 5, "linear", 1, rounds=3) for clients in (10, 10_000))
    assert many.memory < few.memory + 100


def test_clients_cohort_network_and_workers_grow_one_at_a_time():
    middle = (1000, 10, "mlp200", 1)
    changed = [[a != b for a, b in zip(setting, middle, strict=True)] for *setting, _ in settings(15, 100_000)]
    assert all(sum(one) <= 1 for one in changed)
    assert [sum(column) for column in zip(*changed, strict=True)] == [3, 2, 3, 2]
