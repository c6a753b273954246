"""The live page: what is read, who may see it, and how a browser shows it."""

import json
import shutil
import threading
import time
import urllib.error
import urllib.request

import pytest
from browser import browser_tab

from efl import Fleet, train
from efl.cli import main
from efl.errors import UserError
from efl.runs.directory import RunDirectory
from efl.runs.following import Following
from efl.track.live.feed import Cursor, Feed, seconds_left, shortened
from efl.track.live.server import WatchServer, as_bytes, is_loopback, serving

SMALL = {"cohort": 5, "local_steps": 2, "evaluate_every": 2}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A folder of two finished runs."""
    folder = tmp_path_factory.mktemp("runs")
    fleet = Fleet(stragglers=0.5, inactive=0.3)
    for name in ("efl", "fedavg"):
        train("digits", algorithm=name, fleet=fleet, rounds=6, out=folder / name, **SMALL)
    return folder


@pytest.fixture
def unfinished(comparison, tmp_path):
    """A run of which two rounds are written, and a function that writes another one."""
    path = tmp_path / "run"
    shutil.copytree(comparison / "efl", path)
    (path / "summary.json").unlink()
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:2]))

    def write(text=None):
        written = len((path / "metrics.jsonl").read_text().splitlines())
        with (path / "metrics.jsonl").open("a") as file:
            file.write(lines[written] if text is None else text)

    return path, write


# What is read


def test_only_new_rounds_are_read(unfinished, monkeypatch):
    path, write = unfinished
    following = Following(RunDirectory.open(path))
    assert [record["round"] for record in following.read()[1]] == [0, 1]
    assert following.read() == (False, [])
    write()
    monkeypatch.setattr("efl.runs.directory.check_record", lambda record, number: record)
    anew, records = following.read()
    assert not anew
    assert [record["round"] for record in records] == [2]


def test_a_line_is_read_when_it_is_whole(unfinished):
    path, write = unfinished
    following = Following(RunDirectory.open(path))
    following.read()
    write('{"round": 2, ')
    assert following.read() == (False, [])


def test_a_resumed_run_is_read_from_its_beginning(unfinished, tmp_path):
    path, _ = unfinished
    following = Following(RunDirectory.open(path))
    following.read()
    other = tmp_path / "other"
    other.write_text((path / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    other.replace(path / "metrics.jsonl")
    anew, records = following.read()
    assert anew
    assert len(records) == 1


def test_a_damaged_line_is_named(unfinished):
    path, write = unfinished
    following = Following(RunDirectory.open(path))
    write("nonsense\n")
    with pytest.raises(UserError, match=r"metrics.jsonl:3: damaged"):
        following.read()


def test_every_evaluated_round_has_the_metric_of_every_client(comparison):
    records = RunDirectory.open(comparison / "efl").history()
    evaluated = [record for record in records if "accuracy" in record]
    assert [record["round"] for record in evaluated] == [1, 3, 5]
    for record in evaluated:
        values = record["by_client"]
        assert list(values) == [str(client) for client in range(50)]
        assert sum(values.values()) / 50 == pytest.approx(record["accuracy"], abs=1e-4)


def test_a_round_in_short(comparison):
    directory = RunDirectory.open(comparison / "efl")
    experiment, record = directory.experiment(), directory.history()[1]
    record |= {
        "clients": {"3": 2, "4": 1, "5": 0, "6": 2, "7": 2},
        "aggregated": [3, 4],
        "rejected": {"7": "too large"},
    }
    short = shortened(record | {"train_loss": float("nan")}, experiment, "accuracy")
    assert short["who"] == [3, 100, 4, 50, 5, 0, 6, 300, 7, 500]
    assert short["rejected"] == [["7", "too large"]]
    assert short["merit"] == record["accuracy"]
    assert "loss" not in short
    json.dumps(short, allow_nan=False)


def test_the_time_left_is_that_of_the_last_rounds():
    rounds = [{"seconds": 100.0 + 2 * i} for i in range(30)]
    assert seconds_left(rounds, 40) == 20.0
    assert seconds_left(rounds[:1], 40) is None


def test_a_viewer_is_sent_everything_once_and_then_what_is_new(unfinished):
    path, write = unfinished
    feed, cursor = Feed([path]), Cursor()
    feed.poll()
    events = feed.news(cursor)
    assert [name for name, _ in events] == ["runs", "reset", "rounds", "status"]
    assert events[0][1]["runs"][0] | {"algorithm": "efl", "clients": 50, "rounds": 6} == events[0][1]["runs"][0]
    assert events[3][1]["state"] == "stopped"
    assert feed.news(cursor) == []
    write()
    feed.poll()
    ((name, data),) = feed.news(cursor)
    assert name == "rounds"
    assert [one["round"] for one in data["rounds"]] == [3]
    assert as_bytes(("rounds", {"run": 0})) == b'event: rounds\ndata: {"run":0}\n\n'


def test_a_run_that_is_going_on_has_a_time_left(unfinished):
    path, _ = unfinished
    feed = Feed([path])
    with RunDirectory.open(path).in_use():
        feed.poll()
        feed.poll(thoroughly=True)
        (run,) = feed.runs.values()
        assert run.status["state"] == "running"
        assert run.status["left"] == seconds_left(run.rounds, 6) is not None
    feed.poll(thoroughly=True)
    assert run.status["state"] == "stopped"


def test_runs_side_by_side(comparison):
    feed, cursor = Feed([comparison]), Cursor()
    feed.poll()
    runs = feed.news(cursor)[0][1]["runs"]
    assert [(run["name"], run["group"]) for run in runs] == [("efl", 0), ("fedavg", 1)]
    assert all(run["differs"] == {} for run in runs)  # but for the algorithm


def test_a_damaged_run_does_not_disturb_others(comparison, tmp_path):
    shutil.copytree(comparison, tmp_path / "runs")
    (tmp_path / "runs/efl/metrics.jsonl").write_text("nonsense\n")
    feed = Feed([tmp_path / "runs"])
    feed.poll()
    first, second = feed.runs.values()
    assert first.status["state"] == "damaged"
    assert (second.status["state"], len(second.rounds)) == ("finished", 6)


# Bad input


@pytest.fixture
def efl(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["efl", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr().err

    return call


def test_what_is_no_run_is_refused_in_one_line(efl, tmp_path):
    assert efl("watch", tmp_path) == (
        2, f"efl: {tmp_path}: there is no run in it; give a run directory, or a folder of them\n",
    )  # fmt: skip
    code, line = efl("watch", tmp_path / "missing")
    assert code == 2
    assert line.count("\n") == 1
    assert "no such directory" in line


def test_a_port_in_use_is_refused_in_one_line_and_the_usual_one_replaced(efl, comparison):
    with serving(Feed([comparison]), port=0) as server:
        code, line = efl("watch", comparison, "--port", server.server_address[1])
        assert (code, line.count("\n")) == (2, 1)
        assert "in use" in line
    with serving(Feed([comparison])) as first, serving(Feed([comparison])) as second:
        assert first.url != second.url


def test_a_directory_deleted_while_it_is_watched_ends_it_in_one_line(efl, unfinished, monkeypatch):
    path, _ = unfinished
    monkeypatch.setattr("efl.track.live.server.IDLE", 0.05)
    threading.Timer(0.5, shutil.rmtree, [path]).start()
    assert efl("watch", path, "--port", 0) == (2, f"efl: {path}: deleted while being watched\n")


# Who may see it


def status(url, host=None):
    try:
        request = urllib.request.Request(url, headers={"Host": host} if host else {})
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_this_machine_is_answered_without_a_token(comparison):
    with serving(Feed([comparison]), port=0) as server:
        assert server.token is None
        assert server.url.startswith("http://127.0.0.1:")
        assert status(server.url) == 200
        assert status(server.url, "localhost:1234") == 200
        assert status(server.url, "rebound.example") == 403
        assert status(server.url + "../../etc/passwd") == 404


def test_others_need_the_token(comparison):
    with serving(Feed([comparison]), "0.0.0.0", 0) as server:
        bare, _, token = server.url.partition("?token=")
        assert len(token) >= 32
        for page in ("", "events"):
            assert status(bare + page) == 403
            assert status(f"{bare}{page}?token={token[:-1]}") == 403
        assert status(server.url) == 200
        assert status(bare + "watch.js") == 200


def test_what_loopback_is():
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "example.org", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_bad_address_is_refused(comparison):
    with pytest.raises(UserError, match="cannot listen at 192"):
        WatchServer(Feed([comparison]), "192.0.2.1", 0)


# In a browser


@pytest.mark.slow
def test_the_page_in_a_browser(comparison, unfinished, tmp_path):
    path, write = unfinished
    with serving(Feed([path, comparison]), port=0) as server, browser_tab(tmp_path / "profile") as tab:
        threading.Thread(target=server.watch, daemon=True).start()
        for width, dark in ((400, True), (1400, False)):
            tab.show(server.url, width, dark=dark)
            tab.wait_for("document.body.dataset.rounds == 14")
            assert tab.eval("document.documentElement.scrollWidth") <= width
            assert tab.eval("[...document.querySelectorAll('#curves figure')].length") >= 4
            assert tab.eval("document.querySelectorAll('#curves path.curve').length") >= 12
            assert tab.eval("document.querySelectorAll('#details canvas').length") == 15
            assert tab.eval("document.querySelectorAll('#runs tbody tr').length") == 3
            paper = tab.eval("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") is not dark
        painted = """[...document.querySelectorAll('#details canvas')].every(canvas =>
            canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0))"""
        assert tab.eval(painted)
        write()
        assert tab.wait_for("document.body.dataset.rounds == 15") < 2  # seconds
        assert tab.eval("document.getElementById('details').textContent.includes('3 / 6')")
        shutil.rmtree(path)
        tab.wait_for("document.getElementById('runs').textContent.includes('deleted')")
        server.feed.close()
        tab.wait_for("document.getElementById('line').textContent.includes('has ended')")
        assert tab.troubles == []


@pytest.mark.slow
def test_a_run_with_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["efl", "run", "-q", "--watch", "--out=run", "--set=training.rounds=2", "--set=training.local_steps=2"]
    monkeypatch.setattr("sys.argv", command)
    asked = []

    def look(url):
        asked.append(status(url))
        return url

    monkeypatch.setattr("efl.track.live.beside._address", lambda pipe: look(pipe.recv()))
    began = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert asked == [200]
    assert "Watch at http://127.0.0.1:" in capsys.readouterr().out
    assert (tmp_path / "run/summary.json").exists()
    assert time.monotonic() - began < 60
