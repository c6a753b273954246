import json
import shutil
from itertools import product

import numpy as np
import pytest
from browser import browser_tab
from fleets import IRREGULAR
from rich.console import Console
from stopping import StopAt

from efl import train
from efl.errors import UserError
from efl.runs.directory import RunDirectory
from efl.runs.records import RENAMED
from efl.track.figures import byte_stacks, curve_panels, participation
from efl.track.progress import LiveProgress, PlainProgress, run_progress
from efl.track.report import write_comparison, write_report
from efl.track.tables import comparison_rows, markdown, summary_rows
from efl.track.text import bytes_text

RECORDS = [
    {"round": 0, "bytes_up": 10, "bytes_down": 20, "train_loss": 2.0, "clients": {"0": 4, "2": 1}, "counted": [0]},
    {"round": 1, "bytes_up": 10, "bytes_down": 20, "train_loss": None, "clients": {"1": 0}, "counted": []},
    {
        "round": 2,
        "bytes_up": 10,
        "bytes_down": 20,
        "train_loss": 1.0,
        "clients": {"1": 4},
        "counted": [1],
        "accuracy": 0.5,
    },
]


def test_curves_over_rounds_and_bytes():
    over_rounds, over_bytes, loss, _ = curve_panels({"efl": [RECORDS]})
    assert (over_rounds.series[0].x.tolist(), over_rounds.series[0].y.tolist()) == ([3.0], [0.5])
    assert over_bytes.series[0].x.tolist() == [90]
    assert (loss.series[0].x.tolist(), loss.series[0].y.tolist()) == ([1.0, 3.0], [2.0, 1.0])


def test_bytes_of_unlike_size_are_shown_on_a_logarithmic_axis():
    frugal = [{**record, "bytes_up": 1, "bytes_down": 0} for record in RECORDS]
    over_rounds, over_bytes, *_ = curve_panels({"fedavg": [RECORDS], "efl": [frugal]})
    assert over_bytes.log_x
    assert not over_rounds.log_x


def test_where_the_bytes_went():
    history = [{**RECORDS[0], "bytes": {"up": {"update": 3, "overhead": 1}, "down": {}}}, RECORDS[1]]
    up, down = byte_stacks(history)
    assert {kind: values.tolist() for kind, values in up.kinds.items()} == {"update": [3, 0], "overhead": [1, 0]}
    assert down.kinds == {}


def test_seeds_make_a_band():
    other = [{**record, "train_loss": (record["train_loss"] or 0) + 2} for record in RECORDS if record["round"] != 1]
    loss = curve_panels({"efl": [RECORDS, other]})[2].series[0]
    assert loss.y.tolist() == [3.0, 2.0]
    assert (loss.low.tolist(), loss.high.tolist()) == ([2.0, 1.0], [4.0, 3.0])


