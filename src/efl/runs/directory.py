"""A run directory: the files a run leaves."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from efl.config import Experiment, parse
from efl.errors import UserError
from efl.reading import DamagedError, parse_json, read_bytes, read_text, readable
from efl.runs.records import check_record, check_summary, with_aliases
from efl.settings import read_toml
from efl.storage import PART, write_atomically

Record = dict[str, Any]
LOOK_AGAIN = 0.2  # seconds, while another process has the run
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)  # what drives without locks say
LARGEST_METRICS = 2**32  # bytes


class RunDirectory:
    """Where a run keeps its experiment, metrics, checkpoints, summary and pictures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config, self.metrics, self.summary = path / "config.toml", path / "metrics.jsonl", path / "summary.json"
        self.checkpoints = path / "checkpoint"
        self.state = self.checkpoints / "clients.rows"
        self.model = path / "model.safetensors"
        self.lock = path / "lock"  # nobody writes or replaces it: who has it open and locked has the run
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

        The system lets go of the lock when the process ends, however it ends; worker processes do not inherit it. Not
        all network drives have locks; there nobody is held up. Who only asks `is_in_use` has the lock for a moment, so
        it is tried more than once.
        """
        lock = FileLock(
            self.lock, timeout=max(patience, 2 * LOOK_AGAIN), poll_interval=LOOK_AGAIN, fallback_to_soft=False
        )
        try:
            lock.acquire()
        except Timeout:
            raise UserError(f"{self.path}: another process is at work on this run; let it finish, or stop it") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise UserError(f"{self.lock}: cannot be locked ({error.strerror})") from None
        try:
            yield
        finally:
            lock.release()

    def is_in_use(self) -> bool | None:
        """Whether a process works on the run; None where that cannot be known, as on drives without locks.

        Nothing is written. A run that starts at this very moment waits `LOOK_AGAIN` seconds for us.
        """
        try:
            import fcntl
        except ImportError:
            return None
        try:
            with open(self.lock, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError:
            return None
        return False

    def experiment(self) -> Experiment:
        """The experiment the run was started with."""
        return parse(read_toml(self.config))

    def read_summary(self) -> Record | None:
        """The summary, once the run has ended."""
        if not os.path.lexists(self.summary):
            return None
        with readable(self.summary, f"delete it and run: efl resume {self.path}"):
            return check_summary(parse_json(read_text(self.summary)))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The last thing a run writes."""
        write_atomically(self.summary, (json.dumps(summary, indent=2) + "\n").encode())

    def history(self, rounds: int | None = None) -> list[Record]:
        """The metrics of the first ``rounds`` rounds (default: all, but for a last line that a crash cut short)."""
        over = f"delete {self.path if self.name.exists() else self.checkpoints} to start the run over"
        lines: list[bytes] = []
        if os.path.lexists(self.metrics):
            with readable(self.metrics, over):
                lines = read_bytes(self.metrics, LARGEST_METRICS).splitlines()
        records: list[Record] = []
        for number, line in enumerate(lines[:rounds]):
            try:
                records.append(parse_record(line, number))
            except DamagedError as error:
                if rounds is None and number < len(lines) - 1:
                    raise UserError(f"{self.metrics}:{number + 1}: damaged ({error}); {over}") from None
                break
        if rounds is not None and len(records) < rounds:
            raise UserError(f"{self.metrics}: damaged, it has {len(records)} of {rounds} rounds; {over}")
        return records


def parse_record(line: bytes, number: int) -> Record:
    """A line of metrics.jsonl, for the round of this number; `DamagedError` if it cannot be one."""
    return with_aliases(check_record(parse_json(line), number))


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
