"""More than one machine: `torchrun … -m efl run …` starts the same command on each, as ranks that share the clients.

Rank 0 leads the run. Client k lives on rank k modulo the number of ranks, with its data and its rows; requests and
replies travel, the same bytes as on one machine, and the result is the same. Each rank may have worker processes of its
own. Ranks talk through PyTorch's gloo, which works everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from efl.client.evaluation import EvaluateRequests, Metrics
from efl.client.host import ClientHost
from efl.errors import UserError

LEADER = 0
CLOSE = "close"


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


class RankedHosts:
    """The hosts of all ranks, as rank 0 uses them: its own, and through messages the others."""

    def __init__(self, host: ClientHost, state: Path | None = None) -> None:
        join()
        self.host, self.others = host, range(1, ranks())
        for other in self.others:
            _send(None if state is None else str(state), other)

    def train(self, blobs: Mapping[int, bytes], steps: Mapping[int, int]) -> dict[int, bytes]:
        """The replies of all ranks' clients."""
        shares = [{c: blob for c, blob in blobs.items() if c % ranks() == r} for r in range(ranks())]
        self._request("train", [(share, {c: steps[c] for c in share}) for share in shares])
        replies = self.host.train(shares[LEADER], steps)
        for more in self._results():
            replies |= more
        return replies

    def evaluate(self, requests: EvaluateRequests) -> Metrics:
        """What clients find of a model, all ranks at the same time."""
        owner = requests.clients % ranks()
        shares = [requests.only(requests.clients[owner == r]) for r in range(ranks())]
        self._request("evaluate", [(share,) for share in shares])
        found = [self.host.evaluate(shares[LEADER]) if len(shares[LEADER].clients) else {}, *self._results()]
        names = {name for metrics in found for name in metrics}
        merged = {name: np.full((2, len(owner)), np.nan) for name in names}
        for r, metrics in enumerate(found):
            for name, columns in metrics.items():
                merged[name][:, owner == r] = columns
        return {name: (sums, weights) for name, (sums, weights) in merged.items()}

    def start(self) -> None:
        """Start this rank's worker processes; the others start theirs."""
        self.host.start()

    def state_dict(self) -> dict[str, Any]:
        """The state of every rank's host; the rows stay where they are."""
        self._request("state_dict", [()] * ranks())
        states = [self.host.state_dict(), *self._results()]
        return {"ranks": ranks(), **{f"rank{r}": state for r, state in enumerate(states)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        check_ranks(state)
        self._request("load_state_dict", [(state[f"rank{r}"],) for r in range(ranks())])
        self.host.load_state_dict(state[f"rank{LEADER}"])
        self._results()

    def checkpointed(self) -> None:
        """The state was saved in a checkpoint."""
        self._request("checkpointed", [()] * ranks())
        self.host.checkpointed()
        self._results()

    def close(self) -> None:
        """Stop worker processes and the other ranks."""
        self.host.close()
        if dist.is_initialized():
            for other in self.others:
                try:
                    _send((CLOSE, ()), other)
                except RuntimeError:
                    continue  # it has gone already
            dist.destroy_process_group()

    def _request(self, method: str, arguments: list[tuple[Any, ...]]) -> None:
        for other in self.others:
            with _present(other):
                _send((method, arguments[other]), other)

    def _results(self) -> list[Any]:
        results: list[Any] = []
        for other in self.others:
            with _present(other):
                results.append(_receive(other))
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


def check_ranks(state: Mapping[str, Any]) -> None:
    """Raise `UserError` if a run is resumed with another number of ranks than it was started with."""
    if (before := int(state.get("ranks", 1))) != ranks():
        raise UserError(f"it is of a run with {before} ranks, now there are {ranks()}; resume it with as many")


def serve(make_host: Callable[[Path | None], ClientHost]) -> None:
    """Be a rank other than 0: serve its requests until the run is over.

    Args:
        make_host: Makes the host of this rank's clients, whose rows go into the file it is given.
    """
    join()
    state = _receive(LEADER)
    path = None if state is None else Path(state).with_suffix(f".rank{rank()}")
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    host = make_host(path)
    while True:
        try:
            method, arguments = _receive(LEADER)
        except RuntimeError:
            raise UserError("rank 0 is gone") from None
        if method == CLOSE:
            host.close()
            dist.destroy_process_group()
            return
        try:
            result = _call(host, method, arguments)
        except Exception as error:  # rank 0 raises it
            result = error
        _send(result, LEADER)


def _call(host: ClientHost, method: str, arguments: tuple[Any, ...]) -> Any:
    if method == "evaluate" and not len(arguments[0].clients):
        return {}
    return getattr(host, method)(*arguments)


@contextmanager
def _present(other: int) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        raise UserError(f"rank {other} is gone; start all of them again with: torchrun … -m efl resume DIR") from None


def _send(message: object, to: int) -> None:
    dist.send_object_list([message], to)


def _receive(source: int) -> Any:
    box: list[Any] = [None]
    dist.recv_object_list(box, source)
    return box[0]
