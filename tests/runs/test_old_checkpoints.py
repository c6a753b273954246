"""Run directories of elastic-fl 0.1 (checkpoint format 4) resume; what cannot be resumed is refused in one line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from efl import UserError, resume, run
from efl.config import parse
from efl.runs.checkpoint import list_checkpoints
from efl.settings import read_toml
from efl.storage import FORMAT, read_state

OLD = Path(__file__).parent.parent / "fixtures" / "format4"
# What elastic-fl 0.1 came to without being stopped, where the fixtures were made: last bits depend on the processor.
LOCAL = "a8b8998ac5113bca2e32566f2d2767e32733f6799faa190d9467b8186ba50494"
FLOWER = "61f6f922f404faca3689d3a6c0619f04566e960563ac7273fa33c08c113c7521"


@pytest.fixture
def old_run(tmp_path):
    """A run of EFL with stragglers, a trace, arrivals and lost replies, stopped after round 5 of 7."""
    shutil.copytree(OLD / "local", tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("TRACE", str(OLD / "trace.csv")))
    return tmp_path / "run"


def test_a_run_of_the_first_edition_resumes(old_run):
    before = [json.loads(line) for line in (old_run / "metrics.jsonl").read_text().splitlines()]
    whole = run(parse(read_toml(old_run / "config.toml")))
    resumed = resume(old_run)
    assert [record["round"] for record in resumed.history] == list(range(7))
    for now, old in zip(resumed.history[:4], before, strict=False):
        assert {key: now[key] for key in old} == old  # besides, its figures have the names of today
    for key in ("clients", "aggregated", "membership"):
        assert [r.get(key) for r in resumed.history] == [r.get(key) for r in whole.history], key
    assert payload_bytes(resumed.summary)["down"] == payload_bytes(whole.summary)["down"]
    if whole.summary["model_sha256"] == LOCAL:  # a processor like that of the fixture
        assert resumed.summary["model_sha256"] == LOCAL
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    assert json.loads(load_notes(list_checkpoints(old_run / "checkpoint")[-1]))["format"] == FORMAT


def payload_bytes(summary):
    """Bytes by kind without headers, which were longer in the first edition."""
    return {way: {k: v for k, v in kinds.items() if k != "overhead"} for way, kinds in summary["bytes"].items()}


def test_a_server_and_nodes_of_the_first_edition_resume(tmp_path):
    pytest.importorskip("flwr")
    from grids import FakeGrid, served

    from efl.flower import client_app
    from efl.models import Task
    from efl.models import build as build_network
    from efl.rng import Purpose, torch_seed

    def make_model(experiment):
        return build_network("linear", Task((1, 8, 8), 10), torch_seed(experiment.training.seed, Purpose.MODEL))

    from grids import load_data

    shutil.copytree(OLD / "flower", tmp_path, dirs_exist_ok=True)
    config = {"training.rounds": 4, "training.batch_size": 5, "algorithm.name": "efl:2021"}
    grid = FakeGrid(config, tmp_path)
    grid.app = client_app(make_model, load_data)
    resumed, _, _ = served(tmp_path, config, grid, make_model=make_model)
    summary = resumed.execute().summary
    assert [record["aggregated"] for record in resumed.history] == [[0, 1, 2, 3]] * 4
    whole_grid = FakeGrid(config, tmp_path / "whole")
    whole_grid.app = client_app(make_model, load_data)
    whole = served(tmp_path / "whole", config, whole_grid, make_model=make_model)[0].execute().summary
    assert summary["bytes"]["down"].keys() == whole["bytes"]["down"].keys()
    if whole["model_sha256"] == FLOWER:
        assert summary["model_sha256"] == FLOWER
        assert payload_bytes(summary) == payload_bytes(whole)
    state = read_state(next((tmp_path / "clients").glob("*/client-0.safetensors")))
    assert np.isfinite(state["host"]["store"]["rows"]["residual"].numpy()).all()


def load_notes(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.metadata()["notes"]


def test_a_checkpoint_of_an_unknown_version_is_refused_in_one_line(old_run):
    (path,) = list_checkpoints(old_run / "checkpoint")
    save_file(load_file(path), path, {"notes": json.dumps({"format": 9, "written_by": "elastic-fl 7.1"})})
    message = r"round-000004.safetensors was written by elastic-fl 7.1 \(format 9\)"
    with pytest.raises(UserError, match=message) as error:
        resume(old_run)
    assert "\n" not in str(error.value)
    save_file(load_file(path), path, {"notes": json.dumps({"format": 3, "sha256": ""})})
    with pytest.raises(UserError, match=r"was written by elastic-fl 0.1 \(format 3\)"):
        resume(old_run)


def test_a_damaged_checkpoint_of_the_first_edition_is_named(old_run):
    (path,) = list_checkpoints(old_run / "checkpoint")
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        resume(old_run)


def as_format_5(path, rows):
    """Write a checkpoint as the version before did: sums of rows, no settings, a checksum that covers less."""
    from efl.client.state_store import Slot, _sum
    from efl.storage import _sha256, read_tensors

    texts, tensors = read_tensors(path)
    values = json.loads(texts["values"])
    del values["settings"], values["transport"]["host"]["store"]["checksum"]
    slots = tensors["transport/host/store/slots"].clone()
    for row in slots:
        kept = rows.read([Slot(int(row[1]), -1)])
        row[2] = _sum([matrix[0].numpy() for matrix in kept.values()])
    tensors["transport/host/store/slots"] = slots
    text = json.dumps(values)
    notes = {"format": 5, "written_by": "elastic-fl 0.1.0", "sha256": _sha256(tensors, text)}
    save_file(tensors, path, {"notes": json.dumps(notes), "values": text})


def test_a_run_of_the_format_before_resumes(tmp_path):
    from stopping import StopAt

    from efl import train
    from efl.client.state_store import RowsFile

    settings = {"rounds": 6, "cohort": 3, "local_steps": 2, "model": "linear", "track": {"checkpoint_every": 2}}
    expected = train(out=tmp_path / "whole", **settings).summary["model_sha256"]
    with pytest.raises(KeyboardInterrupt):
        train(out=tmp_path / "run", callbacks=[StopAt(3)], **settings)
    newest = list_checkpoints(tmp_path / "run" / "checkpoint")[-1]
    state = read_state(newest)
    assert len(state["transport"]["host"]["store"]["slots"])
    lengths = client_rows(tmp_path / "run")
    as_format_5(newest, RowsFile(lengths, tmp_path / "run" / "checkpoint" / "clients.rows"))
    assert resume(tmp_path / "run").summary["model_sha256"] == expected


def client_rows(path):
    """The rows that a client of this run keeps, and their lengths."""
    from efl.runs.directory import RunDirectory
    from efl.runs.setup import build

    return build(RunDirectory.open(path).experiment()).host().store.file.lengths
