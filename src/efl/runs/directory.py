"""A run directory: the files a run leaves."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from efl.config import Experiment, parse
from efl.errors import UserError
from efl.runs.records import with_aliases
from efl.settings import read_toml
from efl.storage import PART, write_atomically

Record = dict[str, Any]
LOOK_AGAIN = 0.2  # seconds, while another process has the run


class RunDirectory:
    """Where a run keeps its experiment, metrics, checkpoints, summary and pictures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics, self.summary = path / "config.toml", path / "metrics.jsonl", path / "summary.json"
        self.checkpoints = path / "checkpoint"
        self.state = self.checkpoints / "clients.rows"
        self.model = path / "model.safetensors"
        self.name = path / "run-id"  # by which clients on other machines know the run, and keep what they have of it

    @classmethod
    def create(cls, path: str | os.PathLike[str], experiment: Experiment) -> RunDirectory:
        """A new directory for this experiment; one that already holds something is left alone."""
        directory = cls(Path(path))
        if directory.path.exists() and not directory._is_unused():
            what = "already holds a run" if directory.config.exists() else "is not empty"
            hint = f", or go on with: efl resume {path}" if directory.config.exists() else ""
            raise UserError(f"{path} {what}; choose another --out{hint}")
        try:
            directory.checkpoints.mkdir(parents=True, exist_ok=True)
            write_atomically(directory.config, experiment.to_toml().encode())
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        return directory

    def _is_unused(self) -> bool:
        """Whether there is nothing here but what `create` leaves if it is killed."""
        if not self.path.is_dir():
            return False
        mine = {self.checkpoints, *self.path.glob(f"{self.config.name}.*{PART}")}
        return {*self.path.iterdir()} <= mine and not (self.checkpoints.is_dir() and any(self.checkpoints.iterdir()))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """The directory of an earlier run."""
        directory = cls(Path(path))
        if not directory.config.is_file():
            raise UserError(f"{path} is not a run directory (it has no config.toml)")
        return directory

    @contextmanager
    def in_use(self, patience: float = 0.0) -> Iterator[None]:
        """Within, the run is ours; `UserError` if another process works on it, and does so for ``patience`` seconds.

        The system lets go of the lock when the process ends, however it ends. Not all network drives have locks; there
        nobody is held up.
        """
        with open(self.config, "rb+") as file:
            end = time.monotonic() + patience
            while not _locked(file):
                if time.monotonic() >= end:
                    raise UserError(f"{self.path}: another process is at work on this run; let it finish, or stop it")
                time.sleep(LOOK_AGAIN)
            yield

    def experiment(self) -> Experiment:
        """The experiment the run was started with."""
        return parse(read_toml(self.config))

    def read_summary(self) -> Record | None:
        """The summary, once the run has ended."""
        try:
            summary: Record = json.loads(self.summary.read_text())
        except FileNotFoundError:
            return None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise UserError(f"{self.summary}: damaged; delete it and run: efl resume {self.path}") from None
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The last thing a run writes."""
        write_atomically(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def history(self, rounds: int | None = None) -> list[Record]:
        """The metrics of the first ``rounds`` rounds (default: all), up to a line that a crash cut short."""
        lines = self.metrics.read_text(errors="replace").splitlines() if self.metrics.exists() else []
        records: list[Record] = []
        for line in lines:
            try:
                records.append(with_aliases(json.loads(line)))
            except json.JSONDecodeError:
                break
        if rounds is not None:
            records = records[:rounds]
            if len(records) < rounds:
                raise UserError(
                    f"{self.metrics}: damaged, it has {len(records)} of {rounds} rounds; "
                    f"delete {self.path if self.name.exists() else self.checkpoints} to start the run over"
                )
        return records


class MetricsFile:
    """metrics.jsonl, a line per round."""

    def __init__(self, path: Path, records: Iterable[Record]) -> None:
        """Start over with ``records``, dropping lines written after the checkpoint a run resumes from."""
        lines = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(path, lines.encode())
        self._file = open(path, "a")  # noqa: SIM115  open for as long as the run

    def append(self, record: Record) -> None:
        """Add a round."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Make sure all rounds so far are on disk: a checkpoint relies on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No more rounds."""
        self._file.close()


def _locked(file: IO[bytes]) -> bool:
    """Whether the file is ours now, or there are no locks here."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def new_directory(name: str, parent: str | os.PathLike[str] = "runs") -> Path:
    """runs/NAME-1, or the next number that is free."""
    clean = "".join(c if c.isalnum() or c in ".-" else "-" for c in name)
    number = 1
    while (Path(parent) / f"{clean}-{number}").exists():
        number += 1
    return Path(parent) / f"{clean}-{number}"


def refuse_run_directory(path: Path) -> None:
    """Raise `UserError` if a comparison would be written over a single run."""
    if (path / "config.toml").exists():
        raise UserError(f"{path} already holds a run; choose another --out")
