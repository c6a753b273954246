"""What hostile clients send, for simulations: published attacks, as functions of vectors.

A hostile client trains as others do, and then sends something else. It may know what the honest clients of the round
send, as the papers assume; a defence that holds against those who know everything holds against others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from efl.rng import Purpose, stream

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]

NORM_BOUND = 10.0  # times the length of the model: what deployments accept at most by default
BISECTIONS = 30


@dataclass(frozen=True, eq=False)
class Situation:
    """What a hostile client knows when it makes up its update.

    Attributes:
        own: What it would send if it were honest.
        honest: What the honest clients of the round send (K, n).
        model: The model it was sent.
        strength: How far the attack goes; what that means, each attack says.
        rng: Its random numbers.
        before: The mean of the models it was sent before, the later ones counting most; None if there were none.
    """

    own: Vector
    honest: Matrix
    model: Vector
    strength: float
    rng: np.random.Generator
    before: Vector | None = None


Forge = Callable[[Situation], Vector]


@dataclass(frozen=True)
class Attack:
    """An attack: how updates are forged (None: they are not), and what else hostile clients do.

    Attributes:
        forge: Makes up an update.
        strength: How far it goes, unless [fleet] says otherwise.
        start: The round from which on clients are hostile, unless [fleet] says otherwise.
        field: What they do to the elastic field: a ``dense`` one, or one of ``allowed`` size.
        answers: The share of requests that they answer.
        counts: How many times their samples they claim to have.
        labels: Whether they train on wrong labels.
        absent: They are not there at all: perfect exclusion, the yardstick of every defence.
        remembers: Whether ``forge`` is about what an update means, memories on both sides included.
    """

    forge: Forge | None = None
    strength: float = 1.0
    start: int = 0
    field: str | None = None
    answers: float = 1.0
    counts: int = 1
    labels: bool = False
    absent: bool = False
    remembers: bool = False


def hostile_clients(share: float, clients: int, seed: int) -> NDArray[np.int64]:
    """Which clients are hostile: so large a share, drawn at random, at least one if it is not 0.

    >>> len(hostile_clients(0.2, 50, 0)), len(hostile_clients(0.001, 50, 0)), len(hostile_clients(0.0, 50, 0))
    (10, 1, 0)
    """
    count = max(1, round(share * clients)) if share > 0 else 0
    drawn = stream(seed, Purpose.HOSTILE).choice(clients, count, replace=False)
    return np.sort(drawn).astype(np.int64)


def sign_flip(at: Situation) -> Vector:
    """Its own update backwards, ``strength`` times as long."""
    return -np.float32(at.strength) * at.own


def at_limit(at: Situation) -> Vector:
    """Its own update backwards, as long as a deployment's norm limit lets through, or ``strength`` of that."""
    bound = NORM_BOUND * max(1.0, float(np.linalg.norm(at.model.astype(np.float64))))
    length = float(np.linalg.norm(at.own.astype(np.float64)))
    return -np.float32(at.strength * bound / length) * at.own if length else at.own


def noise(at: Situation) -> Vector:
    """Gaussian noise ``strength`` times as long as its own update (Blanchard et al. 2017)."""
    drawn = at.rng.standard_normal(len(at.own), dtype=np.float32)
    return drawn * np.float32(at.strength * np.linalg.norm(at.own) / np.linalg.norm(drawn))


def a_little_is_enough(at: Situation) -> Vector:
    """The honest mean less ``strength`` standard deviations, coordinate by coordinate (Baruch et al. 2019)."""
    return at.honest.mean(0) - np.float32(at.strength) * at.honest.std(0) if len(at.honest) else -at.own


def inner_product(at: Situation) -> Vector:
    """The honest mean, backwards, ``strength`` times as long (Xie et al. 2020)."""
    return -np.float32(at.strength) * at.honest.mean(0) if len(at.honest) else -at.own


def mimic(at: Situation) -> Vector:
    """What the honest client of the lowest number sends, so that it counts many times (Karimireddy et al. 2022)."""
    return at.honest[0] if len(at.honest) else at.own


def min_max(at: Situation) -> Vector:
    """As far from the honest mean, against their standard deviations, as two honest updates are from each other.

    That is as far as it can be without being further from anybody than honest clients are (Shejwalkar and Houmansadr
    2021).
    """
    if len(at.honest) < 2:
        return -at.own
    honest = at.honest.astype(np.float64)
    mean, against = honest.mean(0), -honest.std(0)
    squares = np.square(honest).sum(1)
    widest = float((squares[:, None] + squares - 2 * honest @ honest.T).max())
    low, high = 0.0, 1.0
    while _furthest(honest, mean + high * against) <= widest and high < 1e6:
        high *= 2
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        within = _furthest(honest, mean + middle * against) <= widest
        low, high = (middle, high) if within else (low, middle)
    forged: Vector = (mean + at.strength * low * against).astype(np.float32)
    return forged


def _furthest(honest: NDArray[np.float64], point: NDArray[np.float64]) -> float:
    return float(np.square(honest - point).sum(1).max())


def adaptive(at: Situation) -> Vector:
    """Its own update backwards, and a pull to models seen before, as long as an honest one.

    The pull is as strong as the rest times ``strength``: gradients of a convex loss point back to where one came from,
    and so a test of whether updates do is deceived.
    """
    if at.before is None:
        return -at.own
    length = float(np.linalg.norm(at.own))
    back = at.before - at.model
    towards = back * np.float32(at.strength * length / max(float(np.linalg.norm(back)), 1e-30))
    wanted = towards - at.own
    return wanted * np.float32(length / max(float(np.linalg.norm(wanted)), 1e-30))


ATTACKS = {
    "absent": Attack(absent=True),
    "sign_flip": Attack(sign_flip),
    "scaled": Attack(sign_flip, 10.0),
    "limit": Attack(at_limit, 0.99),
    "noise": Attack(noise, 10.0),
    "label_flip": Attack(labels=True),
    "alie": Attack(a_little_is_enough, 1.5),
    "ipm": Attack(inner_product, 0.5),
    "mimic": Attack(mimic),
    "min_max": Attack(min_max),
    "field_dense": Attack(field="dense", strength=1000.0),
    "field": Attack(field="allowed", strength=1000.0),
    "counts": Attack(sign_flip, 10.0, counts=1000),
    "sleepers": Attack(sign_flip, 10.0, answers=0.1),
    "turncoats": Attack(sign_flip, start=50),
    "adaptive": Attack(adaptive, remembers=True),
}
