"""Traces, experiments, what a server and a client keep: damaged, they are refused in one line."""

import json

import pytest
import torch
from damages import DEEP, EVERY, VALUES, damage, outcome

from efl import UserError, load_experiment
from efl.config import parse
from efl.fleet import Fleet
from efl.fleet.traces import EXAMPLES, read_trace
from efl.paper.results import Results
from efl.reading import DamagedError
from efl.runs.setup import build
from efl.server.registry import Node, Registry
from efl.storage import read_state, write_state
from efl.track.trackers import tracker_run_id

HEADER = "client,start,stop,steps_per_second,down_bytes_per_second,up_bytes_per_second"
ROW = {"client": 0, "start": 0, "stop": 5, "steps_per_second": 1}
ROW |= {"down_bytes_per_second": 1, "up_bytes_per_second": 1}


@pytest.mark.parametrize("how", EVERY)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_traces(tmp_path, kind, how):
    path = tmp_path / f"trace.{kind}"
    path.write_text((EXAMPLES / "phones.csv").read_text() if kind == "csv" else json.dumps({"intervals": [ROW]}))
    assert outcome(lambda: read_trace(path, 1000)) is not None
    damage(path, how)
    outcome(lambda: walk(read_trace(path, 1000)))


def walk(trace):
    """Use a trace for a while."""
    everybody, now = trace.at(0.0).available | True, 0.0
    for _ in range(20):
        trace.at(now)
        now = min(trace.next_start(now, everybody), now + 1e6)
    return trace


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", [*ROW, "period", "intervals"])
def test_values_in_traces(tmp_path, key, value):
    path = tmp_path / "trace.json"
    content = {"intervals": [ROW | {key: "HERE"}]} if key in ROW else {"intervals": [ROW]} | {key: "HERE"}
    path.write_text(json.dumps(content).replace('"HERE"', VALUES[value]))
    outcome(lambda: walk(read_trace(path, 3)))


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}\n0,0,5,1,1,{'1' * 200_000}\n",
        f'{HEADER}\n0,0,5,1,1,"{"x" * 200_000}\n',
        f"{'x' * 200_000},{HEADER}\n",
        f"# period: 5e-324\n{HEADER}\n0,0,,1,1,1\n",
        f"# period: 1e308\n{HEADER}\n0,0,,1,1,1\n",
        f"{HEADER}\n0,1e307,1e308,1,1,1\n",
        f"{HEADER}\n0,0,5,5e-324,1,1\n",
        f"{HEADER}\n0,0,5,1,1e308,1\n",
        f"{HEADER}\n{2**70},0,5,1,1,1\n",
        f"{HEADER}\n1e400,0,5,1,1,1\n",
        f"{HEADER}\n0,0,5,1,1,1\x00\n",
        f"{HEADER},{HEADER}\n",
    ],
)
def test_lines_of_traces(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert outcome(lambda: walk(read_trace(path, 3))) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"intervals": [' + json.dumps(ROW) + '], "intervals": []}',
        '{"intervals": [{"client": 0, "client": 1}]}',
        '{"interval\\u0073": [' + json.dumps(ROW) + "]}",
    ],
)
def test_keys_of_traces(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text)
    assert outcome(lambda: walk(read_trace(path, 3))) is None


def test_a_trace_from_a_device_or_a_pipe_is_refused_at_once(tmp_path):
    with pytest.raises(UserError, match="not a regular file"):
        Fleet(trace="/dev/zero").check(3)
    (tmp_path / "pipe.csv").touch()
    damage(tmp_path / "pipe.csv", "pipe")
    assert outcome(lambda: Fleet(trace=str(tmp_path / "pipe.csv")).check(3)) is None


@pytest.mark.parametrize("how", EVERY)
def test_experiments(tmp_path, how):
    path = tmp_path / "experiment.toml"
    path.write_text('[training]\nrounds = 5\nseed = 3\n[algorithm]\nname = "efl"\n# the end, at last\n')
    damage(path, how)
    outcome(lambda: load_experiment(path))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * DEEP,
        "a = " + "[" * DEEP + "]" * DEEP,
        "a = " + "{a = " * 5000 + "1" + "}" * 5000,
        ".".join(["a"] * 5000) + " = 1",
        "[" + ".".join(["fleet"] * 5000) + "]",
        "training.rounds = " + "1" * 5000,
        "training.learning_rate = 1e400",
        "training.learning_rate = " + "1" * 5000 + ".0",
        "[training]\nrounds = 1\nrounds = 2",
        "[training]\n[training]",
        "training.seed = 9999-99-99",
        "fleet.inactive = " + str([[2**70, 0.5]]),
        "fleet.arrivals = " + str([[2**70, 2]]),
        "fleet.arrivals = [[1, 10000000000000000000]]",
        "fleet.straggler_steps = 'beta:1e308,1e308'",
        "federation.partition = 'dirichlet:1e308'",
        "federation.partition = 'classes:" + "9" * 30 + "'",
        "federation.dataset = 'synthetic:1e308,1'",
        "federation.clients = 1000000000",
        "training = {local_steps = 1000000, batch_size = 1000000}",
        "training.schedule = 'theorem1:1e308,1e-320'",
        "algorithm.weight_cap = 1e308",
        "algorithm.step_up = 5e-324",
        "algorithm.elasticity = 1e308",
        "algorithm.density_up = 1e-320",
        "training.loss = {name = 'huber', delta = 1e308}",
        "training.optimiser = {name = 'adam', eps = 1e-320}",
        "transform = [{name = 'clip_by_norm', norm = 1e308}]",
        "network.deadline = 1e300",
        "network.patience = 9223372036854775808",
    ],
)
def test_values_that_no_run_could_have(tmp_path, text):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    assert outcome(lambda: build(load_experiment(path))) is None


