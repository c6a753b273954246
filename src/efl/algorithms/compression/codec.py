"""How deltas travel: a codec is the last stage at the client, and the last at the server.

A codec compresses in one direction or in both. In a direction in which it does not, whole models travel: averaging
models as such loses nothing to rounding, so that FedAvg with one client and one step is SGD, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from efl.algorithms.components.reduction import Aggregate
from efl.algorithms.state import Part, RoundSettings, ServerState
from efl.plugins import Registry
from efl.settings import Settings
from efl.training.local_work import LocalWork
from efl.wire import Dense, Payload

Direction = Literal["up", "down"]
OnSent = Callable[[Tensor, LocalWork], Tensor]


class Codec(Settings):
    """Turns deltas into payloads; subclasses override `compress`, or both directions by themselves."""

    @property
    def part(self) -> Part:
        """What an encoded delta is, as a part of the upload."""
        return Part(Dense, kind="update", limit="update")

    def start(self, w: Tensor) -> Tensor:
        """The model to start from: as it is, unless updates can only be added to some models."""
        return w

    def client_state(self, n: int) -> Mapping[str, int]:
        """Vectors that every client keeps between rounds, and how long each is."""
        return {}

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """Tensors that the server keeps between rounds."""
        return {}

    def compresses(self, direction: Direction) -> bool:
        """Whether anything but whole models travels in this direction."""
        return False

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """Every row of ``deltas`` (C, n) as a payload."""
        raise TypeError(f"{type(self).__name__} does not compress {direction}")

    def fidelity(self, sent: Payload, settings: RoundSettings) -> float:
        """1/(1 + ω), where ω is the variance of what was sent, relative to the squared length of what was meant."""
        return 1.0

    def encode_up(self, work: LocalWork, on_sent: OnSent | None = None) -> Sequence[Payload]:
        """What each row of ``work`` sends; ``on_sent`` has the last word on the deltas."""
        if self.compresses("up"):
            total = work.delta if on_sent is None else on_sent(work.delta, work)
            return self.compress(total, "up", work.settings)
        if work.untouched and on_sent is None:
            return self.whole_models(work.W)
        return self.whole_models(work.start + (work.delta if on_sent is None else on_sent(work.delta, work)))

    def encode_down(
        self, aggregate: Aggregate, server: ServerState, settings: RoundSettings
    ) -> tuple[Payload, ServerState]:
        """What every client is sent for the aggregate, and the server's state after that."""
        if self.compresses("down"):
            (payload,) = self.compress(aggregate.delta.unsqueeze(0), "down", settings)
            return payload, server
        (payload,) = self.whole_models(aggregate.model.unsqueeze(0))
        return payload, server

    def whole_models(self, models: Tensor) -> list[Payload]:
        """Every row as it is."""
        return [Dense(model) for model in models.numpy()]


CODECS: Registry[type[Codec]] = Registry(
    "codec",
    lambda thing: thing if isinstance(thing, type) and issubclass(thing, Codec) else None,
    built_in="efl.algorithms.compression",
)


@CODECS.register("two_way")
class TwoWay(Codec):
    """One codec for uploads, another for broadcasts."""

    up: Codec
    down: Codec

    def __post_init__(self) -> None:
        """Both have checked themselves."""

    @property
    def part(self) -> Part:
        """As the one for uploads has it."""
        return self.up.part

    def start(self, w: Tensor) -> Tensor:
        """As the one for broadcasts needs it."""
        return self.down.start(w)

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """What the one for broadcasts keeps."""
        return self.down.init(w)

    def compresses(self, direction: Direction) -> bool:
        """As the one for this direction does."""
        return (self.up if direction == "up" else self.down).compresses(direction)

    def compress(self, deltas: Tensor, direction: Direction, settings: RoundSettings) -> Sequence[Payload]:
        """By the one for this direction."""
        return (self.up if direction == "up" else self.down).compress(deltas, direction, settings)

    def fidelity(self, sent: Payload, settings: RoundSettings) -> float:
        """Of the one for uploads."""
        return self.up.fidelity(sent, settings)

    def encode_up(self, work: LocalWork, on_sent: OnSent | None = None) -> Sequence[Payload]:
        """By the one for uploads."""
        return self.up.encode_up(work, on_sent)

    def encode_down(
        self, aggregate: Aggregate, server: ServerState, settings: RoundSettings
    ) -> tuple[Payload, ServerState]:
        """By the one for broadcasts."""
        return self.down.encode_down(aggregate, server, settings)


@CODECS.register("uncompressed")
class Uncompressed(Codec):
    """Whole models both ways, as ``float32`` or rounded to ``bfloat16``."""

    precision: Literal["float32", "bfloat16"] = "float32"

    def whole_models(self, models: Tensor) -> list[Payload]:
        """Every row in this precision."""
        if self.precision == "float32":
            return super().whole_models(models)
        return [Dense(model, half=True) for model in models.to(torch.bfloat16).float().numpy()]
