"""Which backend computes a run's local steps: the first of native, batched and eager that can."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from efl.federation import Federation
from efl.federation.preprocessing import selected
from efl.models import FlatModel
from efl.native import NotCompiledError
from efl.training.backends.batched import BatchedRows
from efl.training.backends.chain import Chain
from efl.training.backends.eager import EagerRows
from efl.training.backends.native import CompiledChain, NativeBatches, NativeRows
from efl.training.backends.rows import Rows
from efl.training.tasks.base import Task
from efl.training.tasks.elementwise import Regression
from efl.training.tasks.objective import PLAIN_TASK

log = logging.getLogger("efl")

WORTH_COMPILING = 3 * 10**7  # multiplications in a step, at most; larger products PyTorch cuts up to fit the caches


ROWS_TRIED = 5


@dataclass(frozen=True, eq=False)
class Backend(ABC):
    """Makes the rows of a model; made once per process."""

    model: FlatModel
    name: ClassVar[str]
    batched: ClassVar[bool]
    task: Task = field(default=PLAIN_TASK, kw_only=True)

    @abstractmethod
    def rows(self, w: Tensor, count: int, buffers: Tensor | None = None) -> Rows:
        """``count`` copies of the model at ``w``."""

    def supports(self, federation: Federation, chosen: Tensor) -> bool:
        """Whether this backend can take a step on a mini-batch of the ``chosen`` samples (B,)."""
        return True


@dataclass(frozen=True, eq=False)
class Eager(Backend):
    """Any network, one row at a time."""

    name, batched = "eager", False

    def rows(self, w: Tensor, count: int, buffers: Tensor | None = None) -> Rows:
        """``count`` copies of the model at ``w``."""
        return EagerRows(self.model, w, count, buffers, self.task)


@dataclass(frozen=True, eq=False)
class Batched(Backend):
    """Chains of linear layers, rows as one product."""

    chain: Chain
    name, batched = "batched", True

    def rows(self, w: Tensor, count: int, buffers: Tensor | None = None) -> Rows:
        """``count`` copies of the model at ``w``."""
        return BatchedRows(self.model, self.chain, w, count, buffers, self.task)

    def supports(self, federation: Federation, chosen: Tensor) -> bool:
        """Linear layers over more than one dimension must run row by row, and inputs by name."""
        x, y = _batch_by_pytorch(federation, chosen.expand(2, -1))
        if not isinstance(x, Tensor):
            return False
        x, y = x.to(self.model.device), y.to(self.model.device)
        try:
            self.rows(self.model.w, 2).gradient(2, x, y)
        except RuntimeError:
            return False
        return True

    def keeps_rows_apart(self, federation: Federation, chosen: Tensor) -> bool:
        """Whether a row's step has the same bits in every company, tried on some rows with samples of their own.

        Libraries choose how to multiply by the number of products, too, and then add up in another order. For some
        shapes, mostly of a single output, that is so even between one product and two. Losses other than plain
        cross-entropy are found row by row, so that any will do here.
        """
        samples = (chosen + len(chosen) * torch.arange(ROWS_TRIED)[:, None]) % len(federation.x)
        x, y = _batch_by_pytorch(federation, samples)
        if not self.task.plain:
            y = torch.zeros(*samples.shape, self.chain.outputs)
        spread = torch.arange(ROWS_TRIED * self.model.n).view(ROWS_TRIED, -1).sin().mul_(0.1)
        found = [self._step(x, y, spread, some) for some in _groups(ROWS_TRIED)]
        return all(torch.equal(rows, found[0][some]) for rows, some in zip(found, _groups(ROWS_TRIED), strict=True))

    def _step(self, x: Tensor, y: Tensor, spread: Tensor, some: slice) -> Tensor:
        """The gradients of some rows, beside where a step leads them; ``spread`` tells their weights apart."""
        count, task = len(spread[some]), self.task if self.task.plain else Regression()
        rows = BatchedRows(self.model, self.chain, self.model.w, count, task=task)
        rows.W += spread[some]
        rows.gradient(count, x[some], y[some])
        rows.descend(count, x[some], y[some], 0.1)
        return torch.cat([rows.G, rows.W], dim=1)


@dataclass(frozen=True, eq=False)
class Native(Batched):
    """The same in compiled code."""

    compiled: CompiledChain
    name = "native"

    def rows(self, w: Tensor, count: int, buffers: Tensor | None = None) -> Rows:
        """``count`` copies of the model at ``w``."""
        return NativeRows(self.model, self.chain, self.compiled, w, count, buffers)

    def supports(self, federation: Federation, chosen: Tensor) -> bool:
        """Whether compiled code takes the same step as PyTorch, to rounding, from fetching the samples on."""
        x, y = _batch_by_pytorch(federation, chosen[None])
        pytorch, native = BatchedRows(self.model, self.chain, self.model.w, 1), self.rows(self.model.w, 1)
        expected, found = (torch.zeros_like(pytorch.W) for _ in range(2))
        pytorch.descend(1, x, y, 1.0, expected)
        if (source := federation.source()) is None:
            native.descend(1, x, y, 1.0, found)
        else:
            batches, once = NativeBatches(source, chosen[None, None], y[None]), torch.ones(1, dtype=torch.int64)
            self.compiled.train(batches, native.W, once, range(1), 1.0, torch.zeros(1), squares=found)
        pairs = ((native.W - self.model.w, pytorch.W - self.model.w), (found, expected))
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max())) for a, b in pairs)


def select_backend(
    model: FlatModel, federation: Federation, batch_size: int, *, native: bool = True, task: Task = PLAIN_TASK
) -> Backend:
    """The quickest backend that supports the model, the data and the task, tried on a mini-batch.

    Compiled code knows plain cross-entropy only. With an optimiser other than plain SGD it finds the gradients and
    PyTorch takes the steps. The only client of a federation shares with nobody: PyTorch's own arithmetic makes its
    training plain SGD. Models with personal layers are trained one by one.
    """
    alike = len(federation) > 1 and not len(model.personal)
    chain = Chain.of(model.module) if alike else None
    chosen = torch.arange(batch_size) % len(federation.x)
    if chain is None or not (batched := Batched(model, chain, task=task)).supports(federation, chosen):
        return Eager(model, task=task)
    on_cpu = model.device.type == "cpu"
    if on_cpu and model.n * batch_size > WORTH_COMPILING:  # products so large are as quick one by one
        return Eager(model, task=task)
    if on_cpu and native and task.plain:
        compiled = _native(batched, federation, chosen)
        if compiled is not None:
            return compiled
    # Other devices make no promise about last bits.
    return batched if not on_cpu or batched.keeps_rows_apart(federation, chosen) else Eager(model, task=task)


def _native(batched: Batched, federation: Federation, chosen: Tensor) -> Native | None:
    """Compiled code for a chain, if there is some and it finds what PyTorch does."""
    try:
        compiled = CompiledChain.of(batched.chain, batched.model)
    except NotCompiledError as problem:
        _warn_not_compiled(str(problem))
        return None
    if compiled is None:
        return None
    backend = Native(batched.model, batched.chain, compiled)
    if not backend.supports(federation, chosen):
        _warn_not_compiled("compiled code finds other numbers than PyTorch")
        return None
    return backend


def _groups(count: int) -> list[slice]:
    """All rows first; then each by itself, and some of them."""
    return [slice(0, count), *(slice(k, k + 1) for k in range(count)), slice(0, 2), slice(1, 4), slice(2, count)]


def _batch_by_pytorch(federation: Federation, chosen: Tensor) -> tuple[Any, Tensor]:
    """Inputs and labels of the ``chosen`` samples, fetched without compiled code, which is yet to be tried."""
    assert federation.inputs is not None
    return federation.inputs(selected(federation.x, chosen)), federation.labels_of(chosen)


@cache
def _warn_not_compiled(why: str) -> None:
    """Once per process."""
    log.warning("training steps are not compiled (%s); small networks train more slowly", why)
