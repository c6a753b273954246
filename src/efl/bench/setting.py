"""The setting of the measurements: a coordinator whose clients always answer and always finish."""

from collections.abc import Mapping

from efl.algorithms import create
from efl.config import parse
from efl.engine.coordinator import Coordinator
from efl.engine.setup import prepare
from efl.federation import Federation
from efl.fleet import Fleet


def coordinator_of(
    algorithm: str, federation: Federation, network: str, training: Mapping[str, float] | None = None
) -> Coordinator:
    """An algorithm's defaults on a network known by name."""
    experiment = parse(
        {
            "federation": {"clients": len(federation)},
            "model": {"name": network},
            "training": dict(training or {}),
        }
    )
    reliable = Fleet(stragglers=0.0, inactive=0.0)
    return prepare(experiment, federation, None, create(algorithm), reliable).assemble()[0]
