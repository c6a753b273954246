"""The table of attacks: what was run is not run again, and what was cut short is."""

import pytest

from efl import UserError
from efl.bench.attacks import CLEAN, cases, markdown, measure

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


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="unknown attack 'flip'"):
        cases(["flip"], ["none"], [0])
    with pytest.raises(UserError, match="unknown rule 'mean'"):
        cases([CLEAN], ["mean"], [0])
