"""Hands for a round's jobs: those of this process, or those of several processes, one thread each.

Worker processes are forked, so data and network are shared, not copied; the model of the round and all replies go
through shared memory, and only small things through pipes. Jobs are handed out longest first, the next one to whoever
is free; while there are many, each has the next already at hand. A worker that dies is replaced and its jobs done
again: a job changes nothing but a slot nobody else uses, so the result is the same.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import pickle
import signal
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from efl.client.worker import Hand, Job
from efl.errors import UserError
from efl.processes import set_up_worker

T = TypeVar("T")
log = logging.getLogger("efl")

MOST_DEATHS = 100  # of workers; whatever kills more is no accident
ROOM_A_PARAMETER = 16  # bytes of shared memory for the results of a job; what does not fit goes through the pipe
ROOM_AT_LEAST = 2**24
AT_HAND = 2  # jobs a worker may have; as many results find room


class Crew(Protocol):
    """Does jobs."""

    hands: int

    def tell(self, w: Tensor, buffers: Tensor) -> None:
        """The model that the next jobs are about."""
        ...

    def run(self, jobs: Sequence[Job[T]]) -> list[T]:
        """Do all jobs, whose costs should not increase; their results in the same order."""
        ...

    def close(self) -> None:
        """Send everybody home."""
        ...


class Alone:
    """The hands of this process."""

    hands = 1

    def __init__(self, hand: Hand) -> None:
        self.hand = hand

    def tell(self, w: Tensor, buffers: Tensor) -> None:
        """Nothing to share."""
        self.hand.w, self.hand.buffers = w, buffers

    def run(self, jobs: Sequence[Job[T]]) -> list[T]:
        """One after the other."""
        return [job.run(self.hand) for job in jobs]

    def close(self) -> None:
        """Nobody to send home."""


class Workers:
    """The hands of several processes."""

    def __init__(self, hand: Hand, count: int) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise UserError("engine.workers: this system cannot share data with worker processes; use 1")
        self.hand, self.hands = hand, count
        for told in (hand.w, hand.buffers):
            torch.Tensor.share_memory_(told)  # type: ignore[no-untyped-call]
        self._room = max(ROOM_AT_LEAST, ROOM_A_PARAMETER * len(hand.w))
        self.deaths = 0
        self._workers = [_Worker(hand, self._room) for _ in range(count)]

    def tell(self, w: Tensor, buffers: Tensor) -> None:
        """Put the model where all workers see it."""
        self.hand.w.copy_(w)
        self.hand.buffers.copy_(buffers)

    def run(self, jobs: Sequence[Job[T]]) -> list[T]:
        """The next job to whoever is free, the one after that as well while there are enough for everybody."""
        results: dict[int, T] = {}
        waiting = deque(range(len(jobs)))
        while len(results) < len(jobs):
            while waiting and (worker := self._free(len(waiting))) is not None:
                if worker.give(waiting[0], jobs[waiting[0]]):
                    waiting.popleft()
                else:
                    self._replace(worker, waiting)
            busy = {worker.pipe: worker for worker in self._workers if worker.jobs}
            for worker in [busy[pipe] for pipe in wait(list(busy)) if isinstance(pipe, Connection)]:
                try:
                    number, succeeded, result = worker.take()
                except (EOFError, OSError):
                    self._replace(worker, waiting)
                    continue
                if not succeeded:
                    raise result
                results[number] = result
        return [results[number] for number in range(len(jobs))]

    def _free(self, waiting: int) -> _Worker | None:
        """Who is to have the next job; nobody, if it had better wait for whoever is done first."""
        worker = min(self._workers, key=lambda worker: len(worker.jobs))
        return worker if len(worker.jobs) < (AT_HAND if waiting > self.hands else 1) else None

    def _replace(self, worker: _Worker, waiting: deque[int]) -> None:
        """Put another in the place of one that died; its jobs are the next."""
        code = worker.stop()
        log.warning("a worker died (exit code %s); its jobs are done again", code)
        waiting.extendleft(reversed(worker.jobs))
        self._workers[self._workers.index(worker)] = _Worker(self.hand, self._room)
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise UserError(f"{self.deaths} worker processes died (exit code {code}); try engine.workers=1")

    def close(self) -> None:
        """Stop all processes."""
        for worker in self._workers:
            worker.stop()


class _Worker:
    """A process, the pipe to it, the numbers of its jobs, and memory in which it leaves large results, in turn."""

    def __init__(self, hand: Hand, room: int) -> None:
        context = multiprocessing.get_context("fork")
        self.jobs: deque[int] = deque()
        self.memory = [mmap.mmap(-1, room) for _ in range(AT_HAND)]
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_work, args=(hand, theirs, self.pipe, self.memory), name="efl-worker", daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, number: int, job: Job[Any]) -> bool:
        """Hand over a job; False if nobody is there."""
        try:
            self.pipe.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.jobs.append(number)
        return True

    def take(self) -> tuple[int, bool, Any]:
        """The oldest job's number, whether it was done, and its result or the error.

        `EOFError` or `OSError` if the process is gone.
        """
        succeeded, head, sizes = self.pipe.recv()
        ends = accumulate(sizes)
        self.memory.append(self.memory.pop(0))
        with memoryview(self.memory[-1]) as memory:
            left = [memory[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            result = pickle.loads(head, buffers=left)
            for view in left:
                view.release()
        return self.jobs.popleft(), succeeded, result

    def stop(self) -> int | None:
        """End the process, whatever it does; its exit code."""
        self.pipe.close()
        self.process.kill()
        self.process.join()
        for memory in self.memory:
            memory.close()
        return self.process.exitcode


def _work(hand: Hand, pipe: Connection, parents: Connection, memories: Sequence[mmap.mmap]) -> None:
    """What a worker process does: jobs, until the pipe is closed."""
    parents.close()  # else the pipe would not end when the other process does
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    set_up_worker()
    for memory in cycle(memories):
        try:
            job: Job[Any] = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            succeeded, result = True, job.run(hand)
        except Exception as error:
            succeeded, result = False, error
        pipe.send((succeeded, *_packed(result, memory)))


def _packed(result: object, memory: mmap.mmap) -> tuple[bytes, list[int]]:
    """The result pickled, what is large in it left in ``memory``, and the sizes of what lies there."""
    sizes: list[int] = []

    def leave(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        start = sum(sizes)
        if start + raw.nbytes > len(memory):
            return True  # into the pickle itself
        memory[start : start + raw.nbytes] = raw
        sizes.append(raw.nbytes)
        return False

    return pickle.dumps(result, protocol=5, buffer_callback=leave), sizes
