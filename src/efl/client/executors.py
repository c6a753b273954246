"""Runs a round's jobs: in this process, or in several worker processes, one thread each.

Worker processes are forked, so data and network are shared, not copied; the model of the round and all replies go
through shared memory, and only small things through pipes. Jobs are scheduled longest first, and one job is queued per
worker while there are many. A worker that dies, or that is at its job for much longer than any job took before, is
replaced and its jobs run again: a job changes nothing but a slot nobody else uses, so the result is the same.
"""

from __future__ import annotations

import logging
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, cycle, repeat
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from efl.client.worker import Worker
from efl.errors import UserError
from efl.processes import set_up_worker

J = TypeVar("J")
T = TypeVar("T")
Timeout = float | Literal["auto"]
log = logging.getLogger("efl")

MAX_DEATHS = 100  # of worker processes; whatever kills more is no accident
RESULT_BYTES = 16  # of shared memory per parameter for a job's results; what does not fit goes through the pipe
LEAST_RESULT_BYTES = 2**24
QUEUED = 2  # jobs a worker may have; as many results find room
LEAST_TIMEOUT = 60.0  # seconds that any job may take
FIRST_TIMEOUT = 600.0  # as long as none has been finished
TIMES_LONGEST = 20.0  # the longest job so far, as which one may take at most


class Executor(Protocol):
    """Runs jobs."""

    @property
    def size(self) -> int:
        """How many jobs run at the same time."""
        ...

    def set_model(self, w: Tensor, buffers: Tensor) -> None:
        """The model that the next jobs start from."""
        ...

    def map(self, function: Callable[[Worker, J], T], jobs: Sequence[J]) -> Iterable[T]:
        """The results of all jobs, in order; their costs should not increase."""
        ...

    def close(self) -> None:
        """Stop the processes, if any."""
        ...


class SerialExecutor:
    """Runs jobs in this process, one after the other."""

    size = 1

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def set_model(self, w: Tensor, buffers: Tensor) -> None:
        """The model that the next jobs start from."""
        self.worker.w, self.worker.buffers = w, buffers

    def map(self, function: Callable[[Worker, J], T], jobs: Sequence[J]) -> Iterable[T]:
        """Each job runs when its result is asked for."""
        return map(function, repeat(self.worker), jobs)

    def close(self) -> None:
        """There are no processes to stop."""


class ProcessExecutor:
    """Runs jobs in several processes; ``timeout`` is how many seconds a job may take, by default from those before."""

    def __init__(self, worker: Worker, size: int, timeout: Timeout = "auto") -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError("engine.workers: this system cannot share data with worker processes; use 1")
        self.worker, self.size = worker, size
        for shared in (worker.w, worker.buffers):
            torch.Tensor.share_memory_(shared)  # type: ignore[no-untyped-call]
        self._memory = max(LEAST_RESULT_BYTES, RESULT_BYTES * len(worker.w))
        self.deaths = 0
        self.timeout, self.longest, self.patience = timeout, 0.0, 1.0
        self.processes = [_Process(worker, self._memory) for _ in range(size)]

    def set_model(self, w: Tensor, buffers: Tensor) -> None:
        """Put the model where all workers see it."""
        self.worker.w.copy_(w)
        self.worker.buffers.copy_(buffers)

    def map(self, function: Callable[[Worker, J], T], jobs: Sequence[J]) -> Iterable[T]:
        """The next job to the process with the fewest."""
        self._renew_unfinished()
        results: dict[int, T] = {}
        waiting = deque(range(len(jobs)))
        while len(results) < len(jobs):
            while waiting and (process := self._free(len(waiting))) is not None:
                if process.give(waiting[0], function, jobs[waiting[0]], self.limit):
                    waiting.popleft()
                else:
                    self._replace(process, waiting)
            for process in self._done(waiting):
                try:
                    number, succeeded, result = process.take()
                except (EOFError, OSError):
                    self._replace(process, waiting)
                    continue
                self.longest, self.patience = max(self.longest, process.last_seconds), 1.0
                if not succeeded:
                    raise result
                results[number] = result
        return [results[number] for number in range(len(jobs))]

    def _renew_unfinished(self) -> None:
        """Nobody waits any more for the jobs of a call that an error or an interruption ended."""
        for process in [process for process in self.processes if process.jobs]:
            process.stop()
            self.processes[self.processes.index(process)] = _Process(self.worker, self._memory)

    @property
    def limit(self) -> float:
        """How many seconds a job may take now: more after each worker that was replaced for it in a row."""
        if self.timeout != "auto":
            return self.timeout * self.patience
        usual = max(LEAST_TIMEOUT, TIMES_LONGEST * self.longest)
        return self.patience * (usual if self.longest else max(FIRST_TIMEOUT, usual))

    def _done(self, waiting: deque[int]) -> list[_Process]:
        """The processes that have a result, once some have; those that take too long for theirs are replaced."""
        busy = {process.pipe: process for process in self.processes if process.jobs}
        if not busy:
            return []
        left = min(process.since for process in busy.values()) + self.limit - time.monotonic()
        ready = [busy[pipe] for pipe in wait(list(busy), max(0.0, left)) if isinstance(pipe, Connection)]
        limit, now = self.limit, time.monotonic()
        for process in [process for process in busy.values() if process not in ready and now - process.since > limit]:
            log.warning("a worker process has been at one job for %.0f s: it hangs, or is stopped", now - process.since)
            self._replace(process, waiting)
            self.patience = 2 * self.patience
        return ready

    def _free(self, waiting: int) -> _Process | None:
        """The process to have the next job; None if it should wait for whichever is done first."""
        process = min(self.processes, key=lambda process: len(process.jobs))
        return process if len(process.jobs) < (QUEUED if waiting > self.size else 1) else None

    def _replace(self, process: _Process, waiting: deque[int]) -> None:
        """Start another process in place of one that died; its jobs are the next."""
        code = process.stop()
        log.warning("a worker process was replaced (exit code %s); its jobs run again", code)
        waiting.extendleft(reversed(process.jobs))
        self.processes[self.processes.index(process)] = _Process(self.worker, self._memory)
        self.deaths += 1
        if self.deaths > MAX_DEATHS:
            raise UserError(f"{self.deaths} worker processes died (exit code {code}); try engine.workers=1")

    def close(self) -> None:
        """Stop all processes."""
        for process in self.processes:
            process.stop()


