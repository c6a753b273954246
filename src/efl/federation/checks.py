"""Whether samples, labels and their owners can make a federation; what is wrong with them is one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efl.errors import UserError, first_line
from efl.federation.partition import Indices

MOST_CLASSES = 10**7  # a label beyond that is no class but an identifier
PADDING = -100  # the label of what does not count, as in PyTorch


def labels_to_deal_by(x: Tensor, y: Tensor) -> Indices:
    """One label per sample to deal and split by, checked; sequences and real numbers count as all of one kind."""
    if len(x) != len(y):
        raise UserError(f"{len(x)} samples but {len(y)} labels")
    if len(y) == 0:
        raise UserError("the data set has no samples")
    if y.dim() == 0 or (y.dim() > 2 and not y.is_floating_point()):
        raise UserError(f"labels have shape {tuple(y.shape)}; they must be one number per sample, or one per position")
    if y.is_floating_point() or y.dim() == 2:
        return np.zeros(len(y), dtype=np.int64)
    counted = y[y != PADDING]
    if len(counted) and (int(counted.min()) < 0 or int(counted.max()) >= MOST_CLASSES):
        raise UserError(f"labels must lie in 0 … classes-1, found {int(counted.min())} … {int(counted.max())}")
    return y.cpu().numpy().astype(np.int64)


def as_tensor(values: Any, what: str) -> Tensor:
    """Whatever numbers the user has, as a tensor of a type that can be computed with."""
    try:
        tensor = torch.as_tensor(values)
        unusual = tensor.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64)
        return tensor.to(torch.int64) if unusual and what == "labels" else tensor
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the {what} are no numbers ({first_line(error)})") from None


def check_tokens(x: Tensor, vocabulary: int) -> None:
    """Raise `UserError` unless samples are tokens of the vocabulary."""
    if x.is_floating_point():
        raise UserError("with a vocabulary samples must be whole numbers, the tokens")
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < vocabulary:
        raise UserError(f"tokens must lie in 0 … {vocabulary - 1}, found {int(x.min())} … {int(x.max())}")


def check_samples(
    x: Tensor, y: Tensor, classes: int, train: Sequence[Indices] = (), test: Sequence[Indices] = ()
) -> None:
    """Raise `UserError` unless samples are finite and labels are classes, naming the client by its indices.

    Of one number per position any below 0 may be padding, and the loss knows which; of lazily read ones only -100.
    """
    if len(x) != len(y):
        raise UserError(f"{len(x)} samples but {len(y)} labels")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = (~torch.isfinite(x)).reshape(len(x), -1).any(1)
        where = f"in {int(bad.sum())} of {len(x)} samples{_first(bad, train, test)}"
        raise UserError(f"the data have NaN or infinity {where}; clean or drop them first")
    if y.is_floating_point():
        return  # what they must be, the loss knows
    wrong = y >= classes
    if y.dim() == 1 or not len(train):
        wrong |= (y < 0) & (y != PADDING)
    if bool(wrong.any()):
        counted, where = y[y != PADDING], _first(wrong.reshape(len(y), -1).any(1), train, test)
        found = f"{int(counted.min())} … {int(counted.max())}{where}"
        raise UserError(f"labels must lie in 0 … {classes - 1}, or be {PADDING} for padding; found {found}")


def _first(wrong: Tensor, train: Sequence[Indices], test: Sequence[Indices]) -> str:
    """Where the first of the samples is that are wrong, if clients are known."""
    sample = int(wrong.int().argmax())
    owners = (client for client, parts in enumerate(zip(train, test, strict=False)) if any(sample in p for p in parts))
    return "".join(f", first with client {client} (sample {sample} of all)" for client in list(owners)[:1])


def outputs_for(y: Tensor) -> int:
    """How many outputs a network needs: one per class, or per real number of a target."""
    return max(1, y[0].numel()) if y.is_floating_point() else max(1, int(y.max()) + 1)


def check_indices(train: Sequence[Indices], test: Sequence[Indices], samples: int) -> None:
    """Raise `UserError` unless every client has something to train and to test on, of the samples there are."""
    for client, (mine, held_out) in enumerate(zip(train, test, strict=True)):
        if len(mine) == 0 or len(held_out) == 0:
            raise UserError(
                f"client {client} has {len(mine)} training and {len(held_out)} test samples; "
                "every client needs at least one of each: use fewer clients or another partition, or pass test=…"
            )
        if min(mine.min(), held_out.min()) < 0 or max(mine.max(), held_out.max()) >= samples:
            raise UserError(f"client {client} has sample indices outside 0 … {samples - 1}")


def check_alike(data: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise `UserError` unless all clients have samples, of one shape and type."""
    like = data[0][0]
    for client, (x, y) in enumerate(data):
        if len(x) == 0 or len(x) != len(y):
            remedy = "leave it out, or give it some" if len(x) == len(y) else "every sample needs one"
            raise UserError(f"client {client} has {len(x)} samples and {len(y)} labels; {remedy}")
        if x.dtype != like.dtype or x.shape[1:] != like.shape[1:]:
            raise UserError(
                f"client {client} has samples {tuple(x.shape[1:])} of {x.dtype}, "
                f"client 0 {tuple(like.shape[1:])} of {like.dtype}; bring them to one shape and type first"
            )


def check_test_sets(count: int, clients: int) -> None:
    """Raise `UserError` unless every client has a test set."""
    if count != clients:
        raise UserError(f"{count} test sets for {clients} clients; pass one (x, y) for all, or a list of one each")


def with_test_sets(x: Tensor, y: Tensor, clients: int, test: Any) -> tuple[Tensor, Tensor, list[Indices]]:
    """The samples with those of the test sets after them, and which of these every client is tested on.

    Args:
        x: The samples to train on.
        y: Their labels.
        clients: How many clients there are.
        test: One ``(x, y)`` pair for all clients, or a list of one per client.
    """
    shared = hasattr(test[0], "shape")
    pairs = [test] if shared else list(test)
    if not shared:
        check_test_sets(len(pairs), clients)
    sets = [(as_tensor(a, "test samples"), as_tensor(b, "labels")) for a, b in pairs]
    for number, (a, b) in enumerate(sets):
        whose = "the test set" if shared else f"the test set of client {number}"
        if len(a) == 0 or len(a) != len(b):
            raise UserError(f"{whose} has {len(a)} samples and {len(b)} labels; it needs one of each at least")
        if a.shape[1:] != x.shape[1:] or a.dtype != x.dtype or b.shape[1:] != y.shape[1:]:
            raise UserError(
                f"{whose} has samples {tuple(a.shape[1:])} of {a.dtype} with labels {tuple(b.shape[1:])}, the training "
                f"data {tuple(x.shape[1:])} of {x.dtype} with {tuple(y.shape[1:])}; bring them to one shape and type"
            )
    ends = len(x) + np.cumsum([0, *(len(a) for a, _ in sets)])
    places = [np.arange(start, end) for start, end in pairwise(ends)]
    x, y = torch.cat([x, *(a for a, _ in sets)]), torch.cat([y, *(b.to(y.dtype) for _, b in sets)])
    return x, y, places * clients if shared else places
