"""Worker processes: the same model as without them, whatever happens to them."""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch

from efl import EFL, FedAvg, Fleet, UserError
from efl.client.executors import Workers
from efl.client.state_store import LastUpload, RowsFile, Seat, StateStore
from efl.config import parse
from efl.runs.loop import Run
from efl.runs.setup import prepare

FLEET = Fleet(stragglers=0.5, inactive=0.1, lost=0.1)


def run_of(federation, workers, algorithm=None, model="mlp", device="cpu", **training):
    table = {
        "federation": {"clients": len(federation)},
        "model": {"name": model},
        "training": {"rounds": 8, "local_steps": 4, "evaluate_every": 4, **training},
        "engine": {"workers": workers, "device": device},
    }
    return Run(prepare(parse(table), federation, None, algorithm or EFL(), FLEET))


def comparable(result):
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]
    return result.summary["model_sha256"], history


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", [EFL(), FedAvg(), EFL(density_up=1.0, density_down=1.0)])
def test_results_do_not_depend_on_the_number_of_workers(digits, model, algorithm):
    alone, *others = (comparable(run_of(digits, workers, algorithm, model).execute()) for workers in (1, 2, 3))
    assert others == [alone, alone]


def test_killed_workers_are_replaced_and_the_run_does_not_notice(digits):
    training = {"rounds": 150, "evaluate_every": 50, "local_steps": 10}
    expected = comparable(run_of(digits, 1, **training).execute())
    run = run_of(digits, 2, **training)
    crew, over = run.host.crew, threading.Event()
    killer = threading.Thread(target=kill_now_and_then, args=(crew, 20, over))
    killer.start()
    result = run.execute()
    over.set()
    killer.join()
    assert comparable(result) == expected
    assert crew.deaths == 20


def kill_now_and_then(crew, times, over):
    """Each death is noticed, then comes the next at a random moment."""
    rng = random.Random(0)
    for death in range(times):
        time.sleep(rng.random() * 0.02)
        os.kill(rng.choice(crew._workers).process.pid, signal.SIGKILL)
        while crew.deaths == death:
            if over.wait(0.0005):
                return


def test_an_error_in_a_worker_is_the_users_to_see(digits):
    run = run_of(digits, 2)

    def broken(work):
        raise ValueError("out of luck")

    object.__setattr__(run.host.algorithm, "local_update", broken)
    with pytest.raises(ValueError, match="out of luck"):
        run.execute()
    assert run.host._crew is None


def test_a_job_that_always_kills_its_worker_ends_the_run(digits, monkeypatch):
    monkeypatch.setattr("efl.client.executors.MOST_DEATHS", 3)
    run = run_of(digits, 2)
    object.__setattr__(run.host.algorithm, "local_update", lambda work: os._exit(9))
    with pytest.raises(UserError, match="worker processes died"):
        run.execute()


def test_no_process_is_left_behind(digits):
    run = run_of(digits, 2, rounds=2)
    crew = run.host.crew
    assert isinstance(crew, Workers)
    processes = [worker.process for worker in crew._workers]
    run.execute()
    assert not any(process.is_alive() for process in processes)


# Where clients' rows lie


def test_rows_come_back_from_their_slots(tmp_path):
    store = StateStore({"a": 5, "b": 5}, tmp_path / "rows")
    rows = {client: [torch.full((5,), float(client)), torch.arange(5.0) + client] for client in (7, 3)}
    for client, pair in rows.items():
        seat = store.seat(client)
        assert seat.read is None
        store.accept(client, seat, store.file.write(seat.write, pair), LastUpload(0, {}))
    got = store.file.read([store.look(3), store.look(99), store.look(7)])
    assert torch.equal(got["a"], torch.stack([rows[3][0], torch.zeros(5), rows[7][0]]))
    assert torch.equal(got["b"], torch.stack([rows[3][1], torch.zeros(5), rows[7][1]]))


def test_a_slot_that_a_kept_checkpoint_needs_is_not_written(tmp_path):
    store = StateStore({"a": 4}, tmp_path / "rows")
    rng = np.random.default_rng(0)
    snapshots = []
    for round_ in range(60):
        for client in rng.choice(10, 3, replace=False).tolist():
            seat, row = store.seat(client), torch.full((4,), float(100 * round_ + client))
            if rng.random() < 0.1:
                store.decline(seat)
            else:
                store.accept(client, seat, store.file.write(seat.write, [row]), LastUpload(round_, {}))
        if round_ % 4 == 0:
            everyone = store.file.read([store.look(client) for client in range(10)])["a"]
            snapshots.append((store.tensors(), everyone))
            store.kept()
        for tensors, expected in snapshots[-2:]:
            again = StateStore({"a": 4}, tmp_path / "rows")
            again.restore(tensors)
            assert torch.equal(again.file.read([again.look(client) for client in range(10)])["a"], expected)
    assert store.file.slots < 45  # ten clients, two checkpoints and what came since


def test_damaged_rows_are_noticed(tmp_path):
    file = RowsFile({"a": 4}, tmp_path / "rows")
    checksum = file.write(0, [torch.ones(4)])
    (tmp_path / "rows").write_bytes(b"\x00" * 16)
    with pytest.raises(UserError, match="damaged"):
        file.read([Seat(0, 1, checksum)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", [EFL(), EFL(fisher="true", step="explicit"), FedAvg()])
def test_a_cuda_device_comes_to_the_same_model_but_for_rounding(digits, model, algorithm):
    here = run_of(digits, 1, algorithm, model, rounds=3).execute()
    there = run_of(digits, 1, algorithm, model, device="cuda", rounds=3).execute()
    for ours, theirs in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-3)
