"""The setting of the measurements: clients that always answer and always finish."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from efl.algorithms import create
from efl.config import parse
from efl.federation import Federation
from efl.fleet import Fleet
from efl.runs.setup import LocalSetup, build
from efl.server.coordinator import Coordinator

T = TypeVar("T")


def setup_of(
    algorithm: str,
    federation: Federation,
    network: str,
    training: Mapping[str, Any] | None = None,
    engine: Mapping[str, int] | None = None,
) -> LocalSetup:
    """An algorithm's defaults on a network known by name."""
    experiment = parse(
        {
            "federation": {"clients": len(federation)},
            "model": {"name": network},
            "training": dict(training or {}),
            "engine": dict(engine or {}),
        }
    )
    return build(experiment, federation, None, create(algorithm), Fleet())


def coordinator_of(
    algorithm: str, federation: Federation, network: str, training: Mapping[str, Any] | None = None
) -> Coordinator:
    """A coordinator whose clients work in this process."""
    return setup_of(algorithm, federation, network, training, {"workers": 1}).coordinator()


def quickest(work: Callable[[], T], repeats: int = 5) -> tuple[float, T]:
    """The shortest of several times, and the result."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - began)
    return best, result
