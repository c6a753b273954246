"""What an algorithm is: hyper-parameters and a few functions, no hidden state.

In the order things happen in a round: the server says something (`broadcast`), clients work (`local_update`),
the server makes its next state and one payload by which every copy of the model changes (`aggregate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.components.elastic import Pull, RunningFisher
from efl.models import Batches, FlatModel, Rows
from efl.wire import Layout, Payload

Parts = dict[str, Payload]
UploadTypes = dict[str, type[Payload]]

UNINTERRUPTED = 4 * 10**9  # multiplications of compiled code, after which a Ctrl-C is heard: a few tenths of a second
SAMPLES_AT_ONCE = 250  # in a gradient over all of a client's samples
HOME = torch.device("cpu")


def unhurried() -> bool:
    """There is always time left."""
    return True


@dataclass(frozen=True)
class ServerState:
    """The model every client can be brought to, and whatever else the algorithm keeps, by name."""

    w: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    def having(self, **tensors: Tensor) -> ServerState:
        """The state with some tensors replaced."""
        return replace(self, tensors={**self.tensors, **tensors})


@dataclass(frozen=True)
class RoundSettings:
    """What server and clients agree on for one round: τ, η_τ, E, B, and where the model's tensors lie."""

    round: int
    eta: float
    local_steps: int
    batch_size: int
    layout: Layout


@dataclass(frozen=True)
class Contribution:
    """What one client sent, and how it came to be heard.

    Its sample count n_k and share p^k, the probability of being asked and the observed rate of answering (their
    product is π_k), and the steps s it did.
    """

    client: int
    size: int
    share: float
    asked: float
    answers: float
    steps_done: int
    parts: Parts


