"""A local step as data, so that every backend can run any algorithm's step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """One local step: w ← keep ⊙ (w − η(g + drift)) + shift, where g is the gradient of a mini-batch at w.

    Tensors are (n,), or (C, n) where clients differ. ``index`` limits ``keep`` and ``shift`` to some coordinates; they
    are then as long as it is. An ``explicit`` step pulls where it begins: w ← keep ⊙ w + shift − η(g + drift). With
    another optimiser than plain SGD, its direction for g + drift is in the place of g + drift.

    >>> w = torch.tensor([[1.0, 2.0]])
    >>> Step(keep=torch.tensor([0.5, 1.0]), shift=torch.tensor([1.0, 0.0])).take(w, torch.ones(1, 2), eta=0.5)
    >>> w
    tensor([[1.2500, 1.5000]])
    """

    drift: Tensor | None = None
    keep: Tensor | None = None
    shift: Tensor | None = None
    index: Tensor | None = None
    explicit: bool = False

    def to(self, device: torch.device) -> Step:
        """The step on another device."""
        drift, keep, shift, index = (
            None if tensor is None else tensor.to(device) for tensor in (self.drift, self.keep, self.shift, self.index)
        )
        return Step(drift, keep, shift, index, self.explicit)

    def check(self, w: Tensor) -> None:
        """See that the step fits the rows ``w`` (C, n).

        Raises:
            ValueError: A tensor has another shape, or there is only one of ``keep`` and ``shift``.
            IndexError: ``index`` has coordinates that do not exist.
        """
        models, n = w.shape
        if (self.keep is None) != (self.shift is None):
            raise ValueError("a step needs both keep and shift, or neither")
        pulled = n if self.index is None else len(self.index)
        for tensor, width in ((self.drift, n), (self.keep, pulled), (self.shift, pulled)):
            if tensor is not None and tensor.shape not in ((width,), (models, width)):
                raise ValueError(f"a step of shape {tuple(tensor.shape)} for models {(models, n)}")
        if self.index is not None and pulled and not 0 <= int(self.index.min()) <= int(self.index.max()) < n:
            raise IndexError(f"a step at coordinates that are not among {n}")

    def pull(self, w: Tensor) -> None:
        """Replace the first rows ``w`` (A, n) by keep ⊙ w + shift, in place."""
        if self.keep is None or self.shift is None:
            return
        keep, shift = (t[: len(w)] if t.dim() == 2 else t for t in (self.keep, self.shift))
        if self.index is None:
            torch.addcmul(shift, w, keep, out=w)
        elif w.is_cpu and keep.dim() == shift.dim() == 1:
            # So few coordinates that NumPy is done before PyTorch has begun.
            index, factors, offsets = self.index.numpy(), keep.numpy(), shift.numpy()
            for row in w.numpy():
                pulled = row.take(index)
                pulled *= factors
                pulled += offsets
                row[index] = pulled
        else:
            w[:, self.index] = torch.addcmul(shift, w[:, self.index], keep)

    def take(
        self, w: Tensor, gradient: Tensor, eta: float, move: Callable[[Tensor, Tensor], None] | None = None
    ) -> None:
        """Move the first rows ``w`` (A, n) by one step along their ``gradient``, in place; by ``move``, if given."""
        if self.explicit:
            self.pull(w)
        if self.drift is not None:
            gradient = gradient + (self.drift[: len(w)] if self.drift.dim() == 2 else self.drift)
        if move is None:
            w.sub_(gradient, alpha=eta)
        else:
            move(w, gradient)
        if not self.explicit:
            self.pull(w)


PLAIN = Step()
