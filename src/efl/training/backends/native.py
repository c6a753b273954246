"""Chains of linear layers trained by compiled code: many steps of many models in one call.

It computes what `BatchedRows` does, in another order of additions. A model's numbers do not depend on the others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from efl.models import FlatModel
from efl.native import bindings, loops
from efl.native.bindings import Layer, Source
from efl.training.backends.batched import BatchedRows
from efl.training.backends.chain import Chain, Link
from efl.training.local_work import LocalWork, no_deadline
from efl.training.observers import SquaredGradients
from efl.training.step import PLAIN, Step

MOST_LAYERS = 63  # one less than in native/chain.c
LANES = 16  # of a vector, at most
PREDICTED_AT_ONCE = 20  # samples, which stay in the cache
PLAIN_STEP = bindings.Step(None, None, None, None, is_explicit=False)
NO_SAMPLE = "a sample does not exist, or its label is not among the classes"
UNINTERRUPTED = 4 * 10**9  # multiplications of compiled code, after which a Ctrl-C is heard: a few tenths of a second


@dataclass(frozen=True, eq=False)
class NativeBatches:
    """Mini-batches as compiled code takes them: where samples lie, which are chosen, their labels (steps, C, B)."""

    source: Source
    chosen: Tensor
    labels: Tensor


class CompiledChain:
    """Linear layers with ReLU, leaky ReLU or nothing between them.

    Raises:
        NotCompiledError: Compiled code cannot be had.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.loops = loops()
        self._layers = (Layer * len(layers))(*layers)
        self.features = int(layers[0].inputs)
        self._per_sample = self.features + sum(layer.inputs + layer.outputs for layer in layers)
        self._squares = max(layer.inputs + layer.outputs for layer in layers)
        self._widest = max(layer.outputs for layer in layers)
        self.n = sum(layer.outputs * (layer.inputs + (layer.bias >= 0)) for layer in layers)

    @classmethod
    def of(cls, chain: Chain, model: FlatModel) -> CompiledChain | None:
        """That of ``chain``; None if it has layers that are not known here, or the model is on another device."""
        starts = {spec.name: spec.start for spec in model.layout.specs}
        layers: list[Layer] = []
        for link in chain.links:
            if isinstance(link.layer, nn.Linear):
                layers.append(_linear(link, link.layer, starts))
            elif isinstance(link.layer, nn.ReLU | nn.LeakyReLU):
                slope = link.layer.negative_slope if isinstance(link.layer, nn.LeakyReLU) else 0.0
                if not layers or layers[-1].slope != 1 or slope < 0:
                    return None
                layers[-1].slope = slope
            elif not isinstance(link.layer, nn.Flatten | nn.Identity):
                return None
        known = layers[-1].slope == 1 and len(layers) <= MOST_LAYERS and model.device.type == "cpu"
        return cls(layers) if known else None

    def gradient(
        self, w: Tensor, x: Tensor, y: Tensor, to: Tensor, factor: float = 1.0, *, squares: Tensor | None = None
    ) -> Tensor:
        """The gradients at rows of ``w`` on x (C, B, …), times ``factor``, into rows of ``to``, or onto ``w``.

        Their squares are added to ``squares``. Returns the losses (C,).
        """
        size, losses = self._sized(x, y, w, to, squares), torch.empty(len(y))
        given = (x.contiguous(), y.contiguous(), w, to, factor, to is w, squares, losses, self._scratch(y.shape[1]))
        if self.loops.gradient(self._layers, *size, *given):
            raise IndexError("a label is not among the classes")
        return losses

    def squared_gradients(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """The squares of every sample's gradient, summed by ``weights`` (C, B), at rows of ``w``."""
        if weights.shape != y.shape:
            raise ValueError(f"weights of shape {tuple(weights.shape)} for {tuple(y.shape)} labels")
        to = torch.empty_like(w)
        size = self._sized(x, y, w, to)
        given = (x.contiguous(), y.contiguous(), weights.contiguous(), w, to, self._scratch(y.shape[1]))
        if self.loops.fisher(self._layers, *size, *given):
            raise IndexError("a label is not among the classes")
        return to

    def predict(self, w: Tensor, source: Source, chosen: Tensor) -> Tensor:
        """The class that the model ``w`` (n,) takes each of the ``chosen`` samples (S,) for."""
        self._check(1, w[None])
        self._check_features(source)
        predicted, chosen = torch.empty(len(chosen), dtype=torch.int64), chosen.contiguous()
        given = (ctypes.byref(source), chosen, len(chosen), w, predicted, self._scratch(PREDICTED_AT_ONCE))
        if self.loops.answers(self._layers, len(self._layers), PREDICTED_AT_ONCE, *given):
            raise IndexError("a sample does not exist")
        return predicted

    def train(self, *given: Any, **named: Any) -> None:
        """One call of the compiled loop over steps; takes what `train_arguments` does."""
        if self.loops.train(*self.train_arguments(*given, **named)):
            raise IndexError(NO_SAMPLE)

    def train_arguments(
        self,
        batches: NativeBatches,
        w: Tensor,
        steps: Tensor,
        some: range,
        eta: float,
        losses: Tensor,
        step: bindings.Step = PLAIN_STEP,
        squares: Tensor | None = None,
        gradients: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """What the compiled loop is given to let the rows of ``w`` (C, n) take ``some`` steps, checked.

        Each row takes no more than its ``steps`` (C,). Losses are added to ``losses`` (C,), the squares of the
        gradients that `SquaredGradients` watches to ``squares`` (C, n). Where there is a matrix ``gradients`` (C, n)
        nothing moves, and all gradients are added to it.
        """
        (most, models, batch), last = batches.chosen.shape, some.stop
        if not len(steps) == len(losses) == models or last > most:
            raise ValueError(f"{most} steps of {models} models; {last} of {len(steps)} were requested")
        if batches.labels.shape != batches.chosen.shape:
            raise ValueError(f"labels {tuple(batches.labels.shape)} of samples {tuple(batches.chosen.shape)}")
        self._check_features(batches.source)
        self._check(models, w, squares, gradients)
        separate = gradients is None and (step.drift is not None or step.is_explicit)
        return (
            *(self._layers, len(self._layers), models, self.n, batch),
            *(ctypes.byref(batches.source), batches.chosen, batches.labels, steps, some.start, last, w, eta),
            *(ctypes.byref(step), squares, SquaredGradients.EVERY, losses),
            *(gradients, torch.empty(self.n) if separate else None, self._scratch(batch)),
        )

    def _check(self, models: int, *matrices: Tensor | None) -> None:
        """Raise `ValueError` unless the matrices have a row for every model."""
        if any(matrix is not None and matrix.shape != (models, self.n) for matrix in matrices):
            raise ValueError(f"not the vectors of {models} models of {self.n} parameters")

    def _check_features(self, source: Source) -> None:
        """Raise `ValueError` unless the samples have as many values as the first layer takes."""
        if source.channels * source.size != self.features:
            raise ValueError(f"samples of {source.channels * source.size} values for {self.features}")

    def _scratch(self, batch: int) -> Tensor:
        """Memory for a mini-batch, its activations, their derivatives, squares, and columns filled up to a vector."""
        return torch.empty((self._per_sample + self._squares) * batch + LANES * (self._widest + batch))

    def _sized(self, x: Tensor, y: Tensor, *matrices: Tensor | None) -> tuple[int, int, int, int]:
        """How many layers, models, parameters and samples of each there are."""
        if y.dim() != 2 or x.shape[:2] != y.shape or x[0, 0].numel() != self.features:
            raise ValueError(f"samples of shape {tuple(x.shape)} and {tuple(y.shape)} labels")
        self._check(len(y), *matrices)
        return len(self._layers), len(y), self.n, y.shape[1]


class NativeRows(BatchedRows):
    """Rows whose gradients are found by compiled code."""

    def __init__(
        self,
        model: FlatModel,
        chain: Chain,
        compiled: CompiledChain,
        w: Tensor,
        count: int,
        buffers: Tensor | None = None,
    ) -> None:
        super().__init__(model, chain, w, count, buffers)
        self.compiled = compiled

    def at(self, w: Tensor, count: int) -> NativeRows:
        """``count`` more models of the same kind, all at ``w``."""
        return NativeRows(self.model, self.chain, self.compiled, w, count)

    def targets(self, y: Tensor) -> Tensor:
        """Labels as they are."""
        return y

    def gradient(self, active: int, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``G`` for the first ``active`` rows with the gradient on x (active, B, …); return their losses."""
        return self.compiled.gradient(self.W[:active], x, y, self.G[:active])

    def descend(self, active: int, x: Tensor, y: Tensor, eta: float, squares: Tensor | None = None) -> Tensor:
        """Move the first ``active`` rows of ``W`` by −η times the gradient; return their losses."""
        w, watched = self.W[:active], None if squares is None else squares[:active]
        return self.compiled.gradient(w, x, y, w, -eta, squares=watched)

    def squared_gradients(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Σ over samples of (δ²)ᵀ(x²), layer by layer."""
        return self.compiled.squared_gradients(self.W[: len(x)], x, y, weights)


@dataclass(eq=False)
class NativeWork(LocalWork):
    """Local work on samples that compiled code can read: all steps of all rows in one call, or a few."""

    batches: NativeBatches | None = None

    def train(
        self, step: Step = PLAIN, observer: SquaredGradients | None = None, *, gradients: Tensor | None = None
    ) -> None:
        """Take all steps; or, where there is a matrix ``gradients`` (C, n), move nothing and add them to it."""
        rows, batches, squares = self.rows, self.batches, None if observer is None else observer.squares
        assert isinstance(rows, NativeRows)
        assert batches is not None
        compiled, native_step = rows.compiled, _native_step(step, rows.W)
        steps, at_once = torch.from_numpy(self.steps), self._steps_at_once()
        for first, _ in self._active_rows(at_once):
            some = range(first, min(first + at_once, int(steps[0])))
            given = (batches, rows.W, steps, some, self.settings.eta, self.losses, native_step, squares, gradients)
            if compiled.loops.train(*compiled.train_arguments(*given)):
                raise IndexError(NO_SAMPLE)
        self._finish()

    def gradient_sum(self) -> Tensor:
        """The sum (C, n) over all mini-batches of the gradient at ``start``; nothing moves."""
        total = torch.zeros_like(self.W)
        self.train(gradients=total)
        return total

    def _steps_at_once(self) -> int:
        """Few enough steps that Ctrl-C is heard; one, where time may be up after any."""
        multiplications = self.W.numel() * self.settings.batch_size
        return max(1, UNINTERRUPTED // multiplications) if self.time_left is no_deadline else 1


def _native_step(step: Step, w: Tensor) -> bindings.Step:
    """The step for compiled code, checked to fit the rows ``w`` (C, n)."""
    step.check(w)
    drift, keep, shift, index = step.drift, step.keep, step.shift, step.index
    if keep is not None and shift is not None:
        shape = max(keep.shape, shift.shape, key=len)
        keep, shift = keep.expand(shape), shift.expand(shape)
        if index is not None and (step.explicit or keep.dim() == 2):
            full = (*keep.shape[:-1], w.shape[1])  # everywhere: keep = 1 and shift = 0 change nothing
            keep, shift = torch.ones(full).index_copy_(-1, index, keep), torch.zeros(full).index_copy_(-1, index, shift)
            index = None
    drift, keep, shift, index = (
        None if tensor is None else tensor.contiguous() for tensor in (drift, keep, shift, index)
    )
    return bindings.Step(drift, keep, shift, index, step.explicit)


def _linear(link: Link, layer: nn.Linear, starts: Mapping[str, int]) -> Layer:
    assert link.weight is not None
    bias = -1 if link.bias is None else starts[link.bias]
    return Layer(layer.in_features, layer.out_features, starts[link.weight], bias, 1.0)
