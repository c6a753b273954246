"""The lines of a trace file, read one by one, each checked by itself (`efl.fleet.traces` has the format)."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efl.errors import UserError
from efl.reading import DamagedError, parse_json, read_text

EARLIEST, LATEST = 1e-3, 1e10  # seconds; a period is no shorter, and no time is later
SLOWEST, FASTEST = 1e-12, 1e15  # steps or bytes per second
INTERVALS = re.compile(r'"intervals"\s*:\s*\[')
COLUMNS = ("client", "start", "stop", "steps_per_second", "down_bytes_per_second", "up_bytes_per_second")


@dataclass(frozen=True)
class Interval:
    """A client is available from ``start`` to ``stop`` with these speeds; ``line`` is where the file says so."""

    line: int
    client: int
    start: float
    stop: float
    steps_per_second: float
    down: float
    up: float


def read_intervals(path: Path) -> tuple[list[Interval], float]:
    """All intervals of a file in its order, and its period (infinity: none)."""
    text = read_text(path)
    rows, period = _json_rows(path, text) if path.suffix == ".json" else _csv_rows(path, text)
    try:
        intervals = [_checked(f"{path}:{line}", line, row, period) for line, row in rows]
    except csv.Error as error:
        raise UserError(f"{path}: not valid CSV: {error}") from None
    if not intervals:
        raise UserError(f"{path}: empty; a trace needs at least one interval")
    return intervals, period


def _csv_rows(path: Path, text: str) -> tuple[Iterator[tuple[int, Mapping[str, Any]]], float]:
    lines = text.splitlines()
    skipped = 0
    period = math.inf
    while skipped < len(lines) and (lines[skipped].startswith("#") or not lines[skipped].strip()):
        name, colon, value = lines[skipped].strip("# ").partition(":")
        skipped += 1
        if colon and name.strip() == "period":
            period = _period(f"{path}:{skipped}", value)
    if skipped == len(lines):
        raise UserError(f"{path}: empty; a trace needs at least one interval")
    reader = csv.reader(lines[skipped:])
    try:
        header = [name.strip() for name in next(reader)]
    except csv.Error as error:
        raise UserError(f"{path}:{skipped + 1}: not valid CSV: {error}") from None
    _check_columns(f"{path}:{skipped + 1}", header)

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for row in reader:
            line = skipped + reader.line_num
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(f"{path}:{line}: {len(row)} values for {len(header)} columns")
            yield line, dict(zip(header, row, strict=True))

    return rows(), period


def _json_rows(path: Path, text: str) -> tuple[Iterator[tuple[int, Mapping[str, Any]]], float]:
    """The objects of "intervals", found one by one, so that each has a line."""
    try:
        document = parse_json(text, finite=True)
    except DamagedError as error:
        raise UserError(f"{path}:{error.line or 1}: {error.why}") from None
    if not isinstance(document, dict) or not isinstance(document.get("intervals"), list):
        raise UserError(f'{path}:1: write {{"intervals": [{{"client": 0, …}}, …]}}')
    if unknown := set(document) - {"intervals", "period"}:
        raise UserError(f"{path}:1: unknown key {min(unknown)!r}; there are period and intervals")
    period = _period(f"{path}:1", document["period"]) if "period" in document else math.inf

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        found = INTERVALS.search(text)
        if found is None:
            raise UserError(f'{path}:1: write "intervals" without escapes')
        decoder, position = json.JSONDecoder(), found.end()
        for _ in document["intervals"]:
            while text[position] in ", \t\r\n":
                position += 1
            row, end = decoder.raw_decode(text, position)
            line = text.count("\n", 0, position) + 1
            if not isinstance(row, dict):
                raise UserError(f"{path}:{line}: an interval is an object with the keys {', '.join(COLUMNS)}")
            _check_columns(f"{path}:{line}", [*row, *({"stop"} - set(row))])
            yield line, row
            position = end

    return rows(), period


def _check_columns(where: str, names: list[str]) -> None:
    for name in COLUMNS:
        if name not in names:
            raise UserError(f"{where}: no column {name}; a trace has {', '.join(COLUMNS)}")
    for name in names:
        if name not in COLUMNS:
            raise UserError(f"{where}: unknown column {name!r}; a trace has {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise UserError(f"{where}: column {name} is there twice")


def _checked(where: str, line: int, row: Mapping[str, Any], period: float) -> Interval:
    client = _number(where, "client", row["client"])
    if client < 0 or client != int(client):
        raise UserError(f"{where}: client: should be a whole number from 0 on, got {row['client']!s:.40}")
    start = _number(where, "start", row["start"])
    stop = math.inf if row.get("stop") in (None, "") else _number(where, "stop", row["stop"])
    speeds = [_number(where, name, row[name]) for name in COLUMNS[3:]]
    for name, speed in zip(COLUMNS[3:], speeds, strict=True):
        if speed <= 0:
            raise UserError(f"{where}: {name}: should be above 0, got {row[name]!s:.40}")
        if not SLOWEST <= speed <= FASTEST:
            raise UserError(f"{where}: {name}: should be between {SLOWEST:g} and {FASTEST:g}, got {row[name]!s:.40}")
    if start > LATEST or LATEST < stop < math.inf:
        raise UserError(f"{where}: times should be at most {LATEST:g} seconds, got {start:g} to {stop:g}")
    if start < 0:
        raise UserError(f"{where}: start: should not be below 0, got {start:g}")
    if stop <= start:
        raise UserError(f"{where}: client {client:g} departs at {stop:g}, but arrives at {start:g} only")
    if start >= period or (stop < math.inf and stop - start > period):
        raise UserError(f"{where}: {start:g} to {stop:g} does not fit into the period of {period:g} seconds")
    return Interval(line, int(client), start, stop, *speeds)


def _number(where: str, name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: {name}: should be a finite number, got {value!r:.40}")
    return number


def _period(where: str, value: Any) -> float:
    period = _number(where, "period", value.strip() if isinstance(value, str) else value)
    if period <= 0:
        raise UserError(f"{where}: period: should be above 0, got {period:g}")
    if not EARLIEST <= period <= LATEST:
        raise UserError(f"{where}: period: should be between {EARLIEST:g} and {LATEST:g} seconds, got {period:g}")
    return period
