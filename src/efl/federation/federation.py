"""A federation: one pool of samples, and for every client the indices of its training and test data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.errors import UserError, first_line
from efl.federation.partition import Indices, partition_samples, split_train_test
from efl.federation.preprocessing import Inputs, as_tokens, fetched, inputs_for, selected, source_of
from efl.native.bindings import Source
from efl.rng import Purpose, stream
from efl.storage import checksum

MOST_CLASSES = 10**7  # a label beyond that is no class but an identifier


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients and their data.

    ``x`` and ``y`` hold every sample once; client ``k`` trains on samples ``train[k]``, is tested on ``test[k]``.
    ``y`` has one label a sample, or for sequences one a position. ``inputs`` makes of a batch of ``x`` what a network
    takes; by default bytes become floats in [0, 1], other whole numbers are tokens. ``vocabulary`` is how many tokens
    there are, where samples are text.

    Build one with :meth:`from_tensors`, :meth:`from_clients`, :meth:`from_dataset`, :meth:`from_hugging_face` or
    ``efl.load``.

    >>> f = Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4, partition="iid")
    >>> len(f), f.classes, int(f.sizes.sum())
    (4, 2, 64)
    >>> f
    Federation('custom': 4 clients, 64 training and 16 test samples, 2 classes)
    """

    x: Tensor
    y: Tensor
    train: list[Indices]
    test: list[Indices]
    classes: int
    name: str = "custom"
    inputs: Inputs | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if self.x.dtype == torch.float64:
            object.__setattr__(self, "x", self.x.float())
        _check_samples(self.x, self.y, self.classes)
        if self.vocabulary is not None:
            _check_tokens(self.x, self.vocabulary)
        if not self.train:
            raise UserError("the federation has no clients")
        usual = inputs_for(self.x.dtype) if self.vocabulary is None else as_tokens
        object.__setattr__(self, "inputs", self.inputs or usual)
        object.__setattr__(self, "train", [np.asarray(indices, dtype=np.int64) for indices in self.train])
        object.__setattr__(self, "test", [np.asarray(indices, dtype=np.int64) for indices in self.test])
        for client, (train, test) in enumerate(zip(self.train, self.test, strict=True)):
            if len(train) == 0 or len(test) == 0:
                raise UserError(
                    f"client {client} has {len(train)} training and {len(test)} test samples; "
                    "every client needs at least one of each: use fewer clients or another partition"
                )
            if min(train.min(), test.min()) < 0 or max(train.max(), test.max()) >= len(self.x):
                raise UserError(f"client {client} has sample indices outside 0 … {len(self.x) - 1}")

    def __repr__(self) -> str:
        trained, tested = int(self.sizes.sum()), sum(len(indices) for indices in self.test)
        samples = f"{trained:,} training and {tested:,} test samples"
        return f"Federation({self.name!r}: {len(self):,} clients, {samples}, {self.classes} classes)"

    @classmethod
    def from_tensors(
        cls,
        x: Tensor,
        y: Tensor,
        clients: int | None = None,
        partition: str = "auto",
        *,
        test_fraction: float = 0.2,
        seed: int = 0,
        owners: Sequence[Any] | NDArray[Any] | None = None,
        classes: int | None = None,
        name: str = "custom",
        inputs: Inputs | None = None,
        vocabulary: int | None = None,
    ) -> Federation:
        """Deal the samples ``x`` with labels ``y`` out to ``clients`` as ``partition`` says.

        ``owners`` names the client of every sample (a number or a name); with them the partition is ``natural`` and
        there are as many clients as owners, unless you say otherwise. Without them it is ``iid``.
        """
        x, y = _tensor(x, "samples"), _tensor(y, "labels")
        labels = _labels(x, y)
        owner_numbers = None if owners is None else np.unique(np.asarray(owners), return_inverse=True)[1].reshape(-1)
        if owner_numbers is not None and len(owner_numbers) != len(x):
            raise UserError(f"{len(x)} samples but {len(owner_numbers)} owners")
        if partition == "auto":
            partition = "iid" if owner_numbers is None else "natural"
        if clients is None:
            if owner_numbers is None or partition != "natural":
                raise UserError("say how many clients there are to be, or give the owner of every sample")
            clients = int(owner_numbers.max()) + 1
        if y.dim() > 1 and partition not in ("iid", "natural"):
            raise UserError(f"partition {partition!r} needs one label a sample; sequences are dealt iid or natural")
        rng = stream(seed, Purpose.PARTITION)
        parts = partition_samples(labels, clients, partition, rng, owner_numbers)
        train, test = split_train_test(labels, parts, test_fraction, rng)
        return cls(x, y, train, test, classes or int(y.max()) + 1, name, inputs, vocabulary)

    @classmethod
    def from_clients(
        cls, data: Sequence[tuple[Tensor, Tensor]], *, test_fraction: float = 0.2, seed: int = 0, name: str = "custom"
    ) -> Federation:
        """One ``(x, y)`` pair per client, each split into training and test data."""
        if not data:
            raise UserError("the federation has no clients")
        data = [(_tensor(x, "samples"), _tensor(y, "labels")) for x, y in data]
        like = data[0][0]
        for client, (x, y) in enumerate(data):
            if len(x) == 0 or len(x) != len(y):
                raise UserError(f"client {client} has {len(x)} samples and {len(y)} labels")
            if x.dtype != like.dtype or x.shape[1:] != like.shape[1:]:
                raise UserError(
                    f"client {client} has samples {tuple(x.shape[1:])} of {x.dtype}, "
                    f"client 0 {tuple(like.shape[1:])} of {like.dtype}; bring them to one shape and type first"
                )
        owners = np.repeat(np.arange(len(data)), [len(y) for _, y in data])
        x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
        return cls.from_tensors(x, y, owners=owners, test_fraction=test_fraction, seed=seed, name=name)

    @classmethod
    def from_dataset(cls, dataset: Any, clients: int | None = None, partition: str = "auto", **more: Any) -> Federation:
        """Any ``torch.utils.data.Dataset`` of ``(x, y)`` pairs; ``more`` as for :meth:`from_tensors`.

        The items are read once and kept as tensors, images from PIL as bytes.
        """
        from efl.federation.adapters import samples_of

        x, y = samples_of(dataset)
        return cls.from_tensors(x, y, clients, partition, **more)

    @classmethod
    def from_hugging_face(
        cls,
        dataset: Any,
        clients: int | None = None,
        partition: Any = "auto",
        *,
        sample: str | None = None,
        label: str | None = None,
        owner: str | None = None,
        **more: Any,
    ) -> Federation:
        """One split of a Hugging Face dataset; ``sample``, ``label`` and ``owner`` name its columns.

        By default the first image or numeric list is the sample and the first class label the label. ``partition`` may
        also be a partitioner of ``flwr_datasets``. ``more`` as for :meth:`from_tensors`.
        """
        from efl.federation.adapters import columns_of, dealt_by

        x, y, owners = columns_of(dataset, sample, label, owner)
        if not isinstance(partition, str):
            owners, partition = dealt_by(partition, dataset), "natural"
        return cls.from_tensors(x, y, clients, partition, owners=owners, **more)

    def for_tuning(self, fraction: float = 0.2, seed: int = 0) -> Federation:
        """The same clients with their test data put away: a part of what they train on is held out in its stead.

        Who trains on a single sample has it in both places.

        >>> f = Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4, partition="iid")
        >>> int(f.for_tuning(0.25).sizes.sum())
        48
        """
        labels = self.y.numpy().astype(np.int64) if self.y.dim() == 1 else np.zeros(len(self.y), dtype=np.int64)
        train, held_out = split_train_test(labels, self.train, fraction, stream(seed, Purpose.VALIDATION))
        held_out = [some if len(some) else all_ for some, all_ in zip(held_out, train, strict=True)]
        return replace(self, train=train, test=held_out)

    def only(self, client: int) -> Federation:
        """One client's samples, in the same order, as a federation of one."""
        train, test = self.train[client], self.test[client]
        mine = torch.from_numpy(np.concatenate([train, test]))
        places = np.arange(len(mine))
        return replace(
            self,
            x=self.x[mine],
            y=self.y[mine],
            train=[places[: len(train)]],
            test=[places[len(train) :]],
        )

    def __len__(self) -> int:
        return len(self.train)

    @cached_property
    def fingerprint(self) -> int:
        """A checksum of all samples and of whose they are."""
        arrays = [self.x.numpy(), self.y.numpy(), *self.train, *self.test]
        return reduce(lambda so_far, array: checksum(array, so_far), arrays, 0)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of these samples, as a network and its loss take them."""
        return self.inputs_of(indices), self.labels_of(indices)

    def inputs_of(self, indices: Tensor) -> Tensor:
        """What a network takes of these samples."""
        assert self.inputs is not None
        return fetched(self.x, indices, self.inputs)

    def source(self) -> Source | None:
        """The samples as compiled code reads them, if it can."""
        assert self.inputs is not None
        return source_of(self.x, self.inputs)

    def labels_of(self, indices: Tensor) -> Tensor:
        """The classes of these samples."""
        return selected(self.y, indices).long()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Training samples per client, n_k."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    def class_counts(self) -> NDArray[np.int64]:
        """How many samples of each class every client has, (clients, classes); of sequences, how many positions."""
        y = self.y.reshape(len(self.y), -1).numpy()
        counts = np.zeros((len(self), self.classes), dtype=np.int64)
        for client, (train, test) in enumerate(zip(self.train, self.test, strict=True)):
            labels = y[np.concatenate([train, test])].reshape(-1)
            counts[client] = np.bincount(labels, minlength=self.classes)
        return counts

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])


def _labels(x: Tensor, y: Tensor) -> Indices:
    """One label a sample to deal and split by, checked; sequences have none, so they count as all of one kind."""
    if len(x) != len(y):
        raise UserError(f"{len(x)} samples but {len(y)} labels")
    if len(y) == 0:
        raise UserError("the data set has no samples")
    if y.dim() not in (1, 2):
        raise UserError(f"labels have shape {tuple(y.shape)}; they must be one number a sample, or one a position")
    if y.is_floating_point():
        raise UserError("labels are real numbers; they must be whole numbers, 0 … classes-1")
    if int(y.min()) < 0 or int(y.max()) >= MOST_CLASSES:
        raise UserError(f"labels must lie in 0 … classes-1, found {int(y.min())} … {int(y.max())}")
    if y.dim() == 2:
        return np.zeros(len(y), dtype=np.int64)
    return y.cpu().numpy().astype(np.int64)


def _tensor(values: Any, what: str) -> Tensor:
    """Whatever numbers the user has, as a tensor of a type that can be computed with."""
    try:
        tensor = torch.as_tensor(values)
        unusual = tensor.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64)
        return tensor.to(torch.int64) if unusual and what == "labels" else tensor
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the {what} are no numbers ({first_line(error)})") from None


def _check_tokens(x: Tensor, vocabulary: int) -> None:
    if x.is_floating_point():
        raise UserError("with a vocabulary samples must be whole numbers, the tokens")
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < vocabulary:
        raise UserError(f"tokens must lie in 0 … {vocabulary - 1}, found {int(x.min())} … {int(x.max())}")


def _check_samples(x: Tensor, y: Tensor, classes: int) -> None:
    if len(x) != len(y):
        raise UserError(f"{len(x)} samples but {len(y)} labels")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum()) if x.dim() > 1 else int((~torch.isfinite(x)).sum())
        raise UserError(f"the data have NaN or infinity in {bad} of {len(x)} samples; clean or drop them first")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise UserError(f"labels must lie in 0 … {classes - 1}, found {int(y.min())} … {int(y.max())}")
