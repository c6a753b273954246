"""Clients' optimisers, as operations on a matrix of models (C, n).

The learning rate is the round's, η. What an optimiser keeps (momentum, second moments) starts anew with every client's
work in every round: clients are stateless, and what was gathered many rounds ago, at another model, would mislead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from efl.errors import UserError
from efl.layout import Layout
from efl.models.vectors import lay_out, split
from efl.plugins import Registry
from efl.settings import NonNegative, Positive, Settings, make

Move = Callable[[Tensor, Tensor], None]  # moves the first rows w (A, n) along their gradients (A, n)
Factor = Annotated[float, Field(ge=0, lt=1)]


class Optimiser(Settings):
    """How a client steps along its gradients.

    Attributes:
        clip: The norm to which longer gradients are shortened.
    """

    clip: Positive | None = None

    @property
    def plain(self) -> bool:
        """Whether a step is w ← w − ηg and nothing more, which all backends can do in one go."""
        return False

    @property
    def linear(self) -> bool:
        """Whether the way a client has come tells its mean gradient: −Δ/(η a_s)."""
        return False

    def coefficient(self, step: int) -> float:
        """How far step number ``step``, counted from 1, goes along a gradient that never changes."""
        return 1.0

    def progress(self, steps: int) -> float:
        """a_s: how many plain steps along a constant gradient s steps are worth; FedNova's normalisation.

        What s of E steps did stands for all of them if it is multiplied by a_E/a_s. Adam's steps are equally long under
        a constant gradient, so a_s = s.
        """
        return sum(map(self.coefficient, range(1, steps + 1)))

    def completion(self, steps: Tensor, most: int) -> Tensor:
        """a_E/a_s (C,): what makes the work of s ``steps`` (C,) stand for that of ``most``; E/s but for momentum."""
        if self.plain:
            return most / steps.clamp(min=1)
        worth = [self.progress(max(done, 1)) for done in steps.tolist()]
        return self.progress(most) / torch.tensor(worth, device=steps.device)

    def start(self, w: Tensor, eta: float, layout: Layout) -> Move:
        """What moves the rows ``w`` (C, n), step by step; fewer rows in later steps."""
        move = self.moves(w, eta, layout)
        if self.clip is None:
            return move
        most = self.clip
        return lambda rows, gradients: move(rows, clipped(gradients, most))

    def moves(self, w: Tensor, eta: float, layout: Layout) -> Move:
        """The same without clipping."""
        raise NotImplementedError


def clipped(gradients: Tensor, most: float) -> Tensor:
    """Rows no longer than ``most``, each by itself, as `torch.nn.utils.clip_grad_norm_` shortens them."""
    norms = torch.stack([row.norm() for row in gradients])
    return gradients * (most / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1)


def _optimiser(thing: Any) -> type[Optimiser] | None:
    return thing if isinstance(thing, type) and issubclass(thing, Optimiser) else None


OPTIMISERS: Registry[type[Optimiser]] = Registry("optimiser", _optimiser)


@OPTIMISERS.register("sgd")
class SGD(Optimiser):
    """Gradient descent, as `torch.optim.SGD`.

    Attributes:
        momentum: Of the direction.
        nesterov: Step from where the momentum leads.
        weight_decay: Added to the gradient, times the model.

    >>> SGD(momentum=0.5).progress(3)  # 1 + 1.5 + 1.75
    4.25
    """

    momentum: Factor = 0.0
    nesterov: bool = False
    weight_decay: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise UserError("nesterov: needs a momentum above 0")

    @property
    def plain(self) -> bool:
        """Without momentum, decay and clipping."""
        return not (self.momentum or self.weight_decay or self.clip)

    @property
    def linear(self) -> bool:
        """Unless gradients are clipped."""
        return self.clip is None

    def coefficient(self, step: int) -> float:
        """(1 − ρ^t)/(1 − ρ), with Nesterov's one power more."""
        power = step + 1 if self.nesterov else step
        return (1 - self.momentum**power) / (1 - self.momentum) if self.momentum else 1.0

    def moves(self, w: Tensor, eta: float, layout: Layout) -> Move:
        """In the order of PyTorch's operations, so that last bits agree."""
        kept: list[Tensor] = []

        def move(rows: Tensor, gradients: Tensor) -> None:
            if self.weight_decay:
                gradients = gradients.add(rows, alpha=self.weight_decay)
            if self.momentum and not kept:
                kept.append(gradients.clone())
            elif self.momentum:
                kept[0][: len(rows)].mul_(self.momentum).add_(gradients)
            if self.momentum:
                velocity = kept[0][: len(rows)]
                gradients = gradients.add(velocity, alpha=self.momentum) if self.nesterov else velocity
            rows.add_(gradients, alpha=-eta)

        return move


