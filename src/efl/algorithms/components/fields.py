"""The elastic field on its way: what is sent of it, and what the server makes of it.

A field is a Fisher diagonal u and the anchor c it pulls to, c sent as its displacement from a model both sides have. In
full it is 64 bit per parameter. In short it is a factored form of u (its rows and columns), which the codec goes by,
and u and c − w at the few coordinates where u·|c − w|, the pull, is largest. docs/wire.md has
what that costs in accuracy: nothing that could be measured.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from efl.algorithms.components.elastic import ElasticField
from efl.algorithms.compression.ternary import Vector, largest
from efl.errors import WireError
from efl.wire import Field, Layout, Payload, RankOneFisher

SMALL = 100  # coordinates that are always sent, however small the model
FEW, FEW_FROM = 40, 4000  # the same where bytes count, and parameters from which on they do
FACTORED_FROM = 35_000  # parameters from which on factored Fisher values are shorter than more entries of a field


def full_fields(fisher: Tensor, moved: Tensor, layout: Layout) -> list[Field]:
    """A field for every row of u and of c − w, at all coordinates, exactly."""
    return [Field(layout, None, u, d) for u, d in zip(fisher.numpy(), moved.numpy(), strict=True)]


def short_fields(fisher: Tensor, moved: Tensor, layout: Layout, share: float, *, short: bool = False) -> list[Field]:
    """A field for every row, at the ``share`` of coordinates where it pulls most; in small models, where u is large.

    ``short`` sends fewer entries of models between very small ones, where no field is long, and large ones.
    """
    count = max(FEW if short and layout.n >= FEW_FROM else SMALL, int(layout.n * share))
    fields: list[Field] = []
    for u, d in zip(fisher.numpy(), moved.numpy(), strict=True):
        factored = RankOneFisher.of(u, layout) if layout.n >= FACTORED_FROM else None
        at = largest(u if factored is None else _pull(u, d), count)
        fields.append(Field(layout, at, u[at], d[at], factored))
    return fields


def _pull(u: Vector, d: Vector) -> Vector:
    """u·|d|, in one piece of memory."""
    pull = np.abs(d)
    return np.multiply(u, pull, out=pull)


def summed(fields: Sequence[Payload], w: Tensor) -> dict[str, Tensor]:
    """U = Σ u^k; the sum over those who sent their anchor at a coordinate; and there c = w + Σ u^k d^k / Σ u^k."""
    covered, pulled = torch.zeros_like(w), torch.zeros_like(w)
    known = [_field(field) for field in fields]
    factored = [field.factored_fisher for field in known if field.factored_fisher is not None]
    guessed = _summed_factored(factored, len(w))
    for field in known:
        u, moved = torch.from_numpy(field.fisher), torch.from_numpy(field.displacement)
        at = torch.arange(len(w)) if field.index is None else torch.from_numpy(field.index)
        covered.index_add_(0, at, u)
        pulled.index_add_(0, at, u * moved)
        if field.factored_fisher is not None and field.index is not None:  # there it is known, not guessed
            guessed.index_add_(0, at, torch.from_numpy(field.factored_fisher.at(field.index)), alpha=-1)
    fisher = guessed.clamp_(min=0) + covered  # a guess taken out again leaves its rounding
    return {"fisher": fisher, "covered": covered, "anchor": w + torch.where(covered > 0, pulled / covered, 0.0)}


def _summed_factored(factored: Sequence[RankOneFisher], n: int) -> Tensor:
    """Σ of what they guess everywhere: in each tensor, all of their rows times all of their columns."""
    total = torch.zeros(n)
    if not factored:
        return total
    sides = zip(*(one.values for one in factored), strict=True)
    all_rows, all_columns = (torch.from_numpy(np.stack(side)) for side in sides)
    layout = factored[0].layout
    for block, rows, columns in zip(layout.blocks, layout.row_slices, layout.column_slices, strict=True):
        matrix = total[block.start : block.stop].view(block.rows, block.columns)
        torch.mm(all_rows[:, rows].t(), all_columns[:, columns], out=matrix)
    return total


def sizes(field: Field) -> list[float]:
    """Σu, max u, ‖d‖ and max |d|."""
    u, d = field.fisher, np.abs(field.displacement)
    total = float(u.sum(dtype=np.float64))
    if field.factored_fisher is not None:
        total = max(total, field.factored_fisher.total)
    return [total, float(u.max(initial=0.0)), sqrt(float(d @ d)), float(d.max(initial=0.0))]


def received(payload: Payload, reference: Tensor) -> ElasticField:
    """The field in a payload."""
    field = _field(payload)
    fisher, moved = torch.from_numpy(field.fisher), torch.from_numpy(field.displacement)
    if field.index is None:
        return ElasticField(None, fisher, reference + moved)
    index = torch.from_numpy(field.index)
    return ElasticField(index, fisher, reference[index] + moved)


def _field(payload: Payload) -> Field:
    if not isinstance(payload, Field):
        raise WireError("expected an elastic field")
    return payload