class _Process:
    """A process, the pipe to it, the numbers of its jobs, and memory in which it leaves large results, in turn."""

    def __init__(self, worker: Worker, memory: int) -> None:
        context = multiprocessing.get_context("fork")
        self.jobs: deque[int] = deque()
        self.since = self.last_seconds = 0.0  # when its job began, about; how long the one before took
        self.limit = math.nan  # seconds that the system waits for the pipe
        self.memory = [mmap.mmap(-1, memory) for _ in range(QUEUED)]
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_run_jobs, args=(worker, theirs, self.pipe, self.memory), name="efl-worker", daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, number: int, function: Callable[[Worker, J], T], job: J, limit: float) -> bool:
        """Send a job; False if the process is gone, or does not take it for ``limit`` seconds."""
        if limit != self.limit:
            _limit_waiting(self.pipe, limit)
            self.limit = limit
        try:
            self.pipe.send((function, job))
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            return False
        if not self.jobs:
            self.since = time.monotonic()
        self.jobs.append(number)
        return True

    def take(self) -> tuple[int, bool, Any]:
        """The oldest job's number, whether it succeeded, and its result or the error.

        `EOFError` or `OSError` if the process is gone.
        """
        succeeded, head, sizes = self.pipe.recv()
        now = time.monotonic()
        self.last_seconds, self.since = now - self.since, now
        ends = accumulate(sizes)
        self.memory.append(self.memory.pop(0))
        left = [self.memory[-1][end - size : end] for end, size in zip(ends, sizes, strict=True)]  # copies
        return self.jobs.popleft(), succeeded, pickle.loads(head, buffers=left)

    def stop(self) -> int | None:
        """End the process, whatever it does; its exit code."""
        self.pipe.close()
        self.process.kill()
        self.process.join()
        for memory in self.memory:
            memory.close()
        return self.process.exitcode


def _limit_waiting(pipe: Connection, seconds: float) -> None:
    """From now on the system gives up sending and receiving through the pipe, a socket, after so many seconds.

    A process that is stopped in the middle of a long message would otherwise block the one at the other end.
    """
    microseconds = max(1, int(min(seconds, 10**6) * 10**6))  # zero would be no limit
    limit = struct.pack("ll", *divmod(microseconds, 10**6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _run_jobs(worker: Worker, pipe: Connection, parents: Connection, memories: Sequence[mmap.mmap]) -> None:
    """What a worker process does: jobs, until the pipe is closed."""
    parents.close()  # else the pipe would not end when the other process does
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    set_up_worker()
    for memory in cycle(memories):
        try:
            function, job = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            succeeded, result = True, function(worker, job)
        except Exception as error:
            succeeded, result = False, _portable(error)
        pipe.send((succeeded, *_packed(result, memory)))


def _portable(error: Exception) -> Exception:
    """The error, or if it is of a kind that does not get through a pipe, what it says."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _packed(result: object, memory: mmap.mmap) -> tuple[bytes, list[int]]:
    """The result pickled, what is large in it left in ``memory``, and the sizes of what lies there."""
    sizes: list[int] = []

    def leave(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        start = sum(sizes)
        if start + raw.nbytes > len(memory) or not isinstance(raw.obj, bytes):
            return True  # into the pickle itself: an array would be read from here even after the next job wrote here
        memory[start : start + raw.nbytes] = raw
        sizes.append(raw.nbytes)
        return False

    return pickle.dumps(result, protocol=5, buffer_callback=leave), sizes
