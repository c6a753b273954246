"""Make the example traces of efl.fleet: phones that charge at night, and machines in hospitals.

In the manner of FedScale's traces (Lai et al. 2022): phones are available while they charge, on Wi-Fi, mostly at night
of their own time zone, and their speeds spread over more than a decade, log-normally. The numbers are drawn, not
recorded. Run it from the root of the repository; it writes the same files every time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from efl.fleet.intervals import COLUMNS
from efl.fleet.traces import EXAMPLES

CLIENTS = 50
HOUR, DAY = 3600, 86400
ZONES = (-8, -5, 0, 1, 1, 5.5, 8, 9)  # hours from Greenwich; some have more phones than others


def phones(rng: np.random.Generator) -> tuple[float, list[list[float]]]:
    """A week: plugged in late in the evening, unplugged in the morning; on some days a short charge besides."""
    period, rows = 7 * DAY, []
    for client in range(CLIENTS):
        zone = rng.choice(ZONES)
        speeds = _speeds(rng, steps=0.25, down=1.5e6, up=0.4e6, spread=0.9)
        bedtime, habit = rng.normal(22.5, 1.2), rng.uniform(0.6, 1.0)
        for day in range(7):
            if rng.random() < habit:
                start = day * DAY + (bedtime - zone + rng.normal(0, 0.7)) * HOUR
                rows.append([client, start, start + rng.normal(7.5, 1.0) * HOUR, *speeds])
            if rng.random() < 0.35:
                start = day * DAY + (rng.uniform(11, 16) - zone) * HOUR
                rows.append([client, start, start + rng.uniform(0.3, 1.5) * HOUR, *speeds])
    return period, rows


def hospitals(rng: np.random.Generator) -> tuple[float, list[list[float]]]:
    """A week: strong machines, some by day only, from Monday to Friday; servers run all week but for a maintenance."""
    period, rows = 7 * DAY, []
    for client in range(CLIENTS):
        speeds = _speeds(rng, steps=2, down=8e6, up=4e6, spread=0.4)
        if client % 5 == 0:
            pause = rng.uniform(0, 6.5) * DAY
            rows.append([client, pause + 2 * HOUR, pause + 7 * DAY, *speeds])
            continue
        opens, closes = rng.normal(8, 0.7), rng.normal(17.5, 1.0)
        for day in range(5):
            if rng.random() < 0.95:
                shift = rng.normal(0, 0.2, 2)
                times = day * DAY + (np.array([opens, closes]) + shift) * HOUR
                rows.append([client, *times, *speeds])
    return period, rows


def _speeds(rng: np.random.Generator, steps: float, down: float, up: float, spread: float) -> list[float]:
    """Steps, bytes down and bytes up per second: quick phones tend to have quick networks, but not always."""
    device, network = rng.normal(0, spread, 2)
    return [steps * np.exp(device), *(speed * np.exp(0.4 * device + network) for speed in (down, up))]


def write(path: Path, about: str, period: float, rows: list[list[float]]) -> None:
    """The rows, turned into one period, intervals that touch each other made one."""
    lines = [f"# {about}", f"# period: {period:g}", ",".join(COLUMNS)]
    for client in range(CLIENTS):
        mine = sorted((row[1] % period, row) for row in rows if row[0] == client)
        for i, (start, row) in enumerate(mine):
            following = mine[i + 1][0] if i + 1 < len(mine) else mine[0][0] + period
            stop = min(start + row[2] - row[1], following)
            if stop - start >= 60:
                lines.append(f"{client},{start:.0f},{stop:.0f},{row[3]:.2f},{row[4]:.0f},{row[5]:.0f}")
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    EXAMPLES.mkdir(exist_ok=True)
    write(EXAMPLES / "phones.csv", "50 phones in eight time zones, charging", *phones(np.random.default_rng(1)))
    write(EXAMPLES / "hospitals.csv", "50 machines in hospitals, office hours", *hospitals(np.random.default_rng(2)))
