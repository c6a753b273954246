"""What an algorithm is: hyper-parameters and a few pure functions. State is passed in and returned.

In the order things happen in a round: the server broadcasts (`broadcast`, `broadcast_to`), clients train
(`local_update`, in most cases just a `local_step`), the server weighs what arrives (`weights`), and renews its own
state (`server_update`). Between training and the wire act the algorithm's `transforms` and, last, its `codec`. The
defaults are FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from torch import Tensor

from efl.algorithms.components.weights import by_samples
from efl.algorithms.compression.codec import Codec, Uncompressed
from efl.algorithms.search import SearchSpace
from efl.algorithms.state import Budget, Part, Parts, RoundSettings, ServerState, Update
from efl.settings import Settings
from efl.training.local_work import LocalWork
from efl.training.step import PLAIN, Step
from efl.wire import Payload

if TYPE_CHECKING:
    from efl.algorithms.transform import Transform

Uploads = Mapping[str, Sequence[Payload]]
Presets = Mapping[str, Mapping[str, Any]]

__all__ = [
    "Algorithm",
    "Budget",
    "LocalWork",
    "Part",
    "Parts",
    "Presets",
    "RoundSettings",
    "ServerState",
    "Step",
    "Update",
    "Uploads",
]


class Algorithm(Settings):
    """A federated algorithm. Fields are its hyper-parameters; subclasses override what differs from FedAvg.

    Example:
        >>> class Halved(Algorithm):
        ...     '''FedAvg whose models count half.'''
        ...
        ...     share: float = 0.5
        ...
        ...     def weights(self, updates, settings):
        ...         return [self.share * weight for weight in super().weights(updates, settings)]
        >>> Halved(share=0.25).share
        0.25
    """

    # What it is

    presets: ClassVar[Presets] = {}  # settings by the name that follows a colon: ``efl:paper``
    search_space: ClassVar[SearchSpace] = {}  # what `efl tune` tries besides the learning rate
    private_settings: ClassVar[Mapping[str, Any]] = {}  # what privacy needs; usual values of None are filled in
    late_settings: ClassVar[Mapping[str, Any]] = {}  # what replaces usual values where updates may be late

    @property
    def uses_incomplete(self) -> bool:
        """Whether a client that did fewer than E steps uploads anything."""
        return False

    @property
    def personalised(self) -> bool:
        """Whether clients have models of their own; `local_update` leaves them in ``work.personalised_models``."""
        return False

    @property
    def requests_per_update(self) -> int:
        """How many rounds in a row request something of the same cohort."""
        return 1

    @property
    def parts(self) -> Mapping[str, Part]:
        """What clients upload besides the delta."""
        return {}

    @property
    def personal_layers(self) -> Sequence[str]:
        """Patterns (`efl.models.selection`) of what stays with each client besides what an experiment says."""
        return ()

    @property
    def default_transforms(self) -> Sequence[Transform]:
        """Transformations that belong to the algorithm."""
        return ()

    @property
    def default_codec(self) -> Codec:
        """How deltas travel, unless `chain` says otherwise."""
        return Uncompressed()

    @property
    def budget(self) -> Budget | None:
        """How many bytes may travel; what is compressed by `RoundSettings.coarseness` keeps to it."""
        return None

    @property
    def uses_late(self) -> bool:
        """Whether updates that started from an earlier model can be used, relative to that: asynchronous rounds.

        So it is unless the algorithm keeps or sends anything but models, which it must know to be right then, too.
        """
        kept = ("init", "broadcast", "broadcast_to", "client_state", "parts", "server_update", "changes_model")
        return all(getattr(type(self), name) is getattr(Algorithm, name) for name in kept)

    added_transforms: ClassVar[tuple[Any, ...]] = ()  # transformations that `chain` added
    replaced_codec: ClassVar[Codec | None] = None

    @final
    @cached_property
    def transforms(self) -> Sequence[Transform]:
        """What acts on every delta between training and the codec, in the order of clients."""
        return (*self.default_transforms, *self.added_transforms)

    @final
    @cached_property
    def codec(self) -> Codec:
        """How deltas travel, both ways."""
        return self.replaced_codec or self.default_codec

    def fitted(self, clients: int, cohort: int) -> Self:
        """The algorithm for so many clients, of which a round samples ``cohort``; settings left to it are decided."""
        return self

    # Server, before a round

    def init(self, w: Tensor) -> ServerState:
        """The server's state before the first round."""
        return ServerState(w)

    def broadcast(self, server: ServerState, settings: RoundSettings) -> Parts:
        """What every client is sent this round besides the model; it finds it in ``work.shared``."""
        return {}

    def broadcast_to(self, server: ServerState, client: int) -> Payload | None:
        """What one client alone is sent besides that."""
        return None

    # Client

    def client_state(self, n: int) -> Mapping[str, int]:
        """The vectors that every client keeps between rounds, and how long each is; they start at zero."""
        return {}

    def local_step(self, work: LocalWork) -> Step:
        """The local step."""
        return PLAIN

    def local_update(self, work: LocalWork) -> Uploads:
        """Train ``work.W`` (C, n), renew ``work.state``; the update is ``work.delta``, other parts are returned."""
        work.train(self.local_step(work))
        return {}

    def on_encoded(self, work: LocalWork, updates: Sequence[Payload]) -> None:
        """After encoding: what the server will see of each row's delta, for algorithms that must know."""

    # Server, after a round

    def weights(self, updates: Sequence[Update], settings: RoundSettings) -> Sequence[float]:
        """How much each delta counts."""
        return by_samples([update.samples for update in updates])

    def changes_model(self, settings: RoundSettings) -> bool:
        """Whether this round's deltas make a new model."""
        return True

    def server_update(
        self, server: ServerState, updates: Sequence[Update], w_next: Tensor, settings: RoundSettings
    ) -> ServerState:
        """The server's next state besides the model, which goes from ``server.w`` to ``w_next``."""
        return server

    def evaluated_model(self, server: ServerState) -> Tensor:
        """The vector to evaluate."""
        return server.w

    def server_model(self, server: ServerState) -> Tensor | None:
        """The server's own model, if it is another than the clients'; evaluated beside it."""
        return None
