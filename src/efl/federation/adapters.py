"""A user's own data as tensors: items of a PyTorch dataset, columns of a Hugging Face one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from efl.errors import UserError, first_line, reason

if TYPE_CHECKING:
    from efl.federation.preprocessing import Fields

ROW = "__row__"
LABELS = ("labels", "label")  # what libraries call them in an item that is a dictionary


class Items:
    """A dataset of ``(x, y)`` pairs, or the one behind a DataLoader, item by item as tensors.

    Of a DataLoader the order and the size of batches do not count, as mini-batches are drawn anew in every round; its
    ``collate_fn`` does, and so do the samples that its sampler chooses from.
    """

    def __init__(self, dataset: Any, name: str = "the dataset") -> None:
        self.name, self.dataset, self._collate, self._numbers = name, dataset, None, None
        self.known: list[Fields] = []  # of samples that are several tensors: those of the first item read
        if isinstance(dataset, DataLoader):
            self.dataset, self._collate = dataset.dataset, dataset.collate_fn
            self._numbers = _numbers(dataset, name)
        try:
            self._length = len(self.dataset if self._numbers is None else self._numbers)
        except TypeError:
            raise UserError(f"{name} has no length; make one with __len__ and __getitem__") from None
        if self._length == 0:
            raise UserError(f"{name} has no samples; leave it out, or give it some")

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        """An item as tensors; a sample of several by name as the bytes of all, which ``known`` takes apart again."""
        place = f"item {position} of {self.name}"
        x, y = _pair(self._read(position, place), place)
        try:
            if isinstance(x, Mapping):
                parts = {name: _as_tensor(part) for name, part in x.items()}
                return self._packed(parts if self._collate is None else _firsts(parts)), self._first(y)
            return self._first(x), self._first(y)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None

    def _read(self, position: int, place: str) -> Any:
        """An item as the dataset has it, or as a batch of one."""
        try:
            item = self.dataset[position if self._numbers is None else self._numbers[position]]
            return item if self._collate is None else self._collate([item])
        except Exception as error:  # whatever the dataset does
            raise UserError(f"{place} cannot be read: {reason(error)}") from error

    def _first(self, part: Any) -> Tensor:
        return _as_tensor(part) if self._collate is None else _as_tensor(part)[0]

    def _packed(self, parts: Mapping[str, Tensor]) -> Tensor:
        from efl.federation.preprocessing import Fields, packed

        whole, fields = packed({name: part[None] for name, part in parts.items()})
        assert isinstance(fields, Fields)
        if not self.known:
            self.known.append(fields)
        if fields != self.known[0]:
            raise UserError(f"it has {fields}, others {self.known[0]}; bring them to one shape and type")
        return whole[0]


def _pair(item: Any, place: str) -> tuple[Any, Any]:
    """Sample and label of an item, or of a dictionary with its label among the rest."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, Mapping):
        label = next((name for name in LABELS if name in item), None)
        if label is not None and len(item) > 1:
            return {name: part for name, part in item.items() if name != label}, item[label]
    kind = f"a dictionary of {', '.join(map(str, item))}" if isinstance(item, Mapping) else type(item).__name__
    remedy = "return (x, y) from __getitem__ or collate_fn, x a dictionary if need be, or a dictionary with 'labels'"
    raise UserError(f"{place} is no (x, y) pair but {kind}; {remedy}")


def _firsts(parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: part[0] for name, part in parts.items()}


def _numbers(loader: DataLoader[Any], name: str) -> list[int] | None:
    """The items that a loader chooses from; None if from all."""
    if isinstance(loader.sampler, SubsetRandomSampler):
        return sorted(loader.sampler.indices)
    if isinstance(loader.sampler, SequentialSampler | RandomSampler):
        return None
    kind = type(loader.sampler).__name__
    raise UserError(f"{name} is a DataLoader with a {kind}, which has no fixed samples; pass its dataset instead")


