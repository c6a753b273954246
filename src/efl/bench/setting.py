"""The setting of the measurements: clients that always answer and always finish."""

from collections.abc import Mapping

from efl.algorithms import create
from efl.config import parse
from efl.engine.coordinator import Coordinator
from efl.engine.setup import Setup, prepare
from efl.federation import Federation
from efl.fleet import Fleet


def setup_of(
    algorithm: str,
    federation: Federation,
    network: str,
    training: Mapping[str, float] | None = None,
    engine: Mapping[str, int] | None = None,
) -> Setup:
    """An algorithm's defaults on a network known by name."""
    experiment = parse(
        {
            "federation": {"clients": len(federation)},
            "model": {"name": network},
            "training": dict(training or {}),
            "engine": dict(engine or {}),
        }
    )
    return prepare(experiment, federation, None, create(algorithm), Fleet(stragglers=0.0, inactive=0.0))


def coordinator_of(
    algorithm: str, federation: Federation, network: str, training: Mapping[str, float] | None = None
) -> Coordinator:
    """A coordinator whose clients work in this process."""
    return setup_of(algorithm, federation, network, training, {"workers": 1}).assemble()[0]
