"""Where samples come from, by name. One file a source; a source is a function that makes a `Federation`."""

from collections.abc import Callable
from dataclasses import dataclass

from efl.errors import UserError
from efl.federation.federation import Federation
from efl.federation.sources import digits, synthetic


@dataclass(frozen=True)
class Source:
    """A named data set: how to load it, its network under ``model.name = "auto"``, and its own partition."""

    load: Callable[[str, int, str, float, int], Federation]
    network: str
    partition: str
    what: str


SOURCES: dict[str, Source] = {
    "digits": Source(
        digits.load, "mlp", "classes:2", "1,797 handwritten digits, 8 × 8, 10 classes (ships with scikit-learn)"
    ),
    "synthetic": Source(
        synthetic.load,
        "linear",
        "natural",
        "synthetic:ALPHA,BETA of FedProx, 60 features, 10 classes, made on the spot",
    ),
}


def find_source(dataset: str) -> Source:
    """The source a data set name such as ``digits`` or ``synthetic:1,1`` belongs to."""
    name = dataset.partition(":")[0]
    if name not in SOURCES:
        raise UserError(f"unknown dataset {dataset!r}; choose one of: {', '.join(SOURCES)}")
    return SOURCES[name]


def load(
    dataset: str = "digits",
    clients: int = 50,
    partition: str = "auto",
    *,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Federation:
    """A named data set, dealt out to clients.

    >>> load("digits", clients=50, partition="classes:2").name
    'digits'
    """
    source = find_source(dataset)
    chosen = source.partition if partition == "auto" else partition
    return source.load(dataset, clients, chosen, test_fraction, seed)