@OPTIMISERS.register("adam")
class Adam(Optimiser):
    """Adam (Kingma and Ba 2015), as `torch.optim.Adam`.

    Attributes:
        beta1, beta2: Of the running means of gradients and of their squares.
        eps: Added to the root of the squares.
        weight_decay: Added to the gradient, times the model.
    """

    beta1: Factor = 0.9
    beta2: Factor = 0.999
    eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0

    def moves(self, w: Tensor, eta: float, layout: Layout) -> Move:
        """In the order of PyTorch's operations, so that last bits agree."""
        mean, squares, steps = torch.zeros_like(w), torch.zeros_like(w), 0

        def move(rows: Tensor, gradients: Tensor) -> None:
            nonlocal steps
            steps += 1
            gradients = self._decayed(rows, gradients, eta)
            m, v = mean[: len(rows)], squares[: len(rows)]
            m.lerp_(gradients, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(gradients, gradients, value=1 - self.beta2)
            length = eta / (1 - self.beta1**steps)
            root = (v.sqrt() / (1 - self.beta2**steps) ** 0.5).add_(self.eps)
            rows.addcdiv_(m, root, value=-length)

        return move

    def _decayed(self, rows: Tensor, gradients: Tensor, eta: float) -> Tensor:
        """The gradients with the pull towards zero."""
        return gradients.add(rows, alpha=self.weight_decay) if self.weight_decay else gradients


@OPTIMISERS.register("adamw")
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter 2019), as `torch.optim.AdamW`: weights decay by themselves, not by the gradient."""

    weight_decay: NonNegative = 0.01

    def _decayed(self, rows: Tensor, gradients: Tensor, eta: float) -> Tensor:
        """The gradients as they are; the rows shrink."""
        if self.weight_decay:
            rows.mul_(1 - eta * self.weight_decay)
        return gradients


class TorchOptimiser(Optimiser):
    """Any optimiser of `torch.optim`, one for each client: ``factory(parameters, lr=η)``.

    What a part of the steps is worth is taken to be its share s/E, which is exact where steps are equally long.
    """

    factory: Callable[..., Any] = torch.optim.SGD

    def moves(self, w: Tensor, eta: float, layout: Layout) -> Move:
        """A step of each client's optimiser, on views of its row."""
        parameters = [[nn.Parameter(view) for view in split(row, layout)] for row in w]
        optimisers = [self._made(some, eta) for some in parameters]

        def move(rows: Tensor, gradients: Tensor) -> None:
            for number, gradient in enumerate(gradients):
                for parameter, part in zip(parameters[number], split(gradient, layout), strict=True):
                    parameter.grad = part
                optimisers[number].step()

        return move

    def _made(self, parameters: list[nn.Parameter], eta: float) -> Any:
        try:
            made = self.factory(parameters, lr=eta)
        except TypeError as error:
            raise UserError(f"optimiser: cannot be called with parameters and lr=…: {error}") from None
        if not callable(getattr(made, "step", None)):
            raise UserError("optimiser: pass a class such as torch.optim.RMSprop, or a function that makes one")
        if any(one.name == "closure" and one.default is one.empty for one in signature(made.step).parameters.values()):
            name = type(made).__name__
            raise UserError(f"optimiser: {name} asks for the loss several times a step; take another")
        return made


PLAIN_SGD = SGD()
OptimiserLike = str | Mapping[str, Any] | Optimiser | Callable[..., Any]


def optimiser_of(spec: OptimiserLike) -> Optimiser:
    """An optimiser from its name, a table with its name and settings, an `Optimiser`, or a ``torch.optim`` factory.

    >>> optimiser_of({"name": "sgd", "momentum": 0.9}).momentum
    0.9
    """
    if isinstance(spec, Optimiser):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if isinstance(spec, Mapping):
        settings = dict(spec)
        made = make(OPTIMISERS.get(str(settings.pop("name", "sgd"))), settings, "training.optimiser")
        assert isinstance(made, Optimiser)
        return made
    if not callable(spec):
        raise UserError(
            f"optimiser: a {type(spec).__name__} is none; write a name, efl.AdamW(…), or torch.optim.RMSprop"
        )
    own = TorchOptimiser(factory=spec)
    own.moves(torch.zeros(1, 1), 0.1, lay_out([("w", torch.zeros(1))]))  # what is wrong with it is found out now
    return own
