"""report.html: one self-contained page with a run's (or several runs') numbers and figures.

It is the page of `efl watch` with what that would be sent already in it, so both show a run alike.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from efl.errors import UserError
from efl.runs.directory import Record, RunDirectory
from efl.storage import write_atomically
from efl.track.figures import byte_stacks, curve_panels, participation
from efl.track.live.feed import Cursor, Feed
from efl.track.live.server import PAGE
from efl.track.plots import draw_panels, draw_participation, draw_stacks
from efl.track.tables import comparison_rows, reputation_rows, summary_rows
from efl.track.text import change_lines, merit

IMPORT = "import { "  # how the one line of a script begins that needs another file


def write_report(directory: RunDirectory) -> Path:
    """report.html, curves.png, bytes.png and participation.png for one run, in its directory."""
    experiment, summary, history = directory.experiment(), directory.read_summary(), directory.history()
    if not history:
        raise UserError(f"{directory.path} has no rounds to report yet")
    draw_panels(curve_panels({experiment.algorithm_name: [history]}), directory.path / "curves.png")
    who = participation(history, experiment.federation.clients, experiment.training.local_steps)
    draw_participation(who, directory.path / "participation.png")
    draw_stacks(byte_stacks(history), directory.path / "bytes.png")
    title = f"{experiment.algorithm_name} on {experiment.federation.dataset}"
    if summary is None:
        done = f"Not finished: {len(history)} of {experiment.training.rounds} rounds so far."
        parts = [f"<p class='bad'>{done}</p>"]
    else:
        parts = [_lead(summary), _table(None, [list(row) for row in summary_rows(summary)])]
    below = []
    if came_and_went := [html.escape(line) for record in history for line in change_lines(record)]:
        below += ["<h2>Who came and went</h2>", f"<p>{'<br>'.join(came_and_went)}</p>"]
    if doubtful := reputation_rows(summary or {}):
        below += ["<h2>Clients in doubt</h2>", _table(doubtful[0], doubtful[1:])]
    below += [f"<details><summary>The experiment</summary><pre>{html.escape(experiment.to_toml())}</pre></details>"]
    return _write_page(directory.path / "report.html", title, [directory], parts, below)


def write_comparison(path: Path, runs: Mapping[str, Sequence[RunDirectory]]) -> Path:
    """report.html and curves.png in ``path`` for several runs, grouped by label; the runs of a group are its seeds."""
    path.mkdir(parents=True, exist_ok=True)
    histories = {name: [directory.history() for directory in directories] for name, directories in runs.items()}
    draw_panels(curve_panels(histories), path / "curves.png")
    summaries = {
        name: [s for directory in directories if (s := directory.read_summary()) is not None]
        for name, directories in runs.items()
    }
    header, rows = comparison_rows({name: found for name, found in summaries.items() if found})
    below = ["<p class='note'>Bands span the seeds of runs that differ in nothing else.</p>"]
    every = [directory for group in runs.values() for directory in group]
    return _write_page(path / "report.html", "Comparison", every, [_table(header, rows)], below)


def _lead(summary: Record) -> str:
    if summary["diverged"]:
        return f"<p class='bad'>Diverged: {html.escape(str(summary['diverged_reason']))}.</p>"
    name, best = summary.get("metric", "accuracy"), merit(summary["bmta_global"], summary.get("metric_is_share", True))
    return f"<p>Best mean test {html.escape(name)} of the global model: <b>{best}</b>.</p>"


def _table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    head = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>" if header else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "" if header else " class='facts'"  # of two columns, which wrap where there is no room
    return f"<div class='scroll'><table{kind}>{head}{body}</table></div>"


def _write_page(
    path: Path, title: str, directories: Sequence[RunDirectory], above: Sequence[str], below: Sequence[str]
) -> Path:
    """The page of `efl watch`, its files and its events inside."""
    feed = Feed([directory.path for directory in directories])
    feed.poll(thoroughly=True)
    events = json.dumps(feed.news(Cursor()), separators=(",", ":")).replace("</", "<\\/")
    inside = {
        "<title>efl watch</title>": f"<title>{html.escape(title)}</title>",
        '<h1 id="title">efl watch</h1>': f"<h1>{html.escape(title)}</h1>",
        '<p id="line" role="status">connecting …</p>': "",
        '<link rel="stylesheet" href="watch.css">': f"<style>\n{_file('watch.css')}</style>",
        '<script type="module" src="watch.js"></script>': f'<script type="module">\n{_script()}</script>',
        "<main>": f'<script type="application/json" id="events">{events}</script>\n<main>\n' + "\n".join(above),
        "</main>": "\n".join(below) + "\n</main>",
    }
    page = _file("index.html")
    for mark, text in inside.items():
        before, found, after = page.partition(mark)
        assert found, mark
        page = before + text + after
    write_atomically(path, page.encode())
    return path


def _script() -> str:
    """Both scripts as one."""
    lines = [line for line in _file("watch.js").splitlines() if not line.startswith(IMPORT)]
    return _file("charts.js").replace("\nexport ", "\n") + "\n".join(lines) + "\n"


def _file(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")
