"""The training of a chain as one call into compiled code, instead of some dozen operations of PyTorch a layer.

It computes what `Chain` does, in another order of additions. A model's numbers do not depend on its company.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from efl.native import loops
from efl.native.bindings import NO_PULL, Layer, Pull, Source
from efl.training.backends.chain import Chain, Link

MOST_LAYERS = 63  # one less than in native/chain.c
LANES = 16  # of a vector, at most
ANSWERED_AT_ONCE = 20  # samples, which stay in the cache


@dataclass(frozen=True, eq=False)
class Batches:
    """Mini-batches as compiled code takes them: where samples lie, which are chosen, their labels (steps, C, B)."""

    source: Source
    chosen: Tensor
    labels: Tensor


class CompiledChain:
    """Linear layers with ReLU, leaky ReLU or nothing between them; `NotCompiledError` where code cannot be had."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._loops = loops()
        self._layers = (Layer * len(layers))(*layers)
        self.features = int(layers[0].inputs)
        self._a_sample = self.features + sum(layer.inputs + layer.outputs for layer in layers)
        self._squares = max(layer.inputs + layer.outputs for layer in layers)
        self._widest = max(layer.outputs for layer in layers)
        self.n = sum(layer.outputs * (layer.inputs + (layer.bias >= 0)) for layer in layers)

    @classmethod
    def of(cls, chain: Chain, starts: Mapping[str, int]) -> CompiledChain | None:
        """That of ``chain``, whose tensors begin at ``starts``; None if it has layers that are not known here."""
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
        return cls(layers) if layers[-1].slope == 1 and len(layers) <= MOST_LAYERS else None

    def gradient(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        to: Tensor,
        factor: float = 1.0,
        *,
        onto: bool = False,
        squares: Tensor | None = None,
    ) -> Tensor:
        """The gradients at rows of ``w`` on x (C, B, …), times ``factor``, into rows of ``to``, or ``onto`` these.

        They may go onto ``w`` itself. Their squares are added to ``squares``. Returns the losses (C,).
        """
        size, losses = self._sized(x, y, w, to, squares), torch.empty(len(y))
        given = (x.contiguous(), y.contiguous(), w, to, factor, onto, squares, losses, self._room(y.shape[1]))
        if self._loops.gradient(self._layers, *size, *given):
            raise IndexError("a label is not among the classes")
        return losses

    def fisher(self, w: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """The squares of every sample's gradient, summed by ``weights`` (C, B), at rows of ``w``."""
        if weights.shape != y.shape:
            raise ValueError(f"weights of shape {tuple(weights.shape)} for {tuple(y.shape)} labels")
        to = torch.empty_like(w)
        size = self._sized(x, y, w, to)
        given = (x.contiguous(), y.contiguous(), weights.contiguous(), w, to, self._room(y.shape[1]))
        if self._loops.fisher(self._layers, *size, *given):
            raise IndexError("a label is not among the classes")
        return to

    def answers(self, w: Tensor, source: Source, chosen: Tensor) -> Tensor:
        """The class that the model ``w`` (n,) takes each of the ``chosen`` samples (S,) for."""
        self._check(1, w[None])
        if source.channels * source.size != self.features:
            raise ValueError(f"samples of {source.channels * source.size} values for {self.features}")
        answers, chosen = torch.empty(len(chosen), dtype=torch.int64), chosen.contiguous()
        given = (ctypes.byref(source), chosen, len(chosen), w, answers, self._room(ANSWERED_AT_ONCE))
        if self._loops.answers(self._layers, len(self._layers), ANSWERED_AT_ONCE, *given):
            raise IndexError("a sample does not exist")
        return answers

    def train(
        self,
        batches: Batches,
        w: Tensor,
        steps: Tensor,
        some: range,
        eta: float,
        pull: tuple[Tensor | None, Tensor, Tensor] | None,
        squares: Tensor | None,
        every: int,
        losses: Tensor,
    ) -> None:
        """Let the rows of ``w`` (C, n) do ``some`` steps of SGD, each no more than its ``steps`` (C,).

        After each step w becomes keep · w + shift at some indices, if there is such a ``pull``. Squares of ``every`` so
        many gradients are added to ``squares`` (C, n), losses to ``losses`` (C,).
        """
        source, (most, models, batch) = batches.source, batches.chosen.shape
        if source.channels * source.size != self.features or batches.labels.shape != batches.chosen.shape:
            raise ValueError(f"samples of {source.channels * source.size} values, labels {tuple(batches.labels.shape)}")
        if not len(steps) == len(losses) == models or some.stop > most:
            raise ValueError(f"{most} steps of {models} models; {some} and {len(steps)} were asked for")
        self._check(models, w, squares)
        pulled = NO_PULL if pull is None else Pull(*pull)
        if pull is not None and not _within(pull[0], pulled.count, self.n):
            raise IndexError(f"a pull at coordinates that are not among {self.n}")
        size = (len(self._layers), models, self.n, batch)
        given = (ctypes.byref(source), batches.chosen, batches.labels, steps, some.start, some.stop)
        rest = (w, eta, ctypes.byref(pulled), squares, every, losses, self._room(batch))
        if self._loops.train(self._layers, *size, *given, *rest):
            raise IndexError("a sample does not exist, or its label is not among the classes")

    def _sized(self, x: Tensor, y: Tensor, *matrices: Tensor | None) -> tuple[int, int, int, int]:
        """How many layers, models, parameters and samples of each there are."""
        if y.dim() != 2 or x.shape[:2] != y.shape or x[0, 0].numel() != self.features:
            raise ValueError(f"samples of shape {tuple(x.shape)} and {tuple(y.shape)} labels")
        self._check(len(y), *matrices)
        return len(self._layers), len(y), self.n, y.shape[1]

    def _check(self, models: int, *matrices: Tensor | None) -> None:
        if any(matrix is not None and matrix.shape != (models, self.n) for matrix in matrices):
            raise ValueError(f"not the vectors of {models} models of {self.n} parameters")

    def _room(self, batch: int) -> Tensor:
        """Memory for a mini-batch, its activations, their derivatives, squares, and columns filled up to a vector."""
        return torch.empty((self._a_sample + self._squares) * batch + LANES * (self._widest + batch))


def _within(places: Tensor | None, count: int, n: int) -> bool:
    """Whether some places, or as many from the first on, are coordinates of a vector."""
    if places is None or count == 0:
        return count <= n
    return int(places.min()) >= 0 and int(places.max()) < n


def _linear(link: Link, layer: nn.Linear, starts: Mapping[str, int]) -> Layer:
    assert link.weight is not None
    bias = -1 if link.bias is None else starts[link.bias]
    return Layer(layer.in_features, layer.out_features, starts[link.weight], bias, 1.0)
