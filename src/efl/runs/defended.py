"""Whether an algorithm is defended against hostile clients, as `training.robust` says."""

from __future__ import annotations

from efl.algorithms import Algorithm
from efl.algorithms.transform import A, chain
from efl.algorithms.transforms.defence import Defence


def defended(algorithm: A, robust: str, *, deployed: bool = False) -> A:
    """The algorithm with the default defence, if that is wanted and not there yet.

    ``auto`` wants it in deployments, of algorithms whose updates are averaged in every round, and where nothing keeps
    single updates from being seen, as privacy does.
    """
    wanted = robust == "default" or (robust == "auto" and deployed and _can_be_defended(algorithm))
    there = any(isinstance(one, Defence) for one in algorithm.transforms)
    return chain(algorithm, Defence()) if wanted and not there else algorithm


def share_cap(algorithm: Algorithm, otherwise: float | None = None) -> float | None:
    """As how many times the median's samples a client counts at most; None where updates are trusted.

    Args:
        algorithm: Its defence, if it has one, has a cap.
        otherwise: Another cap, which holds with and without a defence.
    """
    caps = [one.share for one in algorithm.transforms if isinstance(one, Defence)]
    return min([*caps, *([] if otherwise is None else [otherwise])], default=None)


def _can_be_defended(algorithm: Algorithm) -> bool:
    withheld = any(getattr(one, "release", None) is not None for one in algorithm.transforms)
    return algorithm.requests_per_update == 1 and not withheld