def stacked(items: Items) -> tuple[Tensor, Tensor]:
    """All items as two tensors."""
    xs, ys = zip(*(items[position] for position in range(len(items))), strict=True)
    return _stacked(list(xs)), _stacked(list(ys))


def alike(datasets: Sequence[Any], names: Sequence[str]) -> list[Items]:
    """Datasets item by item; if samples are several tensors by name, they must be the same in all of them."""
    every = [Items(dataset, name) for dataset, name in zip(datasets, names, strict=True)]
    for items in every:
        items.known = every[0].known
    return every


def columns_of(
    dataset: Any, sample: str | None, label: str | None, owner: str | None
) -> tuple[Tensor, Tensor, NDArray[Any] | None]:
    """Samples, labels and owners from the columns of a Hugging Face dataset."""
    features = getattr(dataset, "features", None)
    if not isinstance(features, dict):
        raise UserError("pass one split of the dataset, such as dataset['train'], or concatenate_datasets([…])")
    for column in (sample, label, owner):
        if column is not None and column not in features:
            raise UserError(f"the dataset has no column {column!r}; its columns: {', '.join(features)}")
    label = label or _first(features, lambda kind: type(kind).__name__ == "ClassLabel", "label")
    sample = sample or _first(features, _holds_samples, "sample", leave_out=(label, owner))
    x = _stacked([_as_tensor(value) for value in dataset[sample]])
    y = _stacked([_as_tensor(value) for value in dataset[label]])
    return x, y, np.asarray(dataset[owner]) if owner is not None else None


def dealt_by(partitioner: Any, dataset: Any) -> NDArray[np.int64]:
    """The client of every sample as a partitioner of ``flwr_datasets`` deals them out."""
    owners = np.full(len(dataset), -1, dtype=np.int64)
    try:
        partitioner.dataset = dataset.add_column(ROW, list(range(len(dataset))))
        for client in range(partitioner.num_partitions):
            owners[np.asarray(partitioner.load_partition(client)[ROW], dtype=np.int64)] = client
    except Exception as error:  # a partitioner of somebody else's, with complaints of its own
        raise UserError(f"{type(partitioner).__name__} cannot deal these samples out: {first_line(error)}") from None
    if (owners < 0).any():
        raise UserError(f"the partitioner leaves {int((owners < 0).sum())} of {len(owners)} samples to nobody")
    return owners


def _first(
    features: dict[str, Any], fits: Callable[[Any], bool], what: str, leave_out: Sequence[str | None] = ()
) -> str:
    for column, kind in features.items():
        if column not in leave_out and fits(kind):
            return column
    raise UserError(f"which column is the {what}? Say {what}=…; the columns: {', '.join(features)}")


def _holds_samples(kind: Any) -> bool:
    return type(kind).__name__ in ("Image", "List", "LargeList", "Sequence", "Array2D", "Array3D", "Array4D")


def _as_tensor(value: Any) -> Tensor:
    """A sample as a tensor; pictures (height, width) or (height, width, channels) with the channels first."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "getbands"):  # a PIL image; palettes and black-and-white have no numbers of their own
        value = value.convert({"P": "RGB", "1": "L"}.get(value.mode, value.mode))
        array = np.asarray(value)
        return torch.from_numpy(np.array(array[None] if array.ndim == 2 else array.transpose(2, 0, 1)))
    try:
        array = np.array(value)
        return torch.from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
    except (TypeError, ValueError) as error:
        raise UserError(f"{value!r:.60} is neither numbers nor an image ({first_line(error)})") from None


def _stacked(samples: list[Tensor]) -> Tensor:
    shapes = {tuple(sample.shape) for sample in samples}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise UserError(f"samples differ in shape, such as {first} and {second}; bring them to one shape first")
    if not samples:
        raise UserError("the data set has no samples")
    kinds = {sample.dtype for sample in samples}
    if len(kinds) > 1:
        raise UserError(f"samples differ in type: {', '.join(sorted(map(str, kinds)))}; bring them to one first")
    return torch.stack(samples)
