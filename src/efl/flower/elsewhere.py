"""Clients on other machines, as the server sees them: no data, no state, only what they choose to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from efl.algorithms.base import Algorithm
from efl.client.host import ClientHost
from efl.client.worker import Briefing
from efl.federation import Federation
from efl.models import FlatModel
from efl.training.backends.selection import Eager
from efl.training.trainer import Trainer
from efl.wire import NO_MODEL, PERSONAL, Context, Dense, Message, encode

Looks = Callable[[Mapping[int, bytes]], Mapping[int, float]]


class Elsewhere(Federation):
    """A federation none of whose samples are here."""

    def __init__(self, clients: int, name: str) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        values = {"x": torch.zeros(0), "y": torch.zeros(0, dtype=torch.int64), "classes": 0, "name": name}
        places = {"train": [nothing] * clients, "test": [nothing] * clients, "inputs": None, "vocabulary": None}
        for key, value in {**values, **places}.items():
            object.__setattr__(self, key, value)


class DistantHost(ClientHost):
    """Stands for clients on other machines; how good a model is, they find out themselves, and say.

    ``look`` sends each of some clients a request, and gives the accuracy that those who answer report.
    """

    def __init__(
        self, algorithm: Algorithm, model: FlatModel, federation: Federation, here: Callable[[], list[int]], look: Looks
    ) -> None:
        super().__init__(algorithm, Trainer(Eager(model), federation, seed=0))
        self.here, self.look = here, look
        self._seen: tuple[Tensor, Tensor, NDArray[np.float64]] | None = None

    def accuracies(self, w: Tensor, buffers: Tensor) -> NDArray[np.float64]:
        """As clients that can be reached report them; the same model is not looked at twice."""
        if self._seen is not None and torch.equal(self._seen[0], w) and torch.equal(self._seen[1], buffers):
            return self._seen[2]
        request = Message("request", {"how": "model", "base": NO_MODEL, "version": 0}, *self._model(w, buffers))
        accuracies = self._asked(dict.fromkeys(self.here(), request.to_bytes()))
        self._seen = w.clone(), buffers.clone(), accuracies
        return accuracies

    def score_own(
        self, personal: Mapping[int, bytes | None], briefing: Briefing, w: Tensor, buffers: Tensor
    ) -> dict[int, float]:
        """Each trains for a round, for nobody but itself; NaN for those that cannot be reached."""
        settings = briefing.settings
        header = {"how": "model", "base": NO_MODEL, "version": 0, "round": settings.round, "eta": settings.eta}
        header |= {"local_steps": settings.local_steps, "batch_size": settings.batch_size, "own": True}
        parts, log = self._model(w, buffers)
        requests: dict[int, bytes] = {}
        for client in set(personal) & set(self.here()):
            told = personal[client]
            alone = {} if told is None else {PERSONAL: told}
            requests[client] = Message("request", header, {**parts, **briefing.parts, **alone}, log).to_bytes()
        accuracies = self._asked(requests)
        return {client: float(accuracies[client]) for client in personal}

    def _asked(self, requests: Mapping[int, bytes]) -> NDArray[np.float64]:
        accuracies = np.full(len(self.trainer.federation), np.nan)
        for client, accuracy in self.look(requests).items():
            accuracies[client] = accuracy
        return accuracies

    def _model(self, w: Tensor, buffers: Tensor) -> tuple[dict[str, bytes], list[bytes]]:
        """A whole model, as parts and log of a request."""
        parts = {"buffers": encode(Dense(buffers.numpy()), Context.flat(len(buffers)))} if buffers.numel() else {}
        return parts, [encode(Dense(w.numpy()), self.hand.plain)]
