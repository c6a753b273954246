"""Asynchronous rounds, as ``training.buffer`` asks for them: what they add to an algorithm, and what they cannot do."""

from __future__ import annotations

from dataclasses import fields, replace

from efl.algorithms import Algorithm, StalenessDiscount, chain, name_of
from efl.algorithms.fitting import privacy_of
from efl.algorithms.pipeline import upload_parts
from efl.algorithms.transform import A, chained_like
from efl.config_sections import TrainingSection
from efl.errors import UserError
from efl.fleet import Fleet


def buffered(algorithm: A, training: TrainingSection) -> A:
    """The algorithm for updates some of which are late, if rounds are asynchronous: what it says itself stays so.

    Late updates count less, and settings that were left to the algorithm are as it needs them then. If every round
    waits for as many clients as can be at work, none is late.
    """
    can = algorithm.requests_per_update == 1 and privacy_of(algorithm) is None  # else it is refused
    if training.buffer is None or not can:
        return algorithm
    if training.buffer < training.cohort:
        usual = {one.name: one.default for one in fields(algorithm)}
        left = {name: to for name, to in algorithm.late_settings.items() if getattr(algorithm, name) == usual[name]}
        algorithm = chained_like(replace(algorithm, **left), algorithm) if left else algorithm
    there = any(isinstance(one, StalenessDiscount) for one in algorithm.transforms)
    return algorithm if there else chain(algorithm, StalenessDiscount())


def check_asynchronous(
    training: TrainingSection, algorithm: Algorithm, fleet: Fleet, *, simulated: bool = True
) -> None:
    """Raise `UserError` if rounds are to be asynchronous, but something would be wrong then."""
    if training.buffer is None:
        return
    if training.buffer > training.cohort:
        most = f"training.cohort has {training.cohort} clients at work at once; wait for at most as many"
        raise UserError(f"training.buffer is {training.buffer}, but {most}")
    if privacy_of(algorithm) is not None:
        raise UserError("training.buffer: privacy is accounted for by whole cohorts; leave one of them out")
    if fleet.selection == "poisson":
        raise UserError("training.buffer: 'poisson' does not say how many are at work; choose another fleet.selection")
    if simulated and fleet.trace is None:
        raise UserError("training.buffer: needs fleet.trace, which says how long each client works, such as 'phones'")
    check_late(algorithm)


def check_late(algorithm: Algorithm) -> None:
    """Raise `UserError` unless the algorithm can use updates that started from an earlier model."""
    name, other = name_of(algorithm), "; choose efl, fedavg, fedprox, fedadam or such"
    if algorithm.requests_per_update > 1:
        raise UserError(f"training.buffer: {name} asks the same clients twice for one update{other}")
    if not algorithm.uses_late:
        raise UserError(f"training.buffer: what {name} keeps between rounds supposes that no update is late{other}")
    for part, declared in upload_parts(algorithm).items():
        if declared.every > 1:
            raise UserError(f"training.buffer: a {part} is sent in every round then, not in each {declared.every}th")
        if declared.fits is not None:
            raise UserError(f"training.buffer: the codec of {name} adds up what is of one round; choose another codec")