@dataclass(eq=False)
class LocalWork:
    """The work of some clients in one round, one row each, longest work first; ``W`` (C, n) is moved in place.

    ``lost`` has, for a client whose last upload never reached the server, what it sent in vain (those parts that the
    algorithm asked to remember), and None for all others. ``last`` is the round of each client's last upload, −1 before
    the first. ``personal`` is what the server told each client alone, ``data`` all samples of a row's client. Once
    there is no ``time_left`` work stops, after one step at least, and ``steps`` are those that were done.
    ``compiled`` are the same mini-batches for compiled code, where there is such.

    While steps are taken, all of it lies on the model's device; after the last step, on the CPU.
    """

    rows: Rows
    start: Tensor
    settings: RoundSettings
    steps: np.ndarray[tuple[int], np.dtype[np.int64]]
    state: dict[str, Tensor]
    lost: list[Parts | None]
    shared: Parts
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    samples: Callable[[int], tuple[Tensor, Tensor, Tensor, list[int]]]
    last: NDArray[np.int64]
    personal: list[Payload | None]
    data: Callable[[int], tuple[Tensor, Tensor]]
    time_left: Callable[[], bool] = unhurried
    compiled: Batches | None = None

    def __post_init__(self) -> None:
        self.W = self.rows.W
        self.own = self.W  # the models clients use themselves, if not those they trained: `local_update` may say so
        self.losses = torch.zeros(len(self.steps))
        self._move(self.model.device)

    @property
    def model(self) -> FlatModel:
        """The network."""
        return self.rows.model

    @property
    def steps_done(self) -> Tensor:
        """S as a tensor (C,)."""
        return torch.from_numpy(self.steps).to(self.W.device)

    @property
    def new(self) -> Tensor:
        """Which rows (C,) work for the first time; what they keep is still zero."""
        return torch.from_numpy(self.last < 0).to(self.W.device)

    @property
    def arrived(self) -> Tensor:
        """Which rows (C,) have worked before, and their last upload reached the server."""
        return ~self.new & torch.tensor([lost is None for lost in self.lost], device=self.W.device)

    @property
    def away(self) -> Tensor:
        """How many rounds (C, 1) ago each row's last upload was; 1: in the round before."""
        return torch.from_numpy(np.maximum(self.settings.round - self.last, 1)).unsqueeze(1).to(self.W.device)

    def beside(self) -> Rows:
        """Models of the same clients at ``start``, whose gradients `descent` can find on the same mini-batches."""
        return self.model.rows(self.start, len(self.steps), batched=self.rows.batched)

    def full_gradient(self) -> tuple[Tensor, Tensor]:
        """∇f_k (C, n) and f_k (C,) at ``start`` over all samples; a client at a time, so company changes nothing."""
        one = self.model.rows(self.start, 1, batched=self.rows.batched)
        gradients, losses = torch.zeros_like(one.G.expand_as(self.W)), torch.zeros_like(self.losses)
        for row, total in enumerate(gradients):
            x, y = (part.to(self.model.device) for part in self.data(row))
            for first in range(0, len(x), SAMPLES_AT_ONCE):
                some = slice(first, first + SAMPLES_AT_ONCE)
                losses[row] += one.gradient(1, x[None, some], y[None, some])[0] * (len(x[some]) / len(x))
                total.add_(one.G[0], alpha=len(x[some]) / len(x))
        self._move(HOME)
        return gradients.cpu(), losses.cpu()

    def descent(self, *beside: Rows) -> Iterator[tuple[int, Tensor]]:
        """For every step: how many rows are still at work (the first ones), and the gradient of f_k there.

        The loop body moves ``work.W[:active]`` as the algorithm demands. Rows ``beside`` these get their gradients in
        their own ``G``.
        """
        for step, active in self._at_work():
            x, y = self.batch(step, active)
            self.losses[:active] += self.rows.gradient(active, x, y)
            for other in beside:
                other.gradient(active, x, y)
            yield active, self.rows.G[:active]
        self._finish()

    def sgd(self, pull: Pull | None = None, fisher: RunningFisher | None = None) -> None:
        """All steps of plain SGD, W −= η∇f_k, each followed by the ``pull``; ``fisher`` watches some of the gradients.

        With E = 1 a client by itself does what `torch.optim.SGD` does, to the last bit.
        """
        if self.compiled is None:
            self._eager_sgd(pull, fisher)
        else:
            self._compiled_sgd(self.compiled, pull, fisher)
        self._finish()

    def _eager_sgd(self, pull: Pull | None, fisher: RunningFisher | None) -> None:
        eta, alone = self.settings.eta, self.settings.local_steps == 1 and not self.rows.batched
        for step, active in self._at_work():
            x, y = self.batch(step, active)
            squares = fisher.squares if fisher is not None and fisher.watches(step) else None
            if alone and squares is None:
                self.losses[:active] += self.rows.gradient(active, x, y)
                self.W[:active].sub_(self.rows.G[:active], alpha=eta)
            else:
                self.losses[:active] += self.rows.descend(active, x, y, eta, squares)
            if pull is not None:
                pull(self.W[:active])

    def _compiled_sgd(self, batches: Batches, pull: Pull | None, fisher: RunningFisher | None) -> None:
        """Many steps in one go, or step by step where time may be up."""
        assert self.model.compiled is not None
        a_step = self.W.numel() * self.settings.batch_size
        at_once = max(1, UNINTERRUPTED // a_step) if self.time_left is unhurried else 1
        steps, most = torch.from_numpy(self.steps), int(self.steps[0])
        for first, _ in self._at_work(at_once):
            self.model.compiled.train(
                batches,
                self.W,
                steps,
                range(first, min(first + at_once, most)),
                self.settings.eta,
                None if pull is None else (pull.index, pull.keep, pull.shift),
                None if fisher is None else fisher.squares,
                RunningFisher.EVERY,
                self.losses,
            )

    def _finish(self) -> None:
        self.losses /= self.steps_done.clamp(min=1)
        self._move(HOME)

    def _move(self, device: torch.device) -> None:
        self.W, self.start, self.losses = (tensor.to(device) for tensor in (self.W, self.start, self.losses))
        self.state = {name: rows.to(device) for name, rows in self.state.items()}

    def _at_work(self, every: int = 1) -> Iterator[tuple[int, int]]:
        """Every step, or ``every`` so many, and how many rows take it, until time is up."""
        at_work: list[int] = np.count_nonzero(self.steps > np.arange(self.steps[0])[:, None], axis=1).tolist()
        for step in range(0, len(at_work), every):
            if step > 0 and not self.time_left():
                self.steps = np.minimum(self.steps, step)
                return
            yield step, at_work[step]


class Algorithm(Protocol):
    """A federated algorithm; implementations are frozen dataclasses of hyper-parameters."""

    @property
    def upload_types(self) -> UploadTypes:
        """The parts of an upload and their kinds; a reply that has others is refused."""
        ...

    @property
    def uses_incomplete(self) -> bool:
        """Whether a client that did fewer than E steps sends anything."""
        ...

    @property
    def exchanges(self) -> int:
        """How many rounds in a row ask the same clients."""
        ...

    @property
    def personal_models(self) -> bool:
        """Whether clients have models of their own besides the global one; `local_update` leaves them in ``own``."""
        ...

    def start(self, w: Tensor) -> ServerState:
        """The server's state before the first round."""
        ...

    def client_state(self, n: int) -> Mapping[str, int]:
        """The rows that every client keeps between rounds, and how long each is; they start at zero."""
        ...

    @property
    def remembers(self) -> Sequence[str]:
        """Names of the upload's parts that a client keeps until it knows that they arrived."""
        ...

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """What every client is told this round besides the model."""
        ...

    def personal(self, server: ServerState, client: int) -> Payload | None:
        """What one client alone is told besides that."""
        ...

    def local_update(self, work: LocalWork) -> list[Parts]:
        """Train ``work.W``, renew ``work.state``, and return what each row sends."""
        ...

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """The next state, its ``w`` untouched, and the payload by which ``w`` changes, here and at every client."""
        ...

    def model(self, server: ServerState) -> Tensor:
        """The vector to evaluate."""
        ...
