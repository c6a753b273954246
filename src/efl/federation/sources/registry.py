"""The data sets known by name, and what each is asked for. A module of this package registers its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efl.federation.federation import Federation
from efl.federation.prepared import Prepared, Tensors
from efl.plugins import Registry, returns


@dataclass(frozen=True)
class DatasetRequest:
    """A data set's full name, how to deal it out, and where prepared data sets lie."""

    dataset: str
    clients: int
    partition: str
    test_fraction: float
    seed: int
    directory: Path

    @property
    def dealing(self) -> dict[str, Any]:
        """The arguments of `Federation.from_tensors` that every source passes on."""
        return {
            "clients": self.clients,
            "partition": self.partition,
            "test_fraction": self.test_fraction,
            "seed": self.seed,
            "name": self.dataset,
        }


@dataclass(frozen=True)
class DatasetSource:
    """A named data set: its network under ``model.name = "auto"``, its own partition, and how to get at it.

    ``make`` deals it out from nothing, or ``read`` prepares it from a directory of published files, ``fetch`` says
    where to get those, and ``load`` deals out what was prepared. ``owned`` says that samples have owners, so that it
    can be partitioned ``natural``; ``parameters`` what may follow its name and a colon, if anything may.
    """

    what: str
    network: str
    partition: str
    make: Callable[[DatasetRequest], Federation] | None = None
    read: Callable[[Path], Prepared] | None = None
    load: Callable[[DatasetRequest, Tensors], Federation] | None = None
    fetch: str = ""
    owned: bool = False
    parameters: str = ""


def _source(thing: Any) -> DatasetSource | None:
    """A source as it is; a function of a `DatasetRequest` as one that is trained on with an MLP."""
    if isinstance(thing, DatasetSource) or not callable(thing):
        return thing if isinstance(thing, DatasetSource) else None
    what = next(iter((thing.__doc__ or "").strip().splitlines()), "")
    return DatasetSource(what, "mlp", "auto", make=thing, owned=True)


def _is_dataset(thing: Any) -> bool:
    made = returns(thing)
    return isinstance(thing, DatasetSource) or (made is not None and issubclass(made, Federation))


SOURCES: Registry[DatasetSource] = Registry("dataset", _source, _is_dataset, built_in="efl.federation.sources")
"""The data sets known by name."""
