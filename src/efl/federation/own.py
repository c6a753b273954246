"""Ways to a federation from a user's own data: tensors per client, PyTorch datasets, Hugging Face datasets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from efl.errors import UserError
from efl.federation import checks

if TYPE_CHECKING:
    from efl.federation.preprocessing import Fields


class OwnData:
    """Constructors of a `Federation` that read the user's own data."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, *args: Any, **more: Any) -> Self:
        """Deal samples out to clients."""

    @classmethod
    @abstractmethod
    def _from_items(cls, *args: Any, **more: Any) -> Self:
        """Samples that are read when they are needed."""

    @classmethod
    def from_clients(cls, data: Sequence[tuple[Tensor, Tensor]], **more: Any) -> Self:
        """Each client's own samples.

        Args:
            data: One ``(x, y)`` pair per client.
            **more: As for :meth:`from_tensors`, such as ``test`` or ``test_fraction``.

        Returns:
            The federation.

        Raises:
            UserError: If there are no clients, one has no samples, or their samples differ in shape or type.

        >>> from efl import Federation
        >>> len(Federation.from_clients([(torch.randn(10, 4), torch.arange(10) % 2) for _ in range(3)]))
        3
        """
        if not data:
            raise UserError("the federation has no clients")
        data = [(checks.as_tensor(x, "samples"), checks.as_tensor(y, "labels")) for x, y in data]
        checks.check_alike(data)
        owners = np.repeat(np.arange(len(data)), [len(y) for _, y in data])
        return cls.from_tensors(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]), owners=owners, **more)

    @classmethod
    def from_dataset(
        cls, dataset: Any, clients: int | None = None, partition: str = "auto", *, test: Any = None, **more: Any
    ) -> Self:
        """Deal out any ``torch.utils.data.Dataset``; its items are read once and kept as tensors, PIL images as bytes.

        Args:
            dataset: Of ``(x, y)`` pairs.
            clients: How many.
            partition: As for :meth:`from_tensors`.
            test: A dataset to test every client on; by default a part of each client's samples.
            **more: As for :meth:`from_tensors`.

        Returns:
            The federation.

        Raises:
            UserError: If the items are no pairs of numbers, or cannot be dealt out like that.

        >>> from efl import Federation
        >>> pairs = torch.utils.data.TensorDataset(torch.randn(40, 4), torch.arange(40) % 2)
        >>> len(Federation.from_dataset(pairs, clients=4))
        4
        """
        from efl.federation.adapters import alike, stacked

        sets = [dataset] if test is None else [dataset, test]
        every = alike(sets, ["the dataset", "the test set"][: len(sets)])
        (x, y), *held_out = map(stacked, every)
        more = _with_fields(more, every[0].known)
        return cls.from_tensors(x, y, clients, partition, test=held_out[0] if held_out else None, **more)

    @classmethod
    def from_datasets(
        cls, datasets: Sequence[Any], *, test: Any = None, lazy: bool = False, classes: int | None = None, **more: Any
    ) -> Self:
        """One PyTorch dataset per client, or one DataLoader.

        Args:
            datasets: Of ``(x, y)`` pairs, ``x`` a tensor or a dictionary of them: the arguments of the network; or of
                dictionaries with ``labels``. Of a DataLoader the dataset, the ``collate_fn`` and the samples that its
                sampler chooses from count; mini-batches are drawn by the run itself.
            test: A list of one dataset per client to test it on, or one dataset for all; by default a part of each
                client's own samples.
            lazy: Read items when they are needed instead of all of them now, for data that do not fit into memory.
                Items must be the same whenever they are read; random transforms belong into ``augment``.
            classes: How many classes there are; to be said if data are lazy and have some.
            **more: As for :meth:`from_tensors`.

        Returns:
            The federation.

        Raises:
            UserError: If a dataset has no items, or items that do not fit each other.

        >>> from efl import Federation
        >>> sets = [torch.utils.data.TensorDataset(torch.randn(9, 4), torch.arange(9) % 3) for _ in range(2)]
        >>> Federation.from_datasets(sets, lazy=True, classes=3)
        Federation('custom': 2 clients, 14 training and 4 test samples, 3 classes)
        """
        from efl.federation.adapters import alike, stacked

        shared = test is not None and not isinstance(test, list | tuple)
        tests = [] if test is None else [test] if shared else list(test)
        if not datasets:
            raise UserError("the federation has no clients")
        if tests and not shared:
            checks.check_test_sets(len(tests), len(datasets))
        names = [f"client {client}" for client in range(len(datasets))]
        test_names = (
            ["the test set"] if shared else [f"the test set of client {client}" for client in range(len(tests))]
        )
        every = alike([*datasets, *tests], [*names, *test_names])
        if lazy:
            first = every[0][0][1]
            if classes is None and not first.is_floating_point():
                raise UserError("say how many classes there are: classes=…; with lazy=True labels are not read before")
            classes, more = classes or checks.outputs_for(first[None]), _with_fields(more, every[0].known)
            return cls._from_items(every[: len(names)], every[len(names) :], classes, shared=shared, **more)
        pairs = list(map(stacked, every))
        held_out: Any = pairs[len(names) :]
        held_out, more = held_out[0] if shared else held_out or None, _with_fields(more, every[0].known)
        return cls.from_clients(pairs[: len(names)], test=held_out, classes=classes, **more)

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
    ) -> Self:
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


def _with_fields(more: dict[str, Any], known: Sequence[Fields]) -> dict[str, Any]:
    """Further arguments, with what takes samples of several tensors by name apart."""
    return {**more, "inputs": known[0].then(more.get("inputs"))} if known else more


def row_ranges(lengths: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The numbers of the items of datasets that lie one after the other.

    >>> [numbers.tolist() for numbers in row_ranges([2, 1])]
    [[0, 1], [2]]
    """
    return [np.arange(start, end, dtype=np.int64) for start, end in pairwise([0, *np.cumsum(lengths).tolist()])]