COUNTED = (
    "training.rounds", "training.cohort", "training.local_steps", "training.batch_size", "training.evaluate_every",
    "training.warmup", "federation.clients", "engine.workers", "engine.rows", "track.checkpoint_every",
    "network.wait_for", "network.patience",
)  # fmt: skip
MEASURED = (
    "training.learning_rate", "training.decay", "network.deadline", "network.margin", "network.norm_bound",
    "algorithm.elasticity", "algorithm.weight_cap", "algorithm.step_up", "fleet.deadline",
)  # fmt: skip


@pytest.mark.parametrize("value", [2**63 - 1, 2**64, 10**10, -1, 0.5, 1e300, float("nan"), [], {}, "many"])
@pytest.mark.parametrize("key", COUNTED)
def test_what_is_counted_has_a_limit(key, value):
    section, name = key.split(".")
    assert outcome(lambda: parse({section: {name: value}})) is None


@pytest.mark.parametrize("value", [1e300, 2e30, -1, float("nan"), [], {}, "much"])
@pytest.mark.parametrize("key", MEASURED)
def test_what_is_measured_has_a_limit(key, value):
    section, name = key.split(".")
    assert outcome(lambda: build(parse({section: {name: value}}))) is None


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "clients.json"
    registry = Registry(4, 3, path)
    for client in range(3):
        registry.claim(Node(100 + client, f"key-{client}"), client, 50)
    registry.open_round(2)
    return path


@pytest.mark.parametrize("how", EVERY)
def test_registry(book, how):
    damage(book, how)
    if how != "link to nothing":
        outcome(lambda: Registry(4, 3, book))


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("key", ["round", "clients", "client", "key", "named", "samples", "arrives", "departs", "away"])
def test_values_in_the_registry(book, key, value):
    content = json.loads(book.read_text())
    if key in content:
        content[key] = "HERE"
    elif key == "client":
        content["clients"]["1"] = "HERE"
    else:
        content["clients"]["1"][key] = "HERE"
    book.write_text(json.dumps(content).replace('"HERE"', VALUES[value]))
    found = outcome(lambda: Registry(4, 3, book))
    allowed = {"key": ["a word"], "named": ["true"], "round": ["negative"]}
    assert found is None or value in allowed.get(key, [])


@pytest.mark.parametrize("name", ["-1", "4", "01", "1e0", "", "x", "9" * 5000, str(2**70), "٣", " 1"])
def test_clients_that_there_are_not(book, name):
    content = json.loads(book.read_text())
    content["clients"][name] = content["clients"].pop("1")
    book.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"clients\.json: damaged \(there is no client"):
        Registry(4, 3, book)


@pytest.mark.parametrize("name", ["", "\n", "two words", "../up", "ab\ncd", "x" * 65, "ä", "a\x00b"])
def test_names_of_runs(tmp_path, name):
    run_name = pytest.importorskip("efl.flower.server").run_name
    (tmp_path / "run-id").write_text(name)
    with pytest.raises(UserError, match="not the name of a run"):
        run_name(tmp_path / "run-id")


@pytest.mark.parametrize("how", EVERY)
def test_run_id(tmp_path, how):
    run_name = pytest.importorskip("efl.flower.server").run_name
    path = tmp_path / "run-id"
    name = run_name(path)
    path.write_text(f"{name}\n")  # as an editor leaves it
    assert run_name(path) == name
    damage(path, how)
    found = outcome(lambda: run_name(path))
    assert found is None or found.isalnum()


@pytest.mark.parametrize("how", EVERY)
def test_client_state(tmp_path, how):
    """What a client on a machine of its own keeps is a state file."""
    path = tmp_path / "client-0.safetensors"
    state = {"host": {"version": 3, "w": torch.arange(50.0)}, "cached": {"reply": torch.ones(7, dtype=torch.uint8)}}
    write_state(path, state)
    damage(path, how)
    with pytest.raises((DamagedError, OSError)):
        read_state(path)


@pytest.mark.parametrize("how", EVERY)
def test_trackers(tmp_path, how):
    tracker_run_id(tmp_path, "mlflow", lambda: "abc")
    damage(tmp_path / "trackers.json", how)
    outcome(lambda: tracker_run_id(tmp_path, "mlflow", lambda: "abc"))


@pytest.mark.parametrize("how", EVERY)
def test_results(tmp_path, how):
    path = tmp_path / "results.jsonl"
    cell = {"setting": "a", "method": "b", "candidate": 0, "tuning": False, "seed": 0}
    path.write_text(json.dumps({"cell": cell, "curve": [{"round": 0}], "summary": {}, "experiment": {}}) + "\n")
    damage(path, how)
    outcome(lambda: Results(path))
