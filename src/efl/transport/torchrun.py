"""More than one machine: `torchrun … -m efl run …` starts the same command on each, as ranks that share the clients.

Rank 0 leads the run. Client k lives on rank k modulo the number of ranks, with its state, so data and state stay where
they are; requests and replies travel, the same bytes as on one machine, and the result is the same. Each rank may have
worker processes of its own. What ranks tell each other besides goes through PyTorch's gloo, which works everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from efl.algorithms.base import Algorithm
from efl.client.host import ClientHost
from efl.client.worker import Briefing
from efl.errors import UserError
from efl.runs.checkpoint import load_clients, save_clients
from efl.training.trainer import Trainer

LEADER = 0


def rank() -> int:
    """Which rank this process is; 0 without torchrun."""
    return int(os.environ.get("RANK", "0")) if ranks() > 1 else LEADER


def ranks() -> int:
    """How many there are; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def join() -> None:
    """Meet the other ranks."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")


class LeadingHost(ClientHost):
    """Rank 0's own clients, and through it those of all other ranks."""

    def __init__(self, algorithm: Algorithm, trainer: Trainer, workers: int = 1, state: Path | None = None) -> None:
        super().__init__(algorithm, trainer, workers, state)
        join()
        self.others = range(1, ranks())
        for other in self.others:
            _send(None if state is None else str(state), other)

    def answer(self, requests: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """Everybody's replies."""
        shares = {r: {c: blob for c, blob in requests.items() if c % ranks() == r} for r in range(ranks())}
        self._ask("answer", {other: (shares[other], {c: steps[c] for c in shares[other]}) for other in self.others})
        replies = super().answer(shares[LEADER], steps)
        for answers in self._hear():
            replies |= answers
        return replies

    def score_own(
        self, personal: Mapping[int, bytes | None], briefing: Briefing, w: Tensor, buffers: Tensor
    ) -> dict[int, float]:
        """Everybody's own models."""
        shares = {r: {c: told for c, told in personal.items() if c % ranks() == r} for r in range(ranks())}
        self._ask("score_own", {other: (shares[other], briefing, w, buffers) for other in self.others})
        scores = super().score_own(shares[LEADER], briefing, w, buffers)
        for more in self._hear():
            scores |= more
        return scores

    def keep(self, rounds: int) -> None:
        """All other ranks keep their clients' state."""
        self._ask("keep", dict.fromkeys(self.others, (rounds,)))
        self._hear()

    def restore(self, rounds: int) -> None:
        """All other ranks take over the state they kept."""
        self._ask("restore", dict.fromkeys(self.others, (rounds,)))
        self._hear()

    def close(self) -> None:
        """Let the other ranks go home."""
        super().close()
        if dist.is_initialized():
            for other in self.others:
                try:
                    _send(("close", ()), other)
                except RuntimeError:
                    continue  # it has gone already
            dist.destroy_process_group()

    def _ask(self, what: str, whom: Mapping[int, tuple[Any, ...]]) -> None:
        for other, arguments in whom.items():
            with _expected(other):
                _send((what, arguments), other)

    def _hear(self) -> list[Any]:
        heard: list[Any] = []
        for other in self.others:
            with _expected(other):
                heard.append(_receive(other))
        for result in heard:
            if isinstance(result, Exception):
                raise result
        return heard


@contextmanager
def _expected(other: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        raise UserError(f"rank {other} is gone; start all of them again with: torchrun … -m efl resume DIR") from None


class FollowingHost(ClientHost):
    """The clients of another rank, which keep their state on this machine."""

    path: Path | None = None

    @classmethod
    def told(cls, algorithm: Algorithm, trainer: Trainer, workers: int) -> FollowingHost:
        """As the leader says."""
        join()
        state = _receive(LEADER)
        path = None if state is None else Path(state).with_suffix(f".rank{rank()}")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        host = cls(algorithm, trainer, workers, path)
        host.path = path
        return host

    def keep(self, rounds: int) -> None:
        """Beside the file with their rows."""
        if self.path is not None:
            save_clients(self.path.with_suffix(f"{self.path.suffix}.state"), rounds, self)

    def restore(self, rounds: int) -> None:
        """The same way."""
        if self.path is not None:
            load_clients(self.path.with_suffix(f"{self.path.suffix}.state"), rounds, self)

    def serve(self) -> None:
        """Do as told, until told to stop."""
        while True:
            try:
                what, arguments = _receive(LEADER)
            except RuntimeError:
                raise UserError("rank 0 is gone") from None
            if what == "close":
                self.close()
                dist.destroy_process_group()
                return
            try:
                result = getattr(self, what)(*arguments)
            except Exception as error:  # the leader's to handle
                result = error
            _send(result, LEADER)


def _send(message: object, to: int) -> None:
    dist.send_object_list([message], to)


def _receive(source: int) -> Any:
    box: list[Any] = [None]
    dist.recv_object_list(box, source)
    return box[0]