def test_participation_tells_not_asked_silent_partial_and_dropped():
    who = participation(RECORDS, clients=3, local_steps=4)
    assert np.array_equal(who.share, [[1, np.nan, np.nan], [np.nan, 0, 1], [0.25, np.nan, np.nan]], equal_nan=True)
    assert who.dropped.tolist() == [[False] * 3, [False] * 3, [True, False, False]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    for algorithm in ("efl", "fedavg"):
        train(
            algorithm=algorithm,
            fleet=IRREGULAR,
            rounds=6,
            evaluate_every=2,
            cohort=5,
            local_steps=4,
            out=path / algorithm,
        )
    return path


def test_a_run_directory_has_what_it_promises(runs):
    directory = runs / "efl"
    write_report(RunDirectory.open(directory))
    found = {path.name for path in directory.iterdir()}
    assert found >= {
        "config.toml",
        "metrics.jsonl",
        "summary.json",
        "checkpoint",
        "report.html",
        "curves.png",
        "participation.png",
    }
    assert len((directory / "metrics.jsonl").read_text().splitlines()) == 6
    summary = json.loads((directory / "summary.json").read_text())
    promised = """algorithm dataset seed rounds clients bmta_global bmta_local final_mean_accuracy worst_decile_accuracy
    train_loss bytes_up bytes_down seconds samples_per_second peak_rss_mb diverged model_sha256"""
    assert set(promised.split()) <= set(summary)
    records = RunDirectory.open(directory).history()
    assert summary["bytes_up"] == sum(record["bytes_up"] for record in records)
    assert summary["bytes_down"] == sum(record["bytes_down"] for record in records)
    assert summary["bmta_global"] == max(record["accuracy"] for record in records if "accuracy" in record)


FACTS_BEYOND = """[...document.querySelectorAll("table.facts td")]
    .filter(cell => cell.getBoundingClientRect().right > {width}).length"""


def test_the_report_is_self_contained_and_drawn_by_a_real_browser(runs, tmp_path):
    pages = [
        write_report(RunDirectory.open(runs / "efl")),
        write_comparison(tmp_path, {name: [RunDirectory.open(runs / name)] for name in ("efl", "fedavg")}),
    ]
    for page in pages:
        text = page.read_text()
        assert len(text) < 200_000
        assert "http" not in text.replace("http://www.w3.org", "")
        assert 'src="' not in text
    with browser_tab(tmp_path / "profile") as tab:
        for page, (width, dark) in product(pages, ((400, True), (1400, False))):
            tab.show(page.as_uri(), width, dark=dark)
            tab.wait_for("document.querySelectorAll('#curves path.curve').length >= 4")
            assert tab.eval("document.querySelectorAll('#details canvas').length") >= 3
            assert tab.eval("document.documentElement.scrollWidth") <= width
            assert tab.eval(FACTS_BEYOND.format(width=width)) == 0
        assert tab.troubles == []


def test_a_run_without_rounds_has_no_report(tmp_path, runs):
    shutil.copytree(runs / "efl", tmp_path / "empty")
    (tmp_path / "empty/metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="no rounds"):
        write_report(RunDirectory.open(tmp_path / "empty"))


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys):
    with run_progress(Console(force_terminal=True)) as (bar,):
        assert isinstance(bar, LiveProgress)
    with run_progress(Console(), quiet=True) as displays:
        assert displays == []
    with run_progress(Console(force_terminal=False)) as (plain,):
        train(rounds=2, evaluate_every=1, cohort=5, local_steps=2, callbacks=[plain])
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert "round 2/2" in lines[2]
    for word in ("accuracy", "loss", "complete/partial/dropped 5/0/0", "↑", "↓"):
        assert word in lines[2]


def test_the_terminal_is_given_back_when_a_run_is_stopped():
    console = Console(force_terminal=True, width=120, record=True)

    def stopped():
        with run_progress(console) as displays:
            train(rounds=9, cohort=5, local_steps=2, callbacks=[*displays, StopAt(2)])

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert console._live_stack == []


def test_lines_tell_of_rejected_replies_and_of_every_round_if_asked():
    said = []
    plain = PlainProgress(said.append, every_round=True)
    train(rounds=2, evaluate_every=2, cohort=5, local_steps=2, callbacks=[plain])
    assert [line.split()[0] for line in said] == ["efl", "round", "round"]
    record = {
        "round": 2,
        "bytes_up": 1,
        "bytes_down": 1,
        "train_loss": None,
        "refused": {"3": "too long"},
        "forgot": True,
    }
    plain.round(record)
    assert said[3:5] == [
        "rejected: client 3: too long",
        "all replies rejected for several rounds: server state reset, model weights kept",
    ]


def test_the_live_bar_shows_what_matters():
    console = Console(force_terminal=True, width=160, record=True)
    bar = LiveProgress(console)
    train(rounds=3, evaluate_every=1, cohort=5, local_steps=2, callbacks=[bar])
    text = console.export_text()
    assert "3/3" in text
    assert "complete/partial/dropped" in text


def test_tables(runs):
    summaries = {name: [RunDirectory.open(runs / name).read_summary()] for name in ("efl", "fedavg")}
    header, rows = comparison_rows(summaries)
    assert [row[0] for row in rows] == ["efl", "fedavg"]
    assert markdown(header, rows).count("\n") == 4
    best = max(summary["bmta_global"] for (summary,) in summaries.values())
    assert header[-1] == f"bytes to {90 * best:.1f} %"
    for name, row in zip(summaries, rows, strict=True):
        sent, reached = 0, "–"
        for record in RunDirectory.open(runs / name).history():
            sent += record["bytes_up"] + record["bytes_down"]
            if reached == "–" and (record.get("accuracy") or 0) >= 0.9 * best:
                reached = bytes_text(sent)
        assert row[-1] == reached
    aimed = {name: [{**summary, "target_accuracy": 1.0}] for name, (summary,) in summaries.items()}
    header, rows = comparison_rows(aimed)
    assert header[-1] == "bytes to 100.0 %"
    assert [row[-1] for row in rows] == ["–", "–"]
    assert dict(summary_rows(summaries["efl"][0]))["ended"] == "6 rounds"


@pytest.mark.parametrize("higher", [True, False])
def test_with_several_seeds_the_target_is_one_that_an_algorithm_reaches_with_all(runs, higher):
    summary = RunDirectory.open(runs / "efl").read_summary()
    kind = {**summary, "metric": "rmse", "metric_is_share": False, "higher_is_better": higher}

    def run(best, sent):
        return {**kind, "bmta_global": best, "accuracy_over_bytes": [[1000 * sent, best]]}

    sign = 1 if higher else -1  # the larger a figure is, the better
    groups = {"a": [run(5 + 3 * sign, 1), run(5, 3)], "b": [run(5 + 2 * sign, 5), run(5 - 2 * sign, 7)]}
    header, rows = comparison_rows(groups)
    assert header[-1] == ("bytes to 4.5" if higher else "bytes to 5.556")
    assert [row[-1] for row in rows] == [bytes_text(2000), "–"]


def test_a_run_directory_of_the_first_edition_is_reported(runs, tmp_path):
    shutil.copytree(runs / "efl", tmp_path / "old")
    path = tmp_path / "old/metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    first = [{key: value for key, value in record.items() if key not in RENAMED.values()} for record in records]
    assert all("asked" in record and "sampled" not in record for record in first)
    path.write_text("".join(json.dumps(record) + "\n" for record in first))
    directory = RunDirectory.open(tmp_path / "old")
    assert directory.history() == RunDirectory.open(runs / "efl").history()
    assert "personalised" in write_report(directory).read_text()
