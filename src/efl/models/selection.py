"""Which tensors of a network are trained, which of them travel, and which stay with each client.

They are chosen by patterns. A pattern is the name of a tensor or of a module that holds it, as in
``module.named_parameters()``, or the class of the layer it belongs to, with ``*`` and ``?`` as in file names: ``head``,
``layers.0.*``, ``*lora_*``, ``BatchNorm*``. `LAST_LAYER` is the last layer that is trained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from efl.errors import UserError

LAST_LAYER = "last layer"
"""The pattern that stands for the last layer that is trained."""
NAMES_SHOWN = 6

Named = Sequence[tuple[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Selection:
    """The tensors of a module by what becomes of them, each list in the module's order.

    Attributes:
        shared: Parameters that are trained together.
        personal: Parameters that every client trains by itself.
        buffers: Float buffers that are averaged.
        personal_buffers: Float buffers that stay with each client.
        constant: All other buffers; integers, too.
        frozen: Normalisation layers whose statistics are constant; they use them in training, too.
    """

    shared: Named
    personal: Named
    buffers: Named
    personal_buffers: Named
    constant: Named
    frozen: Sequence[nn.Module]

    @classmethod
    def of(cls, module: nn.Module, trainable: Sequence[str] = (), personal: Sequence[str] = ()) -> Selection:
        """Select by patterns, and freeze what is not to be trained.

        A layer whose own parameters are all frozen is frozen altogether: its buffers stay as they are. So do buffers
        that a ``state_dict`` leaves out.
        """
        names = Names(module)
        if trainable:
            wanted = names.matching(trainable)
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name in wanted and parameter.is_floating_point())
        own = names.matching(personal)
        parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        shared, kept = _divided(parameters, own)
        renewed = names.matching(trainable) if trainable else None
        changing = [(name, b) for name, b in module.named_buffers() if names.changes(name, renewed)]
        buffers, kept_buffers = _divided(changing, own)
        moving = {name for name, _ in changing}
        constant = [(name, b) for name, b in module.named_buffers() if name not in moving]
        frozen = {names.owner(name): None for name, b in constant if b.is_floating_point()}
        norms = [layer for layer in frozen if isinstance(layer, _NormBase)]
        return cls(shared, kept, buffers, kept_buffers, constant, norms)


class Names:
    """The tensors of a module by name, and what patterns match."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._all: dict[str, list[str]] = {}  # the name that stands for a tensor, and all that it has
        first: dict[int, str] = {}
        every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        for name, tensor in every:
            self._all.setdefault(first.setdefault(id(tensor), name), []).append(name)

    def owner(self, name: str) -> nn.Module:
        """The layer that a tensor belongs to."""
        return self.module.get_submodule(name.rpartition(".")[0])

    def places(self, name: str) -> list[tuple[nn.Module, str]]:
        """Every layer that holds a tensor, and its name there."""
        return [(self.owner(one), one.rpartition(".")[2]) for one in self._all[name]]

    def matching(self, patterns: Iterable[str]) -> set[str]:
        """The names of the tensors that some pattern matches."""
        return {name for pattern in patterns for name in self._matched(pattern)}

    def check(self, patterns: Sequence[str], key: str) -> None:
        """Raise `UserError` if a pattern matches nothing; ``key`` is where it stands."""
        for pattern in patterns:
            if not self._matched(pattern):
                some = ", ".join(list(self._all)[:NAMES_SHOWN]) + (", …" if len(self._all) > NAMES_SHOWN else "")
                raise UserError(f"{key}: nothing in the model matches {pattern!r}; its tensors are {some}")

    def changes(self, name: str, renewed: set[str] | None) -> bool:
        """Whether training changes a buffer such that others want to know; ``renewed`` is what is to be trained."""
        owner, leaf = self.owner(name), name.rpartition(".")[2]
        buffer = owner._buffers[leaf]
        if buffer is None or not buffer.is_floating_point() or leaf in owner._non_persistent_buffers_set:
            return False
        if list(owner.parameters(recurse=False)):
            return not self.is_frozen(owner)
        return renewed is None or name in renewed

    def is_frozen(self, layer: nn.Module) -> bool:
        """Whether a layer has parameters, and none of them is trained."""
        parameters = list(layer.parameters(recurse=False))
        return bool(parameters) and not any(p.requires_grad for p in parameters)

    def _matched(self, pattern: str) -> list[str]:
        if pattern == LAST_LAYER:
            trained = (name for name, p in self.module.named_parameters(remove_duplicate=False) if p.requires_grad)
            last = deque((self.owner(name) for name in trained), maxlen=1)
            return [name for name, known in self._all.items() if any(self.owner(one) in last for one in known)]
        return [name for name, known in self._all.items() if any(self._fits(one, pattern) for one in known)]

    def _fits(self, name: str, pattern: str) -> bool:
        pieces = name.split(".")
        paths = (".".join(pieces[:length]) for length in range(1, len(pieces) + 1))
        return fnmatchcase(type(self.owner(name)).__name__, pattern) or any(fnmatchcase(p, pattern) for p in paths)


def _divided(tensors: Named, own: set[str]) -> tuple[Named, Named]:
    """Those that are not in ``own``, and those that are."""
    return [one for one in tensors if one[0] not in own], [one for one in tensors if one[0] in own]
