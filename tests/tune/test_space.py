"""What is searched: what algorithms declare, and what the user says instead."""

from dataclasses import fields

import pytest

from efl.algorithms import create, every_name
from efl.algorithms.search import Choice, Range
from efl.config import Experiment, parse
from efl.errors import UserError
from efl.tune.space import applied, check_overrides, default_of, parse_override, space_of


@pytest.mark.parametrize("name", every_name())
def test_every_algorithm_declares_ranges_that_hold_its_defaults(name):
    experiment = parse({"algorithm": {"name": name}})
    space = space_of(name, experiment)
    assert space["training.learning_rate"] == Range(0.01, 1.0)
    algorithm = create(name)
    for key, dimension in space.items():
        section, _, own = key.partition(".")
        assert section == "training" or own in {one.name for one in fields(algorithm)}
        assert dimension.contains(default_of(key, experiment))
        for end in (dimension.low, dimension.high):
            create(name, applied(experiment, {key: end}).algorithm_settings)


def test_what_the_user_says_takes_the_place_of_what_is_declared():
    said = [parse_override(text) for text in ("training.learning_rate=1:2:linear", "algorithm.fedprox.proximity=0.5,2")]
    experiment = parse({"algorithm": {"name": "fedprox"}})
    expected = {"training.learning_rate": Range(1.0, 2.0, log=False), "algorithm.proximity": Choice((0.5, 2))}
    assert space_of("fedprox", experiment, said) == expected
    assert "algorithm.proximity" not in space_of("fedavg", Experiment().with_values(algorithm={"name": "fedavg"}), said)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.learning_rate", "write KEY=LOW:HIGH"),
        ("learning_rate=1:2", "write KEY=LOW:HIGH"),
        ("fleet.stragglers=0:1", "write KEY=LOW:HIGH"),
        ("training.learning_rate=", "write KEY=LOW:HIGH"),
        ("training.learning_rate=1:0.1", "a range goes up: 1 is not below 0.1"),
        ("training.learning_rate=0:1", "a logarithmic range starts above 0"),
        ("training.learning_rate=a:1", "a:1 are no numbers"),
        ("training.learning_rate=1:inf", "two finite numbers"),
        ("training.learning_rate=0.1:1:lin", "the scale is log or linear, not 'lin'"),
        ("algorithm.proximity=1,,2", "'' is no value"),
    ],
)
def test_what_is_no_range_is_one_line(text, message):
    with pytest.raises(UserError, match=message) as error:
        parse_override(text)
    assert str(error.value).startswith(f"--space {text}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.rounds=10:20", "these can be searched: training.learning_rate, training.decay"),
        ("algorithm.proximty=0.1:1", "unknown key algorithm.proximty; did you mean algorithm.proximity"),
        ("algorithm.fedamp.distance=1:10", "'fedamp' is not among --algorithms"),
        ("algorithm.fedavg.proximity=0.1:1", "unknown key algorithm.proximity"),
    ],
)
def test_a_key_that_none_of_the_algorithms_has_is_one_line(text, message):
    with pytest.raises(UserError, match=message):
        check_overrides([parse_override(text)], ["fedavg", "fedprox"])


def test_a_range_beyond_what_a_key_may_be_is_one_line():
    with pytest.raises(UserError, match=r"--space algorithm.proximity=-1:1:linear: algorithm.proximity: input should"):
        space_of(
            "fedprox",
            parse({"algorithm": {"name": "fedprox"}}),
            [parse_override("algorithm.proximity=-1:1:linear")],
        )


def test_whole_numbers_stay_whole():
    experiment = Experiment()
    space = space_of("efl", experiment, [parse_override("training.batch_size=5:40")])
    assert space["training.batch_size"] == Range(5.0, 40.0)
    with pytest.raises(UserError, match=r"training.batch_size"):
        space_of("efl", experiment, [parse_override("training.batch_size=0:40:linear")])
