"""A federation: one pool of samples, and for every client the indices of its training and test data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.errors import UserError
from efl.federation import checks
from efl.federation.partition import Indices, class_counts, partition_samples, split_train_test
from efl.federation.preprocessing import Inputs, as_tokens, fetched, inputs_for, packed, selected, source_of
from efl.native.bindings import Source
from efl.rng import Purpose, stream
from efl.storage import checksum


@dataclass(frozen=True, eq=False, repr=False)
class Federation:
    """Clients and their data.

    ``x`` and ``y`` hold every sample once; client ``k`` trains on samples ``train[k]``, is tested on ``test[k]``.
    ``y`` has one label per sample, or for sequences one per position. ``inputs`` turns a batch of ``x`` into what a
    network takes; by default bytes become floats in [0, 1], other whole numbers are tokens. ``vocabulary`` is how many
    tokens there are, where samples are text.

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
        checks.check_samples(self.x, self.y, self.classes)
        if self.vocabulary is not None:
            checks.check_tokens(self.x, self.vocabulary)
        if not self.train:
            raise UserError("the federation has no clients")
        usual = inputs_for(self.x.dtype) if self.vocabulary is None else as_tokens
        object.__setattr__(self, "inputs", self.inputs or usual)
        object.__setattr__(self, "train", [np.asarray(indices, dtype=np.int64) for indices in self.train])
        object.__setattr__(self, "test", [np.asarray(indices, dtype=np.int64) for indices in self.test])
        checks.check_indices(self.train, self.test, len(self.x))

    def __repr__(self) -> str:
        trained, tested = int(self.sizes.sum()), sum(len(indices) for indices in self.test)
        samples = f"{trained:,} training and {tested:,} test samples"
        return f"Federation({self.name!r}: {len(self):,} clients, {samples}, {self.classes} classes)"

    @classmethod
    def from_tensors(
        cls,
        x: Tensor | Mapping[str, Tensor],
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
        """Deal samples out to clients.

        Args:
            x: Samples, (samples, …), or a dictionary of them: the arguments of the network.
            y: Labels, 0 … classes-1: one per sample, or for sequences one per position, -100 for padding; or numbers.
            clients: How many; by default as many as there are owners.
            partition: ``iid``, ``classes:M``, ``groups:M``, ``dirichlet:A`` or ``natural``; ``auto`` is ``natural``
                with owners, ``iid`` without.
            test_fraction: The part of every client's samples that is held out to test on.
            seed: Of the partition.
            owners: The client of every sample, a number or a name.
            classes: How many; by default one more than the largest label.
            name: What the federation is called in summaries.
            inputs: Turns a batch of ``x`` into what a network takes.
            vocabulary: How many tokens there are, if samples are text.

        Returns:
            The federation.

        Raises:
            UserError: If samples, labels and owners do not fit each other, or the partition is impossible.

        >>> Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4, partition="iid").classes
        2
        """
        if isinstance(x, Mapping):
            x, inputs = packed(x, inputs)
        x, y = checks.as_tensor(x, "samples"), checks.as_tensor(y, "labels")
        labels = checks.labels_to_deal_by(x, y)
        owner_numbers = None if owners is None else np.unique(np.asarray(owners), return_inverse=True)[1].reshape(-1)
        if owner_numbers is not None and len(owner_numbers) != len(x):
            raise UserError(f"{len(x)} samples but {len(owner_numbers)} owners")
        if partition == "auto":
            partition = "iid" if owner_numbers is None else "natural"
        if clients is None:
            if owner_numbers is None or partition != "natural":
                raise UserError("say how many clients there are to be, or give the owner of every sample")
            clients = int(owner_numbers.max()) + 1
        if (y.dim() > 1 or y.is_floating_point()) and partition not in ("iid", "natural"):
            raise UserError(f"partition {partition!r} needs one label per sample; deal others iid or natural")
        rng = stream(seed, Purpose.PARTITION)
        parts = partition_samples(labels, clients, partition, rng, owner_numbers)
        train, test = split_train_test(labels, parts, test_fraction, rng)
        return cls(x, y, train, test, classes or checks.outputs_for(y), name, inputs, vocabulary)

    @classmethod
    def from_clients(
        cls, data: Sequence[tuple[Tensor, Tensor]], *, test_fraction: float = 0.2, seed: int = 0, name: str = "custom"
    ) -> Federation:
        """Each client's own samples.

        Args:
            data: One ``(x, y)`` pair per client.
            test_fraction: The part of each that is held out to test on.
            seed: Of the split.
            name: What the federation is called in summaries.

        Returns:
            The federation.

        Raises:
            UserError: If there are no clients, or their samples differ in shape or type.

        >>> len(Federation.from_clients([(torch.randn(10, 4), torch.arange(10) % 2) for _ in range(3)]))
        3
        """
        if not data:
            raise UserError("the federation has no clients")
        data = [(checks.as_tensor(x, "samples"), checks.as_tensor(y, "labels")) for x, y in data]
        checks.check_alike(data)
        owners = np.repeat(np.arange(len(data)), [len(y) for _, y in data])
        x, y = torch.cat([x for x, _ in data]), torch.cat([y for _, y in data])
        return cls.from_tensors(x, y, owners=owners, test_fraction=test_fraction, seed=seed, name=name)

    @classmethod
    def from_dataset(cls, dataset: Any, clients: int | None = None, partition: str = "auto", **more: Any) -> Federation:
        """Deal out any ``torch.utils.data.Dataset``; its items are read once and kept as tensors, PIL images as bytes.

        Args:
            dataset: Of ``(x, y)`` pairs.
            clients: How many.
            partition: As for :meth:`from_tensors`.
            **more: As for :meth:`from_tensors`.

        Returns:
            The federation.

        Raises:
            UserError: If the items are no pairs of numbers, or cannot be dealt out like that.

        >>> pairs = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
        >>> len(Federation.from_dataset(pairs, clients=4))
        4
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
        """Deal out one split of a Hugging Face dataset.

        Args:
            dataset: The split.
            clients: How many.
            partition: As for :meth:`from_tensors`, or a partitioner of ``flwr_datasets``.
            sample: The column of samples; by default the first image or numeric list.
            label: The column of labels; by default the first class label.
            owner: The column of owners, if there is one.
            **more: As for :meth:`from_tensors`.

        Returns:
            The federation.

        Raises:
            UserError: If there are no such columns, or the samples cannot be dealt out like that.

        Example::

            Federation.from_hugging_face(load_dataset("ylecun/mnist", split="train"), clients=100)
        """
        from efl.federation.adapters import columns_of, dealt_by

        x, y, owners = columns_of(dataset, sample, label, owner)
        if not isinstance(partition, str):
            owners, partition = dealt_by(partition, dataset), "natural"
        return cls.from_tensors(x, y, clients, partition, owners=owners, **more)

    def for_tuning(self, fraction: float = 0.2, seed: int = 0) -> Federation:
        """The same clients without their test data: a part of their training data is held out to test on instead.

        Args:
            fraction: How large a part; a client with a single sample has it in both places.
            seed: Of the split.

        Returns:
            The federation to tune on.

        >>> f = Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4, partition="iid")
        >>> int(f.for_tuning(0.25).sizes.sum())
        48
        """
        labels = checks.labels_to_deal_by(self.x, self.y)
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

    def batch(self, indices: Tensor) -> tuple[Any, Tensor]:
        """Inputs and labels of these samples, as a network and its loss take them."""
        return self.inputs_of(indices), self.labels_of(indices)

    def inputs_of(self, indices: Tensor) -> Any:
        """What a network takes of these samples."""
        assert self.inputs is not None
        return fetched(self.x, indices, self.inputs)

    def source(self) -> Source | None:
        """The samples as compiled code reads them, if it can."""
        assert self.inputs is not None
        return source_of(self.x, self.inputs)

    def labels_of(self, indices: Tensor) -> Tensor:
        """The classes of these samples, or real-valued targets."""
        labels = selected(self.y, indices)
        return labels.float() if labels.is_floating_point() else labels.long()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Training samples per client, n_k."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    def class_counts(self) -> NDArray[np.int64]:
        """How many samples of each class every client has, (clients, classes); of sequences, how many positions."""
        return class_counts(self.y, map(np.concatenate, zip(self.train, self.test, strict=True)), self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])
