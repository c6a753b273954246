"""Elastic Federated Learning (Ma et al. 2021), with the paper's slips mended.

Clients minimise f_k + λ/2 Σ U (w − c)²: a pull towards where the last cohort ended, strong where the Fisher
information says a parameter matters (Eq. 2 and 3). They may finish only s of E steps; their displacement is scaled
by a_E/a_s to stand for E steps, the rest of the last upload is added, and ST of the sum is sent (Eq. 5, Algorithm 2).
The server adds these up with weights p^k/π_k, and broadcasts ST of the sum and of what earlier broadcasts left out;
what it broadcasts is what it applies.

`PAPER` holds the settings that give the paper's literal form instead.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.base import (
    Algorithm,
    LocalWork,
    Part,
    Parts,
    Presets,
    RoundSettings,
    ServerState,
    Update,
    Uploads,
)
from efl.algorithms.components.elastic import ElasticField, StepKind, completion_scale, elastic_step
from efl.algorithms.components.fields import full_fields, received, short_fields, summed
from efl.algorithms.components.weights import inverse_probability, self_normalised
from efl.algorithms.compression.codec import Codec
from efl.algorithms.compression.error_feedback import UNCOMPRESSED_MODEL, ErrorFeedback
from efl.algorithms.compression.ternary import SparseTernary
from efl.algorithms.registry import ALGORITHMS
from efl.errors import UserError
from efl.settings import AtLeastOne, Density, NonNegative
from efl.training.observers import SquaredGradients
from efl.wire import Field

PAPER: Mapping[str, Any] = {
    "step": "explicit",
    "weighting": "C",
    "weight_cap": float("inf"),
    "scale_at": "server",
    "participation": "share",
    "server_applies": "aggregate",
    "scope": "whole",
    "fisher": "true",
    "field": "dense",
    "echo": False,
}


@ALGORITHMS.register("efl")
class EFL(Algorithm):
    """Elastic federated learning; the defaults come from docs/ablation.md.

    Attributes:
        elasticity: λ, the strength of the elastic term.
        density_up: The share of entries an upload keeps; 1 sends everything uncompressed.
        density_down: The same for broadcasts.
        weighting: What incomplete work counts: ``elastic`` scales it by a_E/a_s, ``C`` by E/s, ``B`` not at all, ``A``
            drops it.
        weight_cap: θ of Assumption 5, the most that incomplete work is scaled by.
        fisher: ``running`` (from the gradients of the steps just done, free), ``empirical`` or ``true`` (a pass of
            their own).
        fisher_samples: How many samples that pass is over, at most.
        step: The elastic step: ``implicit`` (stable for every λ) or ``explicit``.
        scale_at: Where incomplete work is scaled: at the ``client`` before compression, or at the ``server`` with the
            residual.
        participation: ``unbiased`` weights p^k/π_k, ``self-normalised`` ones, or the bare ``share`` p^k.
        answer_rates: Whether π_k counts how often client k replies, besides how often it is sampled.
        server_applies: What the server adds to its model: what it ``broadcast``, or the uncompressed ``aggregate``.
        scope: ST over the ``whole`` vector, or for each ``tensor`` by itself.
        field: The elastic field travels ``dense``, at 64 bit per parameter, or ``sparse``: rounded, its rows and
            columns, and the entries that matter most. ``auto`` is dense in a direction not compressed.
        field_density: The share of entries that a sparse field has.
        echo: Whether clients take a lost upload back into their residual.
    """

    presets: ClassVar[Presets] = {"paper": PAPER}
    elasticity: NonNegative = 0.3
    density_up: Density = 0.01
    density_down: Density = 0.01
    weighting: Literal["elastic", "A", "B", "C"] = "elastic"
    weight_cap: AtLeastOne = 20.0
    fisher: Literal["running", "empirical", "true"] = "running"
    fisher_samples: Annotated[int, Constraint(ge=1)] = 256
    step: StepKind = "implicit"
    scale_at: Literal["client", "server"] = "client"
    participation: Literal["unbiased", "self-normalised", "share"] = "unbiased"
    answer_rates: bool = True
    server_applies: Literal["broadcast", "aggregate"] = "broadcast"
    scope: Literal["tensor", "whole"] = "whole"
    field: Literal["auto", "sparse", "dense"] = "auto"
    field_density: Density = 0.0025
    echo: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_at == "server" and self.weighting == "elastic":
            raise UserError("scale_at: the server cannot scale by a_E/a_s, only by E/s: set weighting to 'C' as well")

    @property
    def uses_incomplete(self) -> bool:
        """All schemes but A."""
        return self.weighting != "A"

    @property
    def parts(self) -> Mapping[str, Part]:
        """The field, where there is elasticity."""
        return {"field": Part(Field, kind="field")} if self.elasticity > 0 else {}

    @property
    def default_codec(self) -> Codec:
        """ST both ways, with residuals on both sides."""
        ternary = SparseTernary(self.density_up, self.density_down, self.scope)
        return ErrorFeedback(ternary, self.echo, self.server_applies)

    # Server, before a round

    def init(self, w: Tensor) -> ServerState:
        """No elastic field yet."""
        names = ("fisher", "covered", "anchor") if self.elasticity > 0 else ()
        return ServerState(w, {name: torch.zeros_like(w) for name in names})

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """The elastic field of the last round, the anchor as its displacement from the model."""
        if self.elasticity == 0 or not bool(server.tensors["fisher"].any()):
            return {}
        anchor = torch.where(server.tensors["covered"] > 0, server.tensors["anchor"], server.w)
        moved = anchor - server.w
        return {"field": self._fields(server.tensors["fisher"][None], moved[None], self.density_down, settings)[0]}

    # Client

    def local_update(self, work: LocalWork) -> Uploads:
        """Elastic SGD; what was done is scaled to stand for E steps."""
        shared = work.shared.get("field")
        field = None if shared is None else received(shared, work.start.cpu())
        running = self.elasticity > 0 and self.fisher == "running"
        observer = SquaredGradients(work.W, work.settings.batch_size) if running else None
        work.train(elastic_step(field, work.settings.eta, self.elasticity, self.step), observer)
        work.scale = self._completion(work, field)
        if self.elasticity == 0:
            return {}
        diagonal = self._exact_fisher(work) if observer is None else observer.mean(work.steps_done)
        return {"field": self._fields(diagonal, work.displacement, self.density_up, work.settings)}

    def _completion(self, work: LocalWork, field: ElasticField | None) -> Tensor | None:
        """What turns the work of s steps into that of E, capped at θ; None where there is nothing to scale here."""
        settings = work.settings
        complete = int(work.steps[-1]) >= settings.local_steps  # the rows with fewest steps come last
        if complete or self.scale_at == "server" or self.weighting in ("A", "B"):
            return None
        pulled = field if self.weighting == "elastic" else None
        eta, most = settings.eta, settings.local_steps
        scale = completion_scale(pulled, eta, self.elasticity, work.steps_done, most, work.model.n, self.step)
        return scale.clamp_(max=self.weight_cap)

    def _exact_fisher(self, work: LocalWork) -> Tensor:
        """u^k (C, n) at w_s, from samples."""
        return work.fisher("model" if self.fisher == "true" else "data", self.fisher_samples)

    # Server, after a round

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """p^k/π_k; times E/s, where the server scales."""
        shares = [update.share for update in updates]
        if self.participation != "share":
            rates = [update.response_rate if self.answer_rates else 1.0 for update in updates]
            sampled = [update.sampling_probability for update in updates]
            shares = inverse_probability(shares, [a * r for a, r in zip(sampled, rates, strict=True)])
        if self.participation == "self-normalised" or self.weighting == "A":
            shares = self_normalised(shares)
        if self.scale_at == "client" or self.weighting in ("A", "B"):
            return shares
        scales = [min(settings.local_steps / update.steps, self.weight_cap) for update in updates]
        return [share * scale for share, scale in zip(shares, scales, strict=True)]

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """U = Σ u^k, V = Σ u^k ⊙ w_s^k, as far as clients sent them."""
        if self.elasticity == 0:
            return server
        return server.having(**summed([update.parts["field"] for update in updates], server.w))

    def evaluated_model(self, server: ServerState) -> Tensor:
        """The server's model: in the paper's form it is not the one clients have."""
        return server.tensors.get(UNCOMPRESSED_MODEL, server.w)

    # Both sides

    def _fields(self, fisher: Tensor, moved: Tensor, density: float, settings: RoundSettings) -> list[Field]:
        """A field for every row, in full or in short; ``moved`` is where the anchor is, from the model."""
        if self.field == "dense" or (self.field == "auto" and density == 1):
            return full_fields(fisher, moved, settings.layout)
        return short_fields(fisher, moved, settings.layout, self.field_density)
