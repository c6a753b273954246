"""Elastic Federated Learning (Ma et al. 2021), with the paper's slips mended.

Clients minimise f_k + λ/2 Σ U (w − c)²: a pull towards where the last cohort ended, strong where the Fisher
information says a parameter matters (Eq. 2 and 3). They may finish only s of E steps; their displacement is scaled
by a_E/a_s to stand for E steps, the rest of the last upload is added, and ST of the sum is sent (Eq. 5, Algorithm 2).
The server adds these up with weights p^k/π_k, and broadcasts ST of the sum and of what earlier broadcasts left out;
what it broadcasts is what it applies.

`PAPER` holds the settings that give the paper's literal form instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field as Constraint
from torch import Tensor

from efl.algorithms.base import Contribution, LocalWork, Parts, RoundSettings, ServerState, UploadTypes
from efl.algorithms.components.elastic import ElasticField, ElasticStep, RunningFisher, StepKind, completion_scale
from efl.algorithms.components.fields import full_fields, received, short_fields, summed
from efl.algorithms.components.reduction import averaged_increment, averaged_model
from efl.algorithms.components.weights import inverse_probability, self_normalised
from efl.algorithms.compression.ternary import put_back, sparsify_ternary, subtract
from efl.errors import UserError
from efl.settings import AtLeastOne, Density, NonNegative, Settings
from efl.training.fisher import exact_fisher
from efl.wire import Dense, Field, Payload, Ternary

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


@dataclass(frozen=True)
class EFL(Settings):
    """Elastic federated learning; the defaults come from docs/ablation.md.

    elasticity
        λ, the strength of the elastic term.
    density_up, density_down
        The share of entries an update keeps, per direction; 1 sends everything uncompressed.
    weighting
        What incomplete work counts: ``elastic`` scales it by a_E/a_s, ``C`` by E/s, ``B`` not at all, ``A`` drops it.
    weight_cap
        θ of Assumption 5, the most that incomplete work is scaled by.
    fisher
        ``running`` (from the gradients of the steps just done, free), ``empirical`` or ``true`` (a pass of their own
        over at most ``fisher_samples`` samples).
    step
        The elastic step: ``implicit`` (stable for every λ) or ``explicit``.
    scale_at
        Where incomplete work is scaled: at the ``client`` before compression, or at the ``server`` with the residual.
    participation
        ``unbiased`` weights p^k/π_k, ``self-normalised`` ones, or the bare ``share`` p^k.
    answer_rates
        Whether π_k counts how often client k answers when asked, besides how often it is asked.
    server_applies
        What the server adds to its model: what it ``broadcast``, or the uncompressed ``aggregate``.
    scope
        ST over the ``whole`` vector, or for each ``tensor`` by itself.
    field, field_density
        The elastic field travels ``dense``, at 64 bit a parameter, or ``sparse``: rounded, its rows and columns, and
        the share ``field_density`` of entries that matter most. ``auto`` is dense in a direction not compressed.
    echo
        Whether clients take a lost upload back into their residual.
    """

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
    def upload_types(self) -> UploadTypes:
        """An update, and the field where there is elasticity."""
        update: UploadTypes = {"update": Ternary if self.density_up < 1 else Dense}
        return update | ({"field": Field} if self.elasticity > 0 else {})

    @property
    def uses_incomplete(self) -> bool:
        """All schemes but A."""
        return self.weighting != "A"

    def client_state(self, n: int) -> Mapping[str, int]:
        """R^k; where nothing is compressed, all of Δ^k, until the server is known to have it."""
        return {"residual": n}

    @property
    def remembers(self) -> Sequence[str]:
        """What was sent of Δ^k, to be taken back into R^k if it is lost."""
        return ("update",) if self.echo else ()

    @property
    def exchanges(self) -> int:
        """Clients are asked once."""
        return 1

    @property
    def personal_models(self) -> bool:
        """There is one model for all."""
        return False

    # Server, before a round

    def start(self, w: Tensor) -> ServerState:
        """No residual and no elastic field yet."""
        tensors = {"residual": torch.zeros_like(w)}
        if self.elasticity > 0:
            tensors |= {name: torch.zeros_like(w) for name in ("fisher", "told", "anchor")}
        if self.server_applies == "aggregate":
            tensors["own"] = w.clone()
        return ServerState(w, tensors)

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """The elastic field of the last round, the anchor told as its displacement from the model."""
        if self.elasticity == 0 or not bool(server.tensors["fisher"].any()):
            return {}
        anchor = torch.where(server.tensors["told"] > 0, server.tensors["anchor"], server.w)
        moved = anchor - server.w
        return {"field": self._fields(server.tensors["fisher"][None], moved[None], self.density_down, settings)[0]}

    def personal(self, server: ServerState, client: int) -> Payload | None:
        """Everybody is told the same."""
        return None

    # Client

    def local_update(self, work: LocalWork) -> list[Parts]:
        """Elastic SGD, then scale, add the residual and compress."""
        told = work.shared.get("field")
        field = None if told is None else received(told, work.start.cpu())
        running = self.elasticity > 0 and self.fisher == "running"
        fisher = RunningFisher(work.W, work.settings.batch_size) if running else None
        self._descend(work, field, fisher)
        moved = work.W - work.start
        updates = self._updates(work, moved, self._residual(work), self._completion(work, field))
        if self.elasticity == 0:
            return updates
        diagonal = self._exact_fisher(work) if fisher is None else fisher.mean(work.steps_done)
        fields = self._fields(diagonal, moved, self.density_up, work.settings)
        return [{**update, "field": sent} for update, sent in zip(updates, fields, strict=True)]

    def _descend(self, work: LocalWork, field: ElasticField | None, fisher: RunningFisher | None) -> None:
        """Steps on f_k and the elastic term; the running Fisher watches some of them."""
        step = ElasticStep(field, work.settings.eta, self.elasticity, self.step, work.W.device)
        if self.step == "implicit":
            work.sgd(step.pull, fisher)
            return
        for number, (active, gradient) in enumerate(work.descent()):
            step(work.W[:active], gradient)
            if fisher is not None and fisher.watches(number):
                fisher.squares[:active].addcmul_(gradient, gradient)

    def _residual(self, work: LocalWork) -> Tensor:
        """R^k = Δ^k − ST(Δ^k) of the last round, or all of Δ^k if the server never got ST(Δ^k)."""
        residual = work.state["residual"]
        for row, lost in zip(residual, work.lost, strict=True):
            if self.density_up == 1 and (lost is None or not self.echo):
                row.zero_()
            elif lost is not None and isinstance(update := lost.get("update"), Ternary):
                put_back(row, update)
        return residual

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

    def _updates(self, work: LocalWork, moved: Tensor, residual: Tensor, scale: Tensor | None) -> list[Parts]:
        """Δ^k = R^k + scale ⊙ (w_s − w_0), and ST of it; whole models where nothing is compressed."""
        if self.density_up < 1:
            produced = residual.add_(moved) if scale is None else residual.addcmul_(scale, moved)
            sent = self._compress(produced, self.density_up, work.settings)
            work.state["residual"] = subtract(produced, sent)
            return [{"update": update} for update in sent]
        # w_s + (scale − 1)(w_s − w_0) + R^k rather than w_0 + Δ^k: without scale and residual it is w_s bit for bit.
        models = work.W + residual if scale is None else work.W + (scale - 1) * moved + residual
        work.state["residual"] = residual + moved if scale is None else torch.addcmul(residual, scale, moved)
        return [{"update": Dense(model)} for model in models.numpy()]

    def _exact_fisher(self, work: LocalWork) -> Tensor:
        """u^k (C, n) at w_s, from samples."""
        x, y, weights, seeds = work.samples(self.fisher_samples)
        return exact_fisher(work.rows, x, y, weights, "model" if self.fisher == "true" else "data", seeds)

    # Server, after a round

    def aggregate(
        self, server: ServerState, contributions: Sequence[Contribution], settings: RoundSettings
    ) -> tuple[ServerState, Payload | None]:
        """Δ^G = R^G + Σ (p^k/π_k) ST(Δ^k); B = ST(Δ^G); R^G = Δ^G − B; w changes by B."""
        if not contributions:
            return server, None
        weights = self._weights(contributions, settings)
        updates = [contribution.parts["update"] for contribution in contributions]
        server = self._sum_fields(server, contributions)
        if self.density_down == 1 and self.server_applies == "broadcast":
            return server, Dense(averaged_model(server.w, updates, weights).numpy())
        total = server.tensors["residual"] + averaged_increment(server.w, updates, weights)
        step: Payload
        if self.density_down < 1:
            (step,) = sent = self._compress(total.unsqueeze(0), self.density_down, settings)
            left = subtract(total.clone()[None], sent)[0]
        else:
            step, left = Dense((server.w + total).numpy()), torch.zeros_like(total)
        server = server.having(residual=left)
        if self.server_applies == "aggregate":
            server = server.having(own=server.tensors["own"] + total)
        return server, step

    def _weights(self, contributions: Sequence[Contribution], settings: RoundSettings) -> list[float]:
        shares = [contribution.share for contribution in contributions]
        if self.participation != "share":
            rates = [contribution.answers if self.answer_rates else 1.0 for contribution in contributions]
            asked = [contribution.asked for contribution in contributions]
            shares = inverse_probability(shares, [a * r for a, r in zip(asked, rates, strict=True)])
        if self.participation == "self-normalised" or self.weighting == "A":
            shares = self_normalised(shares)
        if self.scale_at == "client" or self.weighting in ("A", "B"):
            return shares
        scales = [min(settings.local_steps / c.steps_done, self.weight_cap) for c in contributions]
        return [share * scale for share, scale in zip(shares, scales, strict=True)]

    def _sum_fields(self, server: ServerState, contributions: Sequence[Contribution]) -> ServerState:
        """U = Σ u^k, V = Σ u^k ⊙ w_s^k, as far as it was told."""
        if self.elasticity == 0:
            return server
        return server.having(**summed([contribution.parts["field"] for contribution in contributions], server.w))

    def model(self, server: ServerState) -> Tensor:
        """The server's model: in the paper's form it is not the one clients have."""
        return server.tensors.get("own", server.w)

    # Both sides

    def _compress(self, matrix: Tensor, density: float, settings: RoundSettings) -> list[Ternary]:
        """ST of every row."""
        return sparsify_ternary(matrix, density, settings.layout, whole=self.scope == "whole")

    def _fields(self, fisher: Tensor, moved: Tensor, density: float, settings: RoundSettings) -> list[Field]:
        """A field for every row, in full or in short; ``moved`` is where the anchor is, from the model."""
        if self.field == "dense" or (self.field == "auto" and density == 1):
            return full_fields(fisher, moved, settings.layout)
        return short_fields(fisher, moved, settings.layout, self.field_density)
