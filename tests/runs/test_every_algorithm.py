"""What holds for every algorithm: how it is computed makes no difference, and every byte is counted."""

import pytest
from assembled import intercept
from stopping import StopAt

from efl import Fleet, compare
from efl.algorithms import create, every_name
from efl.config import parse
from efl.runs.comparison import named
from efl.runs.directory import RunDirectory
from efl.runs.loop import Run
from efl.runs.setup import build
from efl.track.tables import comparison_rows

FLEET = Fleet(stragglers=0.3, inactive=0.1, lost=0.2)


def made(federation, name, checkpoint_every=10, **engine):
    table = {
        "federation": {"clients": len(federation)},
        "training": {"rounds": 5, "cohort": 6, "local_steps": 3, "evaluate_every": 4, "evaluate_own_every": 4},
        "engine": engine,
        "track": {"checkpoint_every": checkpoint_every},
    }
    return build(parse(table), federation, None, create(name), FLEET)


def comparable(result):
    history = [{key: value for key, value in record.items() if key != "seconds"} for record in result.history]
    return result.summary["model_sha256"], history


@pytest.mark.parametrize("name", every_name())
def test_workers_rows_and_interruptions_make_no_difference(digits, name, tmp_path):
    expected = comparable(Run(made(digits, name, workers=1)).execute())
    assert comparable(Run(made(digits, name, workers=1, rows=1)).execute()) == expected
    assert comparable(Run(made(digits, name, workers=2)).execute()) == expected
    setup = made(digits, name, checkpoint_every=2, workers=1)
    directory = RunDirectory.create(tmp_path / "run", setup.experiment)
    with pytest.raises(KeyboardInterrupt):
        Run(setup, directory, [StopAt(2)]).execute()
    assert comparable(Run(made(digits, name, checkpoint_every=2, workers=1), directory).execute()) == expected


@pytest.mark.parametrize("name", every_name())
def test_every_byte_is_in_the_ledger(digits, name):
    coordinator, sent = made(digits, name, workers=1).coordinator(), {"down": 0, "up": 0}

    def watched(requests, replies):
        sent["down"] += sum(map(len, requests.blobs.values()))
        sent["up"] += sum(map(len, replies.blobs.values())) + replies.lost_bytes
        return replies

    intercept(coordinator.transport, watched)
    records = [coordinator.run_round(round_) for round_ in range(4)]
    assert (coordinator.ledger.down, coordinator.ledger.up) == (sent["down"], sent["up"])
    assert not any(record.rejected for record in records)


def test_a_comparison_of_all():
    experiment = parse({"training": {"rounds": 2, "cohort": 3, "local_steps": 2, "evaluate_own_every": "never"}})
    groups = compare(named("all"), experiment, workers=1)
    assert list(groups) == every_name()
    header, rows = comparison_rows(groups)
    assert header[-1].startswith("bytes to")
    assert all(len(row) == len(header) for row in rows)
