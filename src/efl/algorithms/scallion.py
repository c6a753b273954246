"""SCALLION (Huang, Li and Li 2023): SCAFFOLD that uploads one compressed increment.

Client k steps as in SCAFFOLD, y ← y − η(g − c_k + c). What it has to tell is δ_k = (x − y)/(ηE) − c, by which both its
control variate and, with c, the model change. It sends Q(δ_k), compressed without bias, and both sides let
c_k ← c_k + α Q(δ_k) and c ← c + α Σ p^k Q(δ_k). The server goes x ← x − η_g ηE (mean of Q(δ_k) + c). As training
settles δ_k vanishes, and with it the noise of the compression. Uncompressed and with α = 1 it is SCAFFOLD.

What travels here is −ηE δ_k, an update of the model. Means over the cohort are weighted by sample counts, as for
SCAFFOLD here. A client whose last reply was lost takes it back, so that c stays Σ p^k c_k.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from efl.algorithms.base import LocalWork, Parts, RoundSettings, ServerState, Step, Update
from efl.algorithms.components.reduction import averaged_increment, delta_of
from efl.algorithms.compression.codec import Codec, TwoWay, Uncompressed
from efl.algorithms.compression.lattice import StochasticLattice
from efl.algorithms.fedavg import FedAvg
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.search import Range, SearchSpace
from efl.algorithms.transform import Transform
from efl.settings import Density, Positive
from efl.training.local_work import vector
from efl.wire import Dense, Payload

CONTROL = "control"


class Increment(Transform):
    """What is sent is an update without what c says already; the server adds that, and renews c."""

    gain: Density = 1.0
    server_rate: Positive = 1.0

    def init(self, w: Tensor) -> Mapping[str, Tensor]:
        """C = 0."""
        return {CONTROL: torch.zeros_like(w)}

    def on_client(self, delta: Tensor, work: LocalWork) -> Tensor:
        """Y − x + ηE·c."""
        return delta + _pace(work.settings) * _control(work)

    def on_server(
        self, delta: Tensor, updates: Sequence[Update], server: ServerState, settings: RoundSettings
    ) -> tuple[Tensor, ServerState]:
        """The mean minus ηE·c, and c with what arrived."""
        pace, control = _pace(settings), server.tensors[CONTROL]
        arrived = averaged_increment(server.w, [one.delta for one in updates], [one.share for one in updates])
        renewed = control - self.gain / pace * arrived
        return delta - self.server_rate * pace * control, server.having(**{CONTROL: renewed})


@ALGORITHMS.register("scallion")
class Scallion(FedAvg):
    """SCAFFOLD with compressed uploads.

    Attributes:
        gain: The paper's α, how much of an increment the control variates take.
        server_rate: The paper's η_g.
        step: Of the stochastic rounding, in units of the root mean square of an increment's entries.
    """

    search_space: ClassVar[SearchSpace] = {"gain": Range(0.05, 1.0), "server_rate": Range(0.3, 3.0)}
    gain: Density = 0.25
    server_rate: Positive = 1.0
    step: Positive = 1.0

    @property
    def default_codec(self) -> Codec:
        """Uploads rounded without bias, whole models down."""
        return TwoWay(StochasticLattice(step_up=self.step), Uncompressed(self.precision))

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """What FedAvg does with incomplete work, and then the increments."""
        return (*super().default_transforms, Increment(self.gain, self.server_rate))

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """C, once it is anything."""
        control = server.tensors[CONTROL]
        return {CONTROL: Dense(control.numpy())} if bool(control.any()) else {}

    def client_state(self, n: int) -> Mapping[str, int]:
        """c_k, and what it was before the last round."""
        return {CONTROL: n, "before": n}

    def local_step(self, work: LocalWork) -> Step:
        """G − c_k + c."""
        state = work.state
        state["before"] = torch.where(work.delivered[:, None], state[CONTROL], state["before"])
        return Step(drift=_control(work) - state["before"])

    def on_encoded(self, work: LocalWork, updates: Sequence[Payload]) -> None:
        """Let c_k take what the server will see."""
        sent = torch.stack([delta_of(update, work.start) for update in updates])
        work.state[CONTROL] = work.state["before"] - self.gain / _pace(work.settings) * sent

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """η_g times FedAvg's."""
        return [self.server_rate * weight for weight in super().weights(updates, settings)]


def _control(work: LocalWork) -> Tensor:
    """C, as it was broadcast."""
    shared = work.shared.get(CONTROL)
    return torch.zeros_like(work.start) if shared is None else vector(shared).to(work.start.device)


def _pace(settings: RoundSettings) -> float:
    return settings.eta * settings.progress
