"""Runs for scripts/golden.py, and a hash of what their clients keep."""

import hashlib

from grids import served
from safetensors.torch import load_file

from efl.algorithms import every_name as all_names
from efl.config import parse
from efl.runs.loop import Run
from efl.runs.setup import build

__all__ = ["all_names", "grid_run", "local_run"]


def local_run(table):
    """The summary of a run on this machine by one worker, and a hash of its clients' state."""
    table = {**table, "engine": {**table.get("engine", {}), "workers": 1}}
    setup = build(parse(table))
    run = Run(setup)
    summary = run.execute().summary
    store = run.coordinator.transport.host.store
    state = []
    for client in range(len(setup.federation)):
        rows = store.file.read([store.current(client)])
        state.append([row[0] for row in rows.values()])
        upload = store.last_upload(client)
        state[-1] += [upload.round.to_bytes(4, "little", signed=True), *upload.parts.values()]
    return summary, digest(state)


def grid_run(config, where):
    """The same over the stand-in for Flower's grid, without the defence of deployments."""
    run, _, _ = served(where, {**config, "training.robust": "none"})
    summary = run.execute().summary
    files = [load_file(path) for path in sorted(where.glob("clients/*/client-*.safetensors"))]
    return summary, digest([[file[name] for name in file if name.startswith("host/store/rows/")] for file in files])


def digest(state):
    """A hash of each client's vectors and bytes, whatever they are called; vectors of zeros count for nothing."""
    total = hashlib.sha256()
    for kept in state:
        blobs = [item if isinstance(item, bytes) else item.numpy().tobytes() for item in kept]
        total.update(b"".join(sorted(hashlib.sha256(blob).digest() for blob in blobs if any(blob))))
        total.update(b"|")
    return total.hexdigest()
