"""What server and clients agree on for one round."""

from __future__ import annotations

from dataclasses import dataclass

from efl.layout import Layout
from efl.training.optimisers import PLAIN_SGD, Optimiser


@dataclass(frozen=True)
class RoundSettings:
    """What server and clients agree on for one round: τ, η_τ, E, B, and where the model's tensors lie.

    ``clients`` is 1/Σ(p^k)², the number of clients if all had equal shares of the objective; 0 where they are too
    unequal, or return too rarely, to be remembered (`effective_clients`).
    ``coarseness`` says by how many quarters of an octave the steps of uploaded lattices are longer than usual. The
    clients' ``optimiser`` is part of the experiment and does not travel.
    ``cohort``, how many clients a round is expected to sample, ``seed``, of what the server draws at random, and
    ``coarseness_down``, of broadcasts, are known to the server alone.
    """

    round: int
    eta: float
    local_steps: int
    batch_size: int
    layout: Layout
    clients: int = 0
    coarseness: int = 0
    optimiser: Optimiser = PLAIN_SGD
    cohort: int = 0
    seed: int = 0
    coarseness_down: int = 0

    @property
    def progress(self) -> float:
        """a_E: how many plain steps the E steps of the clients' optimiser are worth."""
        return self.local_steps if self.optimiser.plain else self.optimiser.progress(self.local_steps)

    @property
    def coarsening(self) -> float:
        """The factor by which steps of uploads are longer."""
        return float(2 ** (self.coarseness / 4))

    @property
    def coarsening_down(self) -> float:
        """The factor by which steps of broadcasts are longer."""
        return float(2 ** (self.coarseness_down / 4))
