"""Settings of EFL by name: as the first edition had it, as the paper has it, with privacy, in asynchronous rounds."""

from collections.abc import Mapping
from typing import Any

from efl.algorithms.search import Range, SearchSpace

FIRST_EDITION: Mapping[str, Any] = {
    "density_up": 0.01,
    "density_down": 0.01,
    "memory": "off",
    "drift": "off",
    "caution": 0.0,
}
PAPER: Mapping[str, Any] = {
    **FIRST_EDITION,
    "step": "explicit",
    "weighting": "C",
    "weight_cap": float("inf"),
    "scale_at": "server",
    "participation": "share",
    "server_applies": "aggregate",
    "scope": "whole",
    "fisher": "true",
    "field": "dense",
    "echo": False,
}
PRIVATE: Mapping[str, Any] = {  # fields and memories would need noise of their own, and a byte budget watches clients
    "elasticity": 0.0,
    "memory": "off",
    "drift": "off",
    "answer_rates": False,
    "participation": "unbiased",
    "scale_at": "client",
    "step_up": 1.0,  # rounding makes an update longer, and only its length is hidden by noise: it has to be fine
    "step_down": 2.0,
}
LATE: Mapping[str, Any] = {"participation": "self-normalised"}  # with few replies a round, p/π varies too much
SEARCHED: SearchSpace = {"elasticity": Range(0.01, 3.0)}  # bytes are a budget, and all else follows from it
