"""The local work of some clients in one round: what they start from, their mini-batches, their state, their steps.

An algorithm's `local_update` is handed one of these. `LocalWork` runs every step with any `Rows`; the native backend's
subclass takes many steps in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from efl.errors import UserError, WireError
from efl.models import FlatModel
from efl.rng import Purpose
from efl.training.assignment import NO_ROUND, Assignment
from efl.training.backends.rows import Rows
from efl.training.fisher import exact_fisher
from efl.training.inputs import each
from efl.training.observers import SquaredGradients
from efl.training.round_settings import RoundSettings
from efl.training.step import PLAIN, Step
from efl.wire import Dense, Payload

Parts = dict[str, Payload]
FisherSamples = tuple[Any, Tensor, Tensor, list[int]]  # x (C, S, …), labels, weights (C, S), a seed per row

SAMPLES_AT_ONCE = 250  # in a gradient over all of a client's samples
HOME = torch.device("cpu")


def no_deadline() -> bool:
    """There is always time left."""
    return True


@dataclass(frozen=True, eq=False)
class CohortData:
    """The data of the clients at work, one row each.

    ``batch(step, active)`` gives the mini-batch of a step for the first rows, ``fisher_samples(limit)`` up to that many
    samples of every row, ``all_samples(row)`` everything one client trains on, ``streams(purpose)`` random numbers for
    every row.
    """

    batch: Callable[[int, int], tuple[Any, Tensor]]
    fisher_samples: Callable[[int], FisherSamples]
    all_samples: Callable[[int], tuple[Any, Tensor]]
    streams: Callable[[Purpose], Sequence[np.random.Generator]]


@dataclass(eq=False)
class LocalWork:
    """The work of some clients in one round, one row each, longest work first; ``W`` (C, n) is moved in place.

    While steps are taken, all of it lies on the model's device; after the last step, on the CPU. Once there is no
    ``time_left`` work stops, after one step at least, and ``steps`` are those that were done.

    An algorithm finds its clients' vectors in ``state`` and puts the new ones there, and what the server broadcast in
    ``shared``. Its update is ``delta``: ``scale`` ⊙ (W − start), unless it sets another.
    """

    rows: Rows
    start: Tensor
    settings: RoundSettings
    assignments: Sequence[Assignment]
    state: dict[str, Tensor]
    shared: Mapping[str, Payload]
    data: CohortData
    time_left: Callable[[], bool] = no_deadline

    def __post_init__(self) -> None:
        self.W = self.rows.W
        self.personalised_models = self.W  # what clients use themselves, if not what they trained
        self.steps = np.array([one.steps for one in self.assignments], dtype=np.int64)
        self.losses = torch.zeros(len(self.steps))
        self.moves_personal = True  # whether `gradients` takes steps with the parameters that stay with each client
        self.scale: Tensor | None = None
        self._delta: Tensor | None = None
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
    def progress(self) -> Tensor:
        """a_s (C,): how many plain steps the steps done are worth, for algorithms that tell gradients from the way.

        Raises:
            UserError: If the optimiser's way does not tell gradients.
        """
        optimiser = self.settings.optimiser
        if optimiser.plain:
            return self.steps_done
        if not optimiser.linear:
            raise UserError("training.optimiser: this algorithm needs 'sgd' without clipping; momentum is fine")
        return torch.tensor([optimiser.progress(done) for done in self.steps.tolist()], device=self.W.device)

    @property
    def completion(self) -> Tensor:
        """a_E/a_s (C,): what makes the work of s steps stand for that of E; E/s but for momentum."""
        return self.settings.optimiser.completion(self.steps_done, self.settings.local_steps)

    @property
    def new(self) -> Tensor:
        """Which rows (C,) work for the first time; what they keep is still zero."""
        return torch.tensor([one.last_upload == NO_ROUND for one in self.assignments], device=self.W.device)

    @property
    def delivered(self) -> Tensor:
        """Which rows (C,) have worked before, and their last upload reached the server."""
        arrived = [one.last_upload != NO_ROUND and one.undelivered is None for one in self.assignments]
        return torch.tensor(arrived, device=self.W.device)

    @property
    def rounds_since_upload(self) -> Tensor:
        """How many rounds (C, 1) ago each row's last upload was; 1: in the round before."""
        rounds = [max(self.settings.round - one.last_upload, 1) for one in self.assignments]
        return torch.tensor(rounds, device=self.W.device).unsqueeze(1)

    def streams(self, purpose: Purpose) -> Sequence[np.random.Generator]:
        """Random numbers of each row's client, the same wherever and beside whomever it works."""
        return self.data.streams(purpose)

    @property
    def client_models(self) -> Tensor:
        """``personalised_models``, each followed by what stays with its client (C, n + p)."""
        if not self.rows.personal.shape[1]:
            return self.personalised_models
        return torch.cat([self.personalised_models, self.rows.personal.to(self.personalised_models.device)], dim=1)

    def personal_models(self) -> Tensor:
        """The model (C, n) that each row was sent alone, ``start`` for those that were sent none."""
        sent = [one.personal for one in self.assignments]
        return torch.stack([self.start if one is None else vector(one).to(self.W.device) for one in sent])

    # The update

    @cached_property
    def displacement(self) -> Tensor:
        """W − start (C, n), once all steps are done."""
        return self.W - self.start

    @property
    def delta(self) -> Tensor:
        """The update (C, n) that is to be encoded."""
        if self._delta is not None:
            return self._delta
        return self.displacement if self.scale is None else self.displacement * self.scale

    @delta.setter
    def delta(self, delta: Tensor) -> None:
        self._delta = delta

    @property
    def untouched(self) -> bool:
        """Whether ``delta`` is W − start itself, so that the models can travel in its stead, without rounding."""
        return self._delta is None and self.scale is None

    @property
    def models(self) -> Tensor | None:
        """``start`` + ``delta``, a row with scale 1 being W bit for bit; None where ``delta`` was replaced."""
        if self._delta is not None:
            return None
        return self.W if self.scale is None else self.W + (self.scale - 1) * self.displacement

    def add_delta(self, to: Tensor) -> Tensor:
        """Add ``delta`` to a matrix in place, with one rounding where it is scaled."""
        if self._delta is None and self.scale is not None:
            return to.addcmul_(self.scale, self.displacement)
        return to.add_(self.delta)

    # Training

    def train(self, step: Step = PLAIN, observer: SquaredGradients | None = None) -> None:
        """Take all steps; ``observer`` watches some of the gradients.

        With E = 1 a client by itself takes the step that `torch.optim.SGD` takes, to the last bit; with another
        optimiser than plain SGD it takes those of `torch.optim`.
        """
        step.check(self.W)
        step, eta, plain = step.to(self.W.device), self.settings.eta, self.settings.optimiser.plain
        move = None if plain else self.settings.optimiser.start(self.W, eta, self.settings.layout)
        move_own = None if plain else self.rows.personal_move(self.settings.optimiser, eta)
        drifts = step.drift is not None or step.explicit
        fused = plain and not drifts and (self.rows.batched or self.settings.local_steps > 1)
        for number, active in self._active_rows():
            x, y = self.data.batch(number, active)
            squares = observer.squares if observer is not None and observer.watches(number) else None
            if fused:
                self.losses[:active] += self.rows.descend(active, x, y, eta, squares)
                step.pull(self.W[:active])
                continue
            self.losses[:active] += self.rows.gradient(active, x, y)
            gradient = self.rows.G[:active]
            if squares is not None:
                squares[:active].addcmul_(gradient, gradient)
            step.take(self.W[:active], gradient, eta, move)
            self.rows.move_personal(active, eta, move_own)
        self._finish()

    def gradients(self, *shadows: Rows, moving: bool = False) -> Iterator[tuple[int, Tensor]]:
        """For every step: how many rows are still at work (the first ones), and the gradient of f_k there.

        For steps that are more than a `Step`: the loop body moves ``work.W[:active]`` itself. ``shadows`` get their
        gradients on the same mini-batches in their own ``G``. Only for plain SGD, unless the body is ``moving`` by the
        optimiser. Personal parameters take a step of it after the body, unless it sets ``moves_personal`` to False.
        """
        optimiser, eta = self.settings.optimiser, self.settings.eta
        if not optimiser.plain and not moving:
            raise UserError("training.optimiser: this algorithm has its own steps; leave it at plain 'sgd'")
        move_own = None if optimiser.plain else self.rows.personal_move(optimiser, eta)
        for number, active in self._active_rows():
            x, y = self.data.batch(number, active)
            self.losses[:active] += self.rows.gradient(active, x, y)
            for other in shadows:
                other.personal.copy_(self.rows.personal)
                other.gradient(active, x, y)
            yield active, self.rows.G[:active]
            if self.moves_personal:
                self.rows.move_personal(active, eta, move_own)
        self._finish()

    def gradient_sum(self) -> Tensor:
        """The sum (C, n) over all mini-batches of the gradient at ``start``, which does not move."""
        total = torch.zeros_like(self.W)
        for active, gradient in self.gradients():
            total[:active] += gradient
        return total.cpu()

    def shadow_models(self) -> Rows:
        """Models of the same clients at ``start``, whose gradients `gradients` can find on the same mini-batches."""
        return self.rows.at(self.start, len(self.steps))

    def full_gradient(self) -> tuple[Tensor, Tensor]:
        """∇f_k (C, n) and f_k (C,) at ``start`` over all samples, one client at a time: rows stay independent."""
        one = self.rows.at(self.start, 1)
        gradients, losses = torch.zeros_like(self.W), torch.zeros_like(self.losses)
        for row, total in enumerate(gradients):
            one.personal.copy_(self.rows.personal[row])
            x, y = self.data.all_samples(row)
            x, y = each(lambda tensor: tensor.to(self.model.device), x), y.to(self.model.device)
            counts = self.rows.task.sample_weights(y)
            for first in range(0, len(y), SAMPLES_AT_ONCE):
                some = slice(first, first + SAMPLES_AT_ONCE)
                share = len(y[some]) / len(y) if counts is None else float(counts[some].sum() / counts.sum())
                batch = each(lambda tensor: tensor[None, some], x)  # noqa: B023
                losses[row] += one.gradient(1, batch, y[None, some])[0] * share
                total.add_(one.G[0], alpha=share)
        self._move(HOME)
        return gradients.cpu(), losses.cpu()

    def fisher(self, labels: Literal["data", "model"], limit: int) -> Tensor:
        """The exact Fisher diagonal (C, n) at ``W`` over up to ``limit`` samples of every client."""
        x, y, weights, seeds = self.data.fisher_samples(limit)
        return exact_fisher(self.rows, x, y, weights, labels, seeds)

    def _finish(self) -> None:
        self.losses /= self.steps_done.clamp(min=1)
        self._move(HOME)

    def _move(self, device: torch.device) -> None:
        if self.W.device == self.start.device == self.losses.device == device:
            return
        self.W, self.start, self.losses = (tensor.to(device) for tensor in (self.W, self.start, self.losses))
        self.state = {name: rows.to(device) for name, rows in self.state.items()}

    def _active_rows(self, every: int = 1) -> Iterator[tuple[int, int]]:
        """Every step, or ``every`` so many, and how many rows take it, until time is up."""
        active: list[int] = (self.steps > np.arange(self.steps[0])[:, None]).sum(axis=1).tolist()
        for step in range(0, len(active), every):
            if step > 0 and not self.time_left():
                self.steps = np.minimum(self.steps, step)
                return
            yield step, active[step]


def vector(payload: Payload) -> Tensor:
    """The vector that a dense payload is."""
    if not isinstance(payload, Dense):
        raise WireError(f"expected a dense vector, got {type(payload).__name__}")
    return torch.from_numpy(payload.values)
