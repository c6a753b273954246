"""What the pictures show, before anything is drawn: panels of curves, and who took part when.

`efl.track.plots` draws these with Matplotlib as PNG; a page draws its own, from what the live page is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from efl.errors import UserError
from efl.runs.records import with_aliases
from efl.wire.ledger import KINDS

Record = Mapping[str, Any]
Array = NDArray[np.float64]

# Okabe and Ito's colours, which nearly everyone can distinguish; for more curves than these, some of Paul Tol's.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442",
    "#332288", "#882255", "#999933", "#44AA99", "#CC6677", "#AA4499", "#117733", "#777777",
)  # fmt: skip

BYTES = "bytes, up and down"  # an axis


@dataclass(frozen=True, eq=False)
class Series:
    """A curve, and the range over seeds around it where there are several."""

    name: str
    x: Array
    y: Array
    low: Array | None = None
    high: Array | None = None
    dashed: bool = False
    colour: str = COLOURS[0]


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves over one pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]

    @property
    def log_x(self) -> bool:
        """Whether some curves end so much earlier than others that they would be crammed into a corner."""
        ends = [float(series.x.max()) for series in self.series if len(series.x)]
        return bool(ends) and max(ends) > 10 * min(ends) > 0


@dataclass(frozen=True, eq=False)
class Participation:
    """Client × round: NaN not sampled, 0 sampled without a reply, otherwise the share s/E of the steps done.

    ``dropped`` marks work that was done but not used.
    """

    share: Array
    dropped: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Stack:
    """Bytes of every round in one direction, by what they are for, bottom to top."""

    title: str
    kinds: dict[str, Array]


def byte_stacks(history: Sequence[Record]) -> list[Stack]:
    """Where the bytes went, up and down; kinds that never occur are left out."""
    stacks: list[Stack] = []
    for direction, title in (("up", "from clients"), ("down", "to clients")):
        rounds = [record.get("bytes", {}).get(direction, {}) for record in history]
        kinds = {kind: np.array([counts.get(kind, 0) for counts in rounds], dtype=np.float64) for kind in KINDS}
        stacks.append(Stack(title, {kind: values for kind, values in kinds.items() if values.any()}))
    return stacks


def curve_panels(groups: Mapping[str, Sequence[Sequence[Record]]]) -> list[Panel]:
    """The figure of merit and the loss over rounds, over bytes, and over simulated time where rounds take some.

    ``groups`` has the histories of every label's seeds.
    """
    axes = [("rounds", "round"), ("bytes", BYTES)]
    if any("simulated_seconds" in run[-1] for histories in groups.values() for run in histories if run):
        axes.append(("simulated time", "hours"))
    panels: list[Panel] = []
    merit = _merit(groups)
    for key, y_label in ((merit, f"mean {merit}"), ("train_loss", "training loss")):
        for over, x_label in axes:
            series: list[Series] = []
            for i, (name, histories) in enumerate(groups.items()):
                colour = COLOURS[i % len(COLOURS)]
                series += _series(name, histories, key, over, colour)
                if key == merit:
                    label = f"{name}, personalised"
                    series += _series(label, histories, f"personalised_{merit}", over, colour, dashed=True)
            panels.append(Panel(f"{y_label} over {over}", x_label, y_label, series))
    return panels


def _merit(groups: Mapping[str, Sequence[Sequence[Record]]]) -> str:
    """The metric that evaluated rounds are judged by; older records have accuracy."""
    named = (record["metric"] for runs in groups.values() for run in runs for record in run if "metric" in record)
    return next(named, "accuracy")


def participation(history: Sequence[Record], clients: int, local_steps: int) -> Participation:
    """Who took part when, from a run's records."""
    share = np.full((clients, len(history)), np.nan)
    dropped = np.zeros(share.shape, dtype=bool)
    if (last := max((int(client) for record in history for client in record["clients"]), default=0)) >= clients:
        raise UserError(f"metrics.jsonl: damaged, it has a client {last}, but there are {clients}")
    for column, record in enumerate(history):
        for client, steps in record["clients"].items():
            share[int(client), column] = steps / local_steps
            dropped[int(client), column] = steps > 0 and int(client) not in with_aliases(record)["aggregated"]
    return Participation(share, dropped)


def _series(
    name: str, histories: Sequence[Sequence[Record]], key: str, over: str, colour: str, *, dashed: bool = False
) -> list[Series]:
    curves = [curve for history in histories if (curve := _curve(history, key, over))]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not rounds:
        return []
    points = np.array([[curve[round_] for round_ in rounds] for curve in curves], dtype=np.float64)
    x, ys = points[:, :, 0].mean(0), points[:, :, 1]
    low, high = (ys.min(0), ys.max(0)) if len(curves) > 1 else (None, None)
    return [Series(name, x, ys.mean(0), low, high, dashed, colour)]


def _curve(history: Sequence[Record], key: str, over: str) -> dict[int, tuple[float, float]]:
    """(x, y) by round, for the rounds that have a value."""
    total, points = 0, {}
    for record in history:
        total += record["bytes_up"] + record["bytes_down"]
        if record.get(key) is not None:
            simulated = record.get("simulated_seconds", 0.0) / 3600
            x = {"rounds": record["round"] + 1, "bytes": total, "simulated time": simulated}[over]
            points[record["round"]] = (x, record[key])
    return points
