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
from efl.federation.adapters import Items
from efl.federation.lazy import LazyItems, LazyTensor, known
from efl.federation.own import OwnData, row_ranges
from efl.federation.partition import Indices, class_counts, partition_samples, split_train_test
from efl.federation.preprocessing import Inputs, as_tokens, fetched, inputs_for, packed, selected, source_of
from efl.native.bindings import Source
from efl.rng import Purpose, stream
from efl.storage import checksum


@dataclass(frozen=True, eq=False, repr=False)
class Federation(OwnData):
    """Clients and their data.

    ``x`` and ``y`` hold every sample once; client ``k`` trains on samples ``train[k]``, is tested on ``test[k]``.
    ``y`` has one label per sample, or for sequences one per position. ``inputs`` turns a batch of ``x`` into what a
    network takes; by default bytes become floats in [0, 1], other whole numbers are tokens. ``vocabulary`` is how many
    tokens there are, where samples are text. ``augment`` changes mini-batches in training (:meth:`augmented`).

    Build one with :meth:`from_tensors`, :meth:`from_clients`, :meth:`from_dataset`, :meth:`from_datasets`,
    :meth:`from_hugging_face` or ``efl.load``.

    >>> f = Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4, partition="iid")
    >>> len(f), f.classes, int(f.sizes.sum())
    (4, 2, 64)
    >>> f
    Federation('custom': 4 clients, 64 training and 16 test samples, 2 classes)
    >>> Federation.from_tensors(torch.randn(80, 4), torch.randn(80, 1), clients=4)
    Federation('custom': 4 clients, 64 training and 16 test samples, real-valued targets)
    """

    x: Tensor | LazyTensor
    y: Tensor | LazyTensor
    train: list[Indices]
    test: list[Indices]
    classes: int
    name: str = "custom"
    inputs: Inputs | None = None
    vocabulary: int | None = None
    augment: Inputs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.x, Tensor) and self.x.dtype == torch.float64:
            object.__setattr__(self, "x", self.x.float())
        if isinstance(self.x, Tensor) and isinstance(self.y, Tensor):  # others are checked as they are read
            checks.check_samples(self.x, self.y, self.classes, self.train, self.test)
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
        targets = "real-valued targets" if self.y.dtype.is_floating_point else f"{self.classes} classes"
        return f"Federation({self.name!r}: {len(self):,} clients, {samples}, {targets})"

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
        test: Any = None,
        augment: Inputs | None = None,
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
            test: A test set of your own, ``(x, y)``, for all clients, or a list of one per client; then nothing is held
                out.
            augment: Changes the inputs of a mini-batch in training; see :meth:`augmented`.

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
        if test is None:
            train, held_out = split_train_test(labels, parts, test_fraction, rng)
        else:
            train, (x, y, held_out) = parts, checks.with_test_sets(x, y, clients, test)
        return cls(x, y, train, held_out, classes or checks.outputs_for(y), name, inputs, vocabulary, augment)

    @classmethod
    def _from_items(
        cls,
        items: Sequence[Items],
        tests: Sequence[Items],
        classes: int,
        *,
        shared: bool = False,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "custom",
        inputs: Inputs | None = None,
        vocabulary: int | None = None,
        augment: Inputs | None = None,
    ) -> Federation:
        """Datasets of clients, and their test sets or the one ``shared`` by all, whose items are read when needed."""
        everything = [*items, *tests]
        pool = LazyItems(everything, [one.name for one in everything], classes)
        ranges = row_ranges([len(one) for one in everything])
        train, test = ranges[: len(items)], ranges[len(items) :] * (len(items) if shared else 1)
        if not tests:
            alike = np.zeros(len(pool), dtype=np.int64)  # labels are not known
            train, test = split_train_test(alike, train, test_fraction, stream(seed, Purpose.PARTITION))
        return cls(pool.half(0), pool.half(1), train, test, classes, name, inputs, vocabulary, augment)

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
        labels = np.zeros(len(self.y), dtype=np.int64)
        if isinstance(self.x, Tensor) and isinstance(self.y, Tensor):
            labels = checks.labels_to_deal_by(self.x, self.y)
        train, held_out = split_train_test(labels, self.train, fraction, stream(seed, Purpose.VALIDATION))
        held_out = [some if len(some) else all_ for some, all_ in zip(held_out, train, strict=True)]
        return replace(self, train=train, test=held_out)

    def augmented(self, augment: Inputs | None) -> Federation:
        """The same data with a transform at training time.

        Args:
            augment: Called with the inputs (B, …) of one client's mini-batch, as the network takes them; returns what
                it is trained on instead. PyTorch's default generator is seeded for each call from the client's own
                random numbers, so that the result depends neither on workers nor on resuming. Tests, full gradients
                and Fisher diagonals see inputs as they are. None: no transform.

        Returns:
            The federation.

        >>> f = Federation.from_tensors(torch.randn(80, 4), torch.arange(80) % 2, clients=4)
        >>> noisy = f.augmented(lambda x: x + 0.1 * torch.randn_like(x))
        """
        return replace(self, augment=augment)

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
        """A checksum of all samples, of lazily read ones each client's first, and of whose they are."""
        arrays = [known(self.x).numpy(), known(self.y).numpy(), *self.train, *self.test]
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

    @cached_property
    def tests_overlap(self) -> bool:
        """Whether a sample is test data of more than one client."""
        everything = np.concatenate(self.test)
        return len(np.unique(everything)) < len(everything)

    def class_counts(self) -> NDArray[np.int64]:
        """How many samples of each class every client has, (clients, classes); of sequences, how many positions."""
        y = self.y[torch.arange(len(self.y))]
        return class_counts(y, map(np.concatenate, zip(self.train, self.test, strict=True)), self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])
