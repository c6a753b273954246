"""Settings of EFL by name: as the first edition of this package had it, and as the paper has it."""

from collections.abc import Mapping
from typing import Any

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
