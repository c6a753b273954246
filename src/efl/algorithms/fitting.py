"""Algorithms made ready for a run: settings left to them decided; with privacy, what tells of single clients is off."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from efl.algorithms.base import Algorithm
from efl.algorithms.pipeline import aggregate, initial_state
from efl.algorithms.state import RoundSettings
from efl.algorithms.transform import chained_like, overrides
from efl.algorithms.transforms.privacy import Privacy
from efl.errors import UserError
from efl.wire import Layout

A = TypeVar("A", bound=Algorithm)


def fit(algorithm: A, clients: int, cohort: int) -> A:
    """The algorithm for so many clients, with what was chained to it; with privacy, in its private form."""
    private = algorithm if privacy_of(algorithm) is None else private_form(algorithm)
    return chained_like(private.fitted(clients, cohort), algorithm)


def privacy_of(algorithm: Algorithm) -> Privacy | None:
    """The transformation that makes an algorithm private, if there is one."""
    return next((one for one in algorithm.transforms if isinstance(one, Privacy)), None)


def private_form(algorithm: A) -> A:
    """The algorithm without all that would tell of single clients: what it calls ``private_settings`` is set so.

    Raises:
        UserError: It cannot do without, or was asked for it.
    """
    usual = {one.name: one.default for one in fields(algorithm)}
    chosen: dict[str, Any] = {}
    for name, value in algorithm.private_settings.items():
        given = getattr(algorithm, name)
        if value == "off" and given == "on":
            raise UserError(f"algorithm.{name} = 'on' gives single clients away; with privacy set it to 'off'")
        chosen[name] = given if usual[name] is None and given is not None else value
    form = chained_like(replace(algorithm, **chosen), algorithm)
    _check(form)
    return form


def _check(algorithm: Algorithm) -> None:
    """Raise `UserError` unless all that leaves the server is the released sum, or follows from it."""
    name = type(algorithm).__name__
    if not (algorithm.added_transforms and isinstance(algorithm.added_transforms[-1], Privacy)):
        raise UserError("privacy: make it the last transformation: the others act on what it released")
    if sum(isinstance(one, Privacy) for one in algorithm.transforms) > 1:
        raise UserError("privacy: one is enough")
    for one in algorithm.transforms[:-1]:
        if one.reduce is not None or overrides(one, "weigh") or overrides(one, "admit"):
            raise UserError(f"privacy: its sum has fixed weights; leave {type(one).__name__} out")
    if algorithm.parts:
        raise UserError(f"privacy: {name} uploads {', '.join(algorithm.parts)} without noise; choose efl or fedavg")
    if type(algorithm).broadcast_to is not Algorithm.broadcast_to:
        raise UserError(f"privacy: {name} sends clients what others uploaded; choose efl or fedavg")
    if type(algorithm).weights is not Algorithm.weights and not algorithm.private_settings:
        raise UserError(f"privacy: {name} is a way to weigh updates, and these have fixed weights; choose fedavg")
    if algorithm.budget is not None:
        raise UserError(f"privacy: {name} follows how many bytes clients send; set step_up and step_down")
    _try(algorithm)


def _try(algorithm: Algorithm) -> None:
    """A round without updates on one parameter: whatever needs single updates refuses."""
    trial = with_privacy(algorithm, noise_multiplier=1.0)
    settings = RoundSettings(0, 0.1, 1, 1, Layout.flat(1), cohort=1)
    aggregate(trial, initial_state(trial, torch.zeros(1)), [], settings)


def with_privacy(algorithm: A, **settings: Any) -> A:
    """A private algorithm with other settings of its privacy."""
    *others, privacy = algorithm.added_transforms
    changed = chained_like(replace(algorithm), algorithm)
    object.__setattr__(changed, "added_transforms", (*others, replace(privacy, **settings)))
    return changed


def for_clients(algorithm: A) -> A:
    """The algorithm as a client needs it: noise and budget are the server's, and so is what works them out."""
    if privacy_of(algorithm) is None:
        return algorithm
    return with_privacy(algorithm, epsilon=None, noise_multiplier=1.0)
