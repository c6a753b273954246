"""Elastic Federated Learning (Ma et al. 2021), with the paper's slips mended.

Clients minimise f_k + λ/2 Σ U (w − c)²: a pull towards where the last cohort ended, strong where the Fisher
information says a parameter matters (Eq. 2 and 3). They may finish only s of E steps; their displacement is scaled
by a_E/a_s to stand for E steps (Eq. 5). The server adds these up with weights p^k/π_k; what it broadcasts is what it
applies.

Beyond the paper, updates travel on a stochastic lattice instead of as ternary tensors, clients that return correct
their drift, and both sides remember: docs/algorithm.md has the reasons. `FIRST_EDITION` holds the settings without
these, with ST and residuals on both sides (Algorithm 2), and `PAPER` those that give the paper's literal form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from efl.algorithms.base import Algorithm, Budget, LocalWork, Part, Parts, Presets, Uploads
from efl.algorithms.components.drift import drift_of, drift_state, without_drift
from efl.algorithms.components.efl_presets import FIRST_EDITION, LATE, PAPER, PRIVATE, SEARCHED
from efl.algorithms.components.elastic import ElasticField, StepKind, completion_scale, elastic_step
from efl.algorithms.components.fields import full_fields, received, short_fields, summed
from efl.algorithms.components.information import FisherKind, information
from efl.algorithms.components.weights import inverse_probability
from efl.algorithms.compression.codec import Codec, TwoWay
from efl.algorithms.compression.error_feedback import UNCOMPRESSED_MODEL, ErrorFeedback
from efl.algorithms.compression.lattice import StochasticLattice
from efl.algorithms.compression.ternary import SparseTernary
from efl.algorithms.registry import ALGORITHMS
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.algorithms.transform import Transform
from efl.algorithms.transforms.caution import Caution, cautious
from efl.algorithms.transforms.memory import Memory
from efl.errors import UserError
from efl.settings import AtLeastOne, Count, Density, NonNegative, Positive
from efl.training.observers import SquaredGradients
from efl.wire import Field

Switch = Literal["auto", "on", "off"]
Participation = Literal["auto", "unbiased", "self-normalised", "share"]
REMEMBERED = 20  # rounds; where clients return less often, a memory is hardly worth the room it takes them
RETURNING = 5  # rounds; where clients return less often, the drift they remember is another, and training may diverge


@ALGORITHMS.register("efl")
class EFL(Algorithm):
    """Elastic federated learning; docs/algorithm.md has the reasons for the defaults.

    Attributes:
        elasticity: λ, the strength of the elastic term.
        bytes: How much may travel: a share of what FedAvg would send, or, above 1, bytes per client and round.
        spending: Whether later rounds get more of the bytes (``rising``), or all alike (``even``).
        step_up: The lattice's step up, in units of the root mean square of an update's entries; None: as bytes allow.
        step_down: The same for broadcasts.
        rounding: Uploads are rounded ``stochastic``, without bias, or to the ``nearest``, keeping a residual.
        density_up: The share of entries that an upload keeps as a ternary tensor; 1 sends all, None uses the lattice.
        density_down: The same for broadcasts.
        memory: Whether both sides remember what was sent; ``auto``: with the lattice, if they return every 20th round.
        drift: Whether clients correct their drift; ``auto``: with the lattice, if they return every fifth round.
        caution: κ of `Caution`, or of weights where they are self-normalised; None for 1 with the lattice, else 0.
        weighting: Incomplete work is scaled by a_E/a_s (``elastic``), by E/s (``C``), not (``B``), or dropped (``A``).
        weight_cap: θ of Assumption 5, the most that incomplete work is scaled by.
        fisher: ``running`` (of the gradients of the steps just done, free), ``empirical`` or ``true`` (their own pass).
        fisher_samples: How many samples that pass is over, at most.
        fisher_size: How large the information is in sum: as the ``running`` one, so that λ means the same for all,
            or as that kind has it (``own``). None for ``running`` with the lattice, else ``own``.
        step: The elastic step: ``implicit`` (stable for every λ) or ``explicit``.
        scale_at: Incomplete work is scaled at the ``client`` before compression, or at the ``server``, with residual.
        participation: ``unbiased`` weights p^k/π_k, ``self-normalised`` ones, or the ``share`` p^k; ``auto`` for the
            second with a lattice in rounds without memory, which else takes away the noise of a sum that is not 1.
        answer_rates: Whether π_k counts how often client k replies, besides how often it is sampled.
        server_applies: What the server adds to its model: what it ``broadcast``, or the uncompressed ``aggregate``.
        scope: ST over the ``whole`` vector, or for each ``tensor`` by itself.
        field: The elastic field travels ``dense``, at 64 bit per parameter, or ``sparse``: rounded, its rows and
            columns, and the entries that matter most. ``auto`` is dense in a direction not compressed.
        field_density: The share of entries that a sparse field has.
        field_every: Clients send their field in every so many-th round, and are pulled in the round after.
        echo: Whether clients take a lost upload back into their residual.
    """

    presets: ClassVar[Presets] = {"paper": PAPER, "2021": FIRST_EDITION}
    private_settings, search_space, late_settings, uses_late = PRIVATE, SEARCHED, LATE, True
    elasticity: NonNegative = 0.3
    bytes: str | float = "1/25"
    spending: Literal["rising", "even"] = "rising"
    step_up: Positive | None = None
    step_down: Positive | None = None
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    density_up: Density | None = None
    density_down: Density | None = None
    memory: Switch = "auto"
    drift: Switch = "auto"
    caution: NonNegative | None = None
    weighting: Literal["elastic", "A", "B", "C"] = "elastic"
    weight_cap: AtLeastOne = 20.0
    fisher: FisherKind = "running"
    fisher_samples: Count = 256
    fisher_size: Literal["running", "own"] | None = None
    step: StepKind = "implicit"
    scale_at: Literal["client", "server"] = "client"
    participation: Participation = "auto"
    answer_rates: bool = True
    server_applies: Literal["broadcast", "aggregate"] = "broadcast"
    scope: Literal["tensor", "whole"] = "whole"
    field: Literal["auto", "sparse", "dense"] = "auto"
    field_density: Density = 0.0025
    field_every: Count = 1
    echo: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            Budget.named(self.bytes)
        except (ValueError, ZeroDivisionError, OverflowError):
            raise UserError(f"bytes: {self.bytes!r:.40} is neither a share like '1/25' nor a number of bytes") from None
        if self.scale_at == "server" and self.weighting == "elastic":
            raise UserError("scale_at: the server cannot scale by a_E/a_s, only by E/s: set weighting to 'C' as well")
        if self.scale_at == "server" and (self._remembers or self._corrects_drift):
            raise UserError("scale_at: with memory or drift, clients scale their work themselves")

    def fitted(self, clients: int, cohort: int) -> Self:
        """Without memory and drift correction where clients return too rarely."""
        remember, correct = clients <= REMEMBERED * cohort, clients <= RETURNING * cohort
        memory: Switch = "on" if self._remembers and (remember or self.memory == "on") else "off"
        drift: Switch = "on" if self._corrects_drift and (correct or self.drift == "on") else "off"
        fitted = replace(self, memory=memory, drift=drift, caution=self._kappa)
        if self.participation != "auto" or fitted._remembers:
            return fitted
        return replace(fitted, participation="self-normalised" if self._on_lattice else "unbiased")

    @property
    def budget(self) -> Budget | None:
        """What ``bytes`` say, where a lattice can keep to it."""
        up, down = (self.density_up, self.step_up), (self.density_down, self.step_down)
        return Budget.named(self.bytes, even=self.spending == "even") if (None, None) in (up, down) else None

    @property
    def _on_lattice(self) -> bool:
        return self.density_up is None and self.density_down is None

    def _turned(self, switch: Switch) -> bool:
        """Whether memory or drift correction is on; what the program is to decide is, where it is possible."""
        return switch == "on" or (switch == "auto" and self._on_lattice and self.scale_at == "client")

    @property
    def _remembers(self) -> bool:
        return self._turned(self.memory)

    @property
    def _corrects_drift(self) -> bool:
        return self._turned(self.drift)

    def _remembers_in(self, settings: RoundSettings) -> bool:
        """Whether memories act in a round: they do not where clients are too unequal."""
        return self._remembers and settings.clients > 0

    def _normalises(self, settings: RoundSettings) -> bool:
        """Whether weights are made to sum to 1."""
        noisy = self.participation == "auto" and self._on_lattice and not self._remembers_in(settings)
        return noisy or self.participation == "self-normalised" or self.weighting == "A"

    @property
    def _kappa(self) -> float:
        return self.caution if self.caution is not None else 1.0 if self._on_lattice else 0.0

    @property
    def _observes(self) -> bool:
        return "running" in (self.fisher, self.fisher_size or ("running" if self._on_lattice else "own"))

    @property
    def _unbiased(self) -> bool:
        """Whether an upload is right on average, so that no residual is needed."""
        return self.density_up is None and self.rounding == "stochastic"

    @property
    def uses_incomplete(self) -> bool:
        """All schemes but A."""
        return self.weighting != "A"

    @property
    def parts(self) -> Mapping[str, Part]:
        """The field, where there is elasticity."""
        return {"field": Part(Field, kind="field", every=self.field_every)} if self.elasticity > 0 else {}

    @property
    def _lattice(self) -> StochasticLattice:
        return StochasticLattice(self.step_up, self.step_down, self.rounding)

    @property
    def default_codec(self) -> Codec:
        """The lattice, or ST, with residuals where rounding is not without bias."""
        lattice = self._lattice
        ternary = SparseTernary(self.density_up or 1.0, self.density_down or 1.0, self.scope)
        up: Codec = lattice if self.density_up is None else ternary
        down: Codec = lattice if self.density_down is None else ternary
        both = up if up is down else TwoWay(up, down)
        return ErrorFeedback(both, self.echo, self.server_applies, "server" if self._unbiased else "both")

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Memory and caution; that only where weights do not have it."""
        of: Literal["sent", "meant"] = "sent" if self._unbiased else "meant"
        memory = (Memory(of, self._lattice),) if self._remembers else ()
        weighed = self.participation in ("auto", "self-normalised") and self._on_lattice
        caution = Caution(self._kappa, "remembered" if weighed else "all")
        return (*memory, *((caution,) if self._kappa > 0 and (self._remembers or not weighed) else ()))

    # Server, before a round

    def init(self, w: Tensor) -> ServerState:
        """No elastic field yet."""
        names = ("fisher", "covered", "anchor") if self.elasticity > 0 else ()
        return ServerState(w, {name: torch.zeros_like(w) for name in names})

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """The elastic field of the last round, the anchor as its displacement from the model."""
        if not self._sends_field(settings.round - 1) or not bool(server.tensors["fisher"].any()):
            return {}
        anchor = torch.where(server.tensors["covered"] > 0, server.tensors["anchor"], server.w)
        moved = anchor - server.w
        return {"field": self._fields(server.tensors["fisher"][None], moved[None], settings, self.density_down != 1)[0]}

    # Client

    def client_state(self, n: int) -> Mapping[str, int]:
        """What the drift's correction needs."""
        return drift_state(n) if self._corrects_drift else {}

    def local_update(self, work: LocalWork) -> Uploads:
        """Elastic SGD; what was done is scaled to stand for E steps."""
        shared = work.shared.get("field")
        field = None if shared is None else received(shared, work.start.cpu())
        sends = self._sends_field(work.settings.round)
        observer = SquaredGradients(work.W, work.settings.batch_size) if sends and self._observes else None
        drift = drift_of(work) if self._corrects_drift and work.settings.optimiser.linear else None
        work.train(replace(elastic_step(field, work.settings.eta, self.elasticity, self.step), drift=drift), observer)
        work.scale = self._completion(work, field)
        if drift is not None:
            moved = without_drift(work, drift, field, self.elasticity, self.step)
            work.delta = moved if work.scale is None else moved * work.scale
        if not sends:
            return {}
        diagonal = information(work, observer, self.fisher, self.fisher_samples)
        return {"field": self._fields(diagonal, work.displacement, work.settings, self.density_up != 1)}

    def _completion(self, work: LocalWork, field: ElasticField | None) -> Tensor | None:
        """What turns the work of s steps into that of E, capped at θ; None where there is nothing to scale here."""
        settings = work.settings
        complete = int(work.steps[-1]) >= settings.local_steps  # the rows with fewest steps come last
        if complete or self.scale_at == "server" or self.weighting in ("A", "B"):
            return None
        pulled = field if self.weighting == "elastic" else None
        eta, most, done, n = settings.eta, settings.local_steps, work.steps_done, work.model.n
        scale = completion_scale(pulled, eta, self.elasticity, done, most, n, self.step, settings.optimiser)
        return scale.clamp_(max=self.weight_cap)

    # Server, after a round

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """p^k/π_k, `cautious` in rounds without memory; times E/s, where the server scales."""
        shares = [update.share for update in updates]
        if self.participation != "share":
            shares = inverse_probability(shares, [update.probability(self.answer_rates) for update in updates])
        if self._normalises(settings):
            kappa = self._kappa if self._on_lattice and not self._remembers_in(settings) else 0.0
            shares = cautious(shares, [update.steps for update in updates], settings.local_steps, kappa)
        if self.scale_at == "client" or self.weighting in ("A", "B"):
            return shares
        worth, most = settings.optimiser.progress, settings.local_steps
        scales = [min(worth(most) / worth(update.steps), self.weight_cap) for update in updates]
        return [share * scale for share, scale in zip(shares, scales, strict=True)]

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """U = Σ u^k, V = Σ u^k ⊙ w_s^k, as far as clients sent them."""
        if not self._sends_field(settings.round):
            return server
        return server.having(**summed([update.parts["field"] for update in updates], server.w))

    def server_model(self, server: ServerState) -> Tensor | None:
        """In the paper's form the server adds what it did not broadcast, and has a model that no client has."""
        return server.tensors.get(UNCOMPRESSED_MODEL)

    # Both sides

    def _sends_field(self, round_: int) -> bool:
        """Whether clients send their fields in a round."""
        return "field" in self.parts and self.parts["field"].comes_in(round_)

    def _fields(self, fisher: Tensor, moved: Tensor, settings: RoundSettings, compressed: bool) -> list[Field]:
        """A field for every row, in full or in short; ``moved`` is where the anchor is, from the model."""
        if self.field == "dense" or (self.field == "auto" and not compressed):
            return full_fields(fisher, moved, settings.layout)
        return short_fields(fisher, moved, settings.layout, self.field_density, short=self._on_lattice)
