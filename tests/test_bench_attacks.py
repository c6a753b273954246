"""The table of attacks: what was run is not run again, and what was cut short is."""

import json

import pytest

from efl import UserError
from efl.bench.attacks import CLEAN, cases, markdown, measure, read

SMALL = {"rounds": 4, "clients": 10, "cohort": 4}


def test_the_table_goes_on_where_it_was_left(tmp_path):
    outcomes = tmp_path / "attacks.jsonl"
    wanted = cases([CLEAN, "at the norm limit", "noise × 10"], ["default", "oracle"], [0], **SMALL)
    first = measure(wanted, outcomes)
    assert next(first).startswith("1 of 5: nobody hostile | default")  # perfect exclusion is run once for all attacks
    first.close()
    with outcomes.open("a") as file:
        file.write('{"case": {"row"')
    outcomes.write_text(outcomes.read_text() + "\n")
    assert len(list(measure(wanted, outcomes))) == 4
    assert not list(measure(wanted, outcomes))
    header, _, *rows = markdown(wanted, outcomes)
    assert header == "| 20 % hostile | default | oracle |"
    assert [row.split(" | ")[0] for row in rows] == ["| nobody hostile", "| at the norm limit", "| noise × 10"]
    assert rows[1].split(" | ")[2] == rows[2].split(" | ")[2]


def test_cases_side_by_side_are_those_one_after_the_other(tmp_path):
    wanted = cases([CLEAN], ["none", "default"], [0], model="linear", **SMALL)
    lines = {name: list(measure(wanted, tmp_path / name, workers=workers)) for name, workers in (("1", 1), ("2", 2))}
    assert len(lines["2"]) == 2
    assert read(tmp_path / "1") == read(tmp_path / "2")
    assert not list(measure(wanted, tmp_path / "2", workers=2))


def test_outcomes_from_before_networks_could_be_chosen_are_known():
    plain, other = (json.loads(cases([CLEAN], ["none"], [0], model=name)[0].key) for name in ("auto", "mlp"))
    assert set(other) - set(plain) == {"model"}


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="unknown attack 'flip'"):
        cases(["flip"], ["none"], [0])
    with pytest.raises(UserError, match="unknown rule 'mean'"):
        cases([CLEAN], ["mean"], [0])
