"""Dealing samples out to clients, and every client's samples into training and test data.

``iid``, ``classes:M``, ``groups:M`` and ``dirichlet:A`` are worked out on a table of counts (clients × classes)
first. There it is easy to see that every sample is used, that no client is empty, and that no
client holds a class only once (it could not be both trained on and tested then). Only after that
are samples dealt, at random, as the table says.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.errors import UserError
from efl.settings import LARGEST

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]

KINDS = "iid, classes:M, groups:M, dirichlet:A, natural"


def partition_samples(
    labels: Indices, clients: int, partition: str, rng: np.random.Generator, owners: NDArray[np.int64] | None = None
) -> list[Indices]:
    """The sample indices of every client; each sample goes to exactly one client."""
    if clients < 1:
        raise UserError(f"clients must be at least 1, got {clients}")
    kind, _, argument = partition.partition(":")
    if kind == "natural" and not argument:
        return _natural(owners, clients)
    class_sizes = np.bincount(labels)
    if 2 * clients > len(labels):
        raise UserError(
            f"{len(labels)} samples are too few for {clients} clients (each needs 2: one to train, one to test)"
        )
    if kind == "iid" and not argument:
        counts = _iid_counts(labels, clients, rng)
    elif kind == "classes":
        counts = _class_counts(class_sizes, clients, _whole_number(partition, argument), rng)
    elif kind == "groups":
        counts = _group_counts(class_sizes, clients, _whole_number(partition, argument), rng)
    elif kind == "dirichlet":
        counts = _dirichlet_counts(class_sizes, clients, _positive_number(partition, argument), rng)
    else:
        raise UserError(f"unknown partition {partition!r}; choose one of: {KINDS}")
    return _deal(labels, counts, rng)


def split_train_test(
    labels: Indices, parts: list[Indices], test_fraction: float, rng: np.random.Generator
) -> tuple[list[Indices], list[Indices]]:
    """Split every client's samples class by class, so that its test data has its training data's classes.

    A class of which a client has a single sample (possible under ``natural`` only) is trained on, not tested.
    """
    if not 0 < test_fraction < 1:
        raise UserError(f"test_fraction must lie between 0 and 1, got {test_fraction}")
    train: list[Indices] = []
    test: list[Indices] = []
    for part in parts:
        shuffled = rng.permutation(part)
        by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
        _, starts = np.unique(labels[by_class], return_index=True)
        groups = np.split(by_class, starts[1:])
        held_out = [min(len(group) - 1, max(1, round(test_fraction * len(group)))) for group in groups]
        if sum(held_out) == 0 and len(part) >= 2:  # nothing but singletons: test on one of them all the same
            held_out[0] = 1
        test.append(np.sort(np.concatenate([group[:h] for group, h in zip(groups, held_out, strict=True)])))
        train.append(np.sort(np.concatenate([group[h:] for group, h in zip(groups, held_out, strict=True)])))
    return train, test


def _whole_number(partition: str, argument: str) -> int:
    try:
        value = int(argument)
    except ValueError:
        value = 0
    if value < 1:
        raise UserError(f"partition {partition!r}: write {partition.partition(':')[0]}:M with a whole number M ≥ 1")
    return value


def _positive_number(partition: str, argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST:
        raise UserError(f"partition {partition!r}: write dirichlet:A with a number A > 0")
    return value


def _natural(owners: NDArray[np.int64] | None, clients: int) -> list[Indices]:
    if owners is None:
        raise UserError("partition 'natural' needs data with an owner per sample; this source has none")
    order = np.argsort(owners, kind="stable").astype(np.int64)
    _, starts = np.unique(owners[order], return_index=True)
    parts = np.split(order, starts[1:])
    if len(parts) != clients:
        raise UserError(f"the data belong to {len(parts)} clients, but {clients} were asked for")
    return parts


def _iid_counts(labels: Indices, clients: int, rng: np.random.Generator) -> Counts:
    counts = np.zeros((clients, labels.max() + 1), dtype=np.int64)
    shuffled = rng.permutation(labels)
    for client, shard in enumerate(np.array_split(shuffled, clients)):
        counts[client] = np.bincount(shard, minlength=counts.shape[1])
    return _without_singletons_or_empty_clients(counts, rng)


def _class_counts(class_sizes: Counts, clients: int, per_client: int, rng: np.random.Generator) -> Counts:
    """Exactly ``per_client`` classes for every client; a class is shared by clients in proportion to its size."""
    present = np.flatnonzero(class_sizes)
    if per_client > len(present):
        raise UserError(f"classes:{per_client} asks for more classes per client than there are ({len(present)})")
    if clients * per_client < len(present):
        raise UserError(
            f"{clients} clients of {per_client} classes cannot hold {len(present)} classes; "
            f"use at least {-(-len(present) // per_client)} clients or more classes per client"
        )
    holders = np.zeros_like(class_sizes)
    holders[present] = _holders(class_sizes[present], clients, per_client, rng)
    # Havel–Hakimi: serving the classes with most places left first always completes the table.
    open_places = holders.copy()
    member = np.zeros((clients, len(class_sizes)), dtype=bool)
    for client in range(clients):
        order = np.lexsort((rng.random(len(open_places)), -open_places))
        member[client, order[:per_client]] = True
        open_places -= member[client]
    counts = np.zeros(member.shape, dtype=np.int64)
    for label in present.tolist():
        who = rng.permutation(np.flatnonzero(member[:, label]))
        counts[who, label] = [len(part) for part in np.array_split(np.arange(class_sizes[label]), len(who))]
    return counts


def _group_counts(class_sizes: Counts, clients: int, per_group: int, rng: np.random.Generator) -> Counts:
    """The classes in groups of ``per_group``, by number; clients with numbers next to each other share a group.

    So clients with the highest numbers, who are the last to arrive in a fleet with arrivals, hold classes of their own.
    """
    present = np.flatnonzero(class_sizes)
    groups = [present[start : start + per_group] for start in range(0, len(present), per_group)]
    if clients < len(groups):
        raise UserError(f"groups:{per_group} makes {len(groups)} groups of classes; {clients} clients are too few")
    holders = _holders(np.array([class_sizes[group].sum() for group in groups]), clients, 1, rng)
    counts = np.zeros((clients, len(class_sizes)), dtype=np.int64)
    for group, last, many in zip(groups, np.cumsum(holders).tolist(), holders.tolist(), strict=True):
        if class_sizes[group].min() < 2 * many:
            raise UserError(f"the samples are too few for {clients} clients: each needs 2 of each class of its group")
        for label in group.tolist():
            parts = np.array_split(np.arange(class_sizes[label]), many)
            counts[last - many : last, label] = rng.permutation([len(part) for part in parts])
    return counts


def _holders(sizes: Counts, clients: int, per_client: int, rng: np.random.Generator) -> Counts:
    """How many clients hold each class: in proportion to its size, at least one, each with two samples or more."""
    places, most = clients * per_client, np.minimum(clients, sizes // 2)
    if most.sum() < places or most.min() < 1:
        raise UserError(
            f"the samples are too few for {clients} clients of {per_client} classes: a client needs 2 of a class, "
            "one to train and one to test; use fewer clients or fewer classes per client"
        )
    low, high = 0.0, float(places)
    for _ in range(100):  # bisection for the share of a class that fills all places
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * sizes, 1, most).sum() < places else (low, middle)
    ideal = np.clip(low * sizes, 1, most)
    holders: Counts = np.floor(ideal + 1e-9).astype(np.int64)
    luck = rng.permutation(len(sizes))
    order = np.lexsort((luck, -(ideal - holders)))
    order = order[holders[order] < most[order]]
    holders[order[: places - holders.sum()]] += 1
    return holders


def _dirichlet_counts(class_sizes: Counts, clients: int, concentration: float, rng: np.random.Generator) -> Counts:
    """Every class spread over the clients by a Dirichlet draw (Hsu et al. 2019), in one pass: no retrying."""
    counts = np.zeros((clients, len(class_sizes)), dtype=np.int64)
    for label in np.flatnonzero(class_sizes).tolist():
        gammas = rng.gamma(concentration, size=clients)
        if gammas.sum() <= 0:  # a tiny concentration underflows: all to one client, its limit
            gammas[rng.integers(clients)] = 1.0
        cuts = np.rint(np.cumsum(gammas / gammas.sum()) * class_sizes[label]).astype(np.int64)
        cuts[-1] = class_sizes[label]
        counts[:, label] = np.diff(cuts, prepend=0)
    return _without_singletons_or_empty_clients(counts, rng)


def _without_singletons_or_empty_clients(counts: Counts, rng: np.random.Generator) -> Counts:
    """Move as few samples as possible, so that every cell is 0 or ≥ 2 and every client has a cell.

    Of two clients with a lone sample, the one with fewer samples in all takes the other's: shards stay about equal.
    """
    counts = counts.copy()
    totals = counts.sum(1)
    for label in range(counts.shape[1]):
        column = counts[:, label]
        single = rng.permutation(np.flatnonzero(column == 1))
        pairs = len(single) // 2
        ranked = single[np.argsort(totals[single], kind="stable")]  # the smaller half takes, the larger half gives
        takers, givers = ranked[:pairs], ranked[len(ranked) - pairs :]
        column[givers] -= 1
        column[takers] += 1
        totals[givers] -= 1
        totals[takers] += 1
        if len(single) % 2 and column.sum() > 1:
            last = ranked[pairs]
            column[last] = 0
            most = np.argmax(column)
            column[most] += 1
            totals[[last, most]] += [-1, 1]
    for client in np.flatnonzero(counts.sum(1) == 0):
        # Give from the cell that leaves its owner best off: a large cell, or one of several a client has.
        spare = np.where(counts >= 4, counts, 0)
        if not spare.any():
            spare = np.where((counts >= 2) & ((counts > 0).sum(1, keepdims=True) > 1), counts, 0)
        if not spare.any():
            raise UserError(
                f"the samples do not suffice to give each of {len(counts)} clients two of one class; use fewer clients"
            )
        giver, given = np.unravel_index(np.argmax(spare), spare.shape)
        amount = 3 if counts[giver, given] == 3 else 2
        counts[giver, given] -= amount
        counts[client, given] += amount
    return counts


def _deal(labels: Indices, counts: Counts, rng: np.random.Generator) -> list[Indices]:
    pieces: list[list[Indices]] = [[] for _ in range(len(counts))]
    for label in range(counts.shape[1]):
        samples = rng.permutation(np.flatnonzero(labels == label))
        for client, piece in enumerate(np.split(samples, np.cumsum(counts[:-1, label]))):
            pieces[client].append(piece)
    return [np.sort(np.concatenate(piece)).astype(np.int64) for piece in pieces]


def class_counts(y: Tensor, samples: Iterable[Indices], classes: int) -> NDArray[np.int64]:
    """How many of each client's ``samples`` are of each class, (clients, classes); real numbers count as class 0."""
    labels = torch.zeros_like(y, dtype=torch.int64) if y.is_floating_point() else y.long()
    flat = labels.reshape(len(y), -1).numpy()
    found = [flat[mine].reshape(-1) for mine in samples]
    return np.stack([np.bincount(mine[mine >= 0], minlength=classes) for mine in found]).astype(np.int64)
