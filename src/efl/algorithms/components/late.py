"""Updates that started from an earlier model, as they are relative to it and as what they mean for the present one."""

from dataclasses import replace

import torch
from torch import Tensor

from efl.algorithms.components.admission import Increment
from efl.algorithms.state import UPDATE, Parts
from efl.wire import Field, Payload


def moved_to(parts: Parts, then: Tensor, now: Tensor) -> Parts:
    """The parts of an upload that started from the model ``then``, for a server whose model is ``now``.

    A whole model becomes what it differs by from ``then``, so that its client's work is added to the present model, and
    nothing of that is taken back. The anchor of a field stays in its place, which has another displacement from now on.

    >>> import numpy as np
    >>> from efl.wire import Dense
    >>> late = moved_to({"update": Dense(np.float32([3.0]))}, torch.tensor([1.0]), torch.tensor([7.0]))
    >>> late["update"].onto(np.float32([7.0])).tolist()
    [9.0]
    """
    return {name: _moved(name, part, then, now) for name, part in parts.items()}


def _moved(name: str, part: Payload, then: Tensor, now: Tensor) -> Payload:
    if isinstance(part, Field):
        apart = then - now
        shift = apart if part.index is None else apart[torch.from_numpy(part.index)]
        return replace(part, displacement=part.displacement + shift.numpy())
    return Increment(part.values - then.numpy()) if name == UPDATE and part.absolute else part
