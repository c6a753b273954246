"""report.html: one self-contained page with a run's (or several runs') numbers and figures, drawn with Plotly."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.subplots import make_subplots

from efl.errors import UserError
from efl.runs.directory import Record, RunDirectory
from efl.storage import write_atomically
from efl.track.figures import (
    COLOURS,
    Panel,
    Participation,
    Stack,
    byte_stacks,
    curve_panels,
    participation,
)
from efl.track.plots import SILENT, draw_panels, draw_participation, draw_stacks
from efl.track.tables import comparison_rows, reputation_rows, summary_rows
from efl.track.text import change_lines, merit
from efl.wire.ledger import KINDS

CAPTION = (
    "A cell is a client sampled in a round; its colour is the share of the local steps it did. Red: it did not reply. "
    "A white cross: its work was not used. Empty: not sampled."
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1080px; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.15rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; }} td, th {{ padding: .25rem .9rem .25rem 0; text-align: left; }}
th {{ border-bottom: 1px solid #999; }} .lead {{ font-size: 1.05rem; }} .warn {{ color: #a3260f; font-weight: 600; }}
pre {{ background: #f6f6f4; padding: .8rem; overflow-x: auto; font-size: 13px; }}
</style>
<script>{plotly}</script></head><body>
{body}
</body></html>
"""


def write_report(directory: RunDirectory) -> Path:
    """report.html, curves.png, bytes.png and participation.png for one run, in its directory."""
    experiment, summary, history = directory.experiment(), directory.read_summary(), directory.history()
    if not history:
        raise UserError(f"{directory.path} has no rounds to report yet")
    panels = curve_panels({experiment.algorithm_name: [history]})
    clients = experiment.federation.clients
    who = participation(history, clients, experiment.training.local_steps)
    draw_panels(panels, directory.path / "curves.png")
    draw_participation(who, directory.path / "participation.png")
    stacks = byte_stacks(history)
    draw_stacks(stacks, directory.path / "bytes.png")
    title = f"{experiment.algorithm_name} on {experiment.federation.dataset}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if summary is None:
        parts.append(f"<p class='warn'>Not finished: {len(history)} of {experiment.training.rounds} rounds so far.</p>")
    else:
        parts += [_lead(summary), _table(None, [list(row) for row in summary_rows(summary)])]
    parts += ["<h2>Curves</h2>", _figure(_plotly_panels(panels), "curves")]
    parts += ["<h2>Where the bytes went</h2>", _figure(_plotly_stacks(stacks), "bytes")]
    if came_and_went := [html.escape(line) for record in history for line in change_lines(record)]:
        parts += ["<h2>Who came and went</h2>", f"<p>{'<br>'.join(came_and_went)}</p>"]
    if doubtful := reputation_rows(summary or {}):
        parts += ["<h2>Clients in doubt</h2>", _table(doubtful[0], doubtful[1:])]
    parts += ["<h2>Who took part when</h2>", f"<p>{CAPTION}</p>", _figure(_plotly_participation(who), "participation")]
    parts += [f"<details><summary>The experiment</summary><pre>{html.escape(experiment.to_toml())}</pre></details>"]
    return _write_page(directory.path / "report.html", title, parts)


def write_comparison(path: Path, runs: Mapping[str, Sequence[RunDirectory]]) -> Path:
    """report.html and curves.png in ``path`` for several runs, grouped by label; the runs of a group are its seeds."""
    path.mkdir(parents=True, exist_ok=True)
    histories = {name: [directory.history() for directory in directories] for name, directories in runs.items()}
    panels = curve_panels(histories)
    draw_panels(panels, path / "curves.png")
    summaries = {
        name: [s for directory in directories if (s := directory.read_summary()) is not None]
        for name, directories in runs.items()
    }
    header, rows = comparison_rows({name: found for name, found in summaries.items() if found})
    parts = ["<h1>Comparison</h1>", _table(header, rows), "<h2>Curves</h2>", _figure(_plotly_panels(panels), "curves")]
    names = ", ".join(str(directory.path) for group in runs.values() for directory in group)
    parts.append(f"<p>Bands span the seeds. Runs: {html.escape(names)}</p>")
    return _write_page(path / "report.html", "Comparison", parts)


def _lead(summary: Record) -> str:
    if summary["diverged"]:
        return f"<p class='warn'>Diverged: {html.escape(str(summary['diverged_reason']))}.</p>"
    name, best = summary.get("metric", "accuracy"), merit(summary["bmta_global"], summary.get("metric_is_share", True))
    return f"<p class='lead'>Best mean test {html.escape(name)} of the global model: <b>{best}</b>.</p>"


def _table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> str:
    head = "<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>" if header else ""
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def _plotly_panels(panels: Sequence[Panel], columns: int = 2) -> Any:
    rows = -(-len(panels) // columns)
    figure = make_subplots(rows=rows, cols=columns, subplot_titles=[panel.title for panel in panels])
    shown: set[str] = set()
    for i, panel in enumerate(panels):
        place = {"row": i // columns + 1, "col": i % columns + 1}
        for series in panel.series:
            line = {"color": series.colour, "dash": "dash" if series.dashed else "solid", "width": 2}
            mode = "lines+markers" if len(series.x) < 30 else "lines"
            common = {"legendgroup": series.name, "name": series.name}
            figure.add_scatter(
                x=series.x.tolist(), y=series.y.tolist(), mode=mode, line=line, marker={"size": 5},
                showlegend=series.name not in shown, **common, **place,
            )  # fmt: skip
            shown.add(series.name)
            if series.low is not None and series.high is not None:
                band_x = [*series.x, *series.x[::-1]]
                band_y = [*series.high, *series.low[::-1]]
                figure.add_scatter(
                    x=band_x, y=band_y, fill="toself", fillcolor=series.colour, opacity=0.15, line={"width": 0},
                    hoverinfo="skip", showlegend=False, **common, **place,
                )  # fmt: skip
        figure.update_xaxes(title_text=panel.x_label, type="log" if panel.log_x else "linear", **place)
        figure.update_yaxes(title_text=panel.y_label, **place)
    figure.update_layout(template="plotly_white", height=360 * rows, legend={"orientation": "h", "y": -0.12})
    return figure


def _plotly_stacks(stacks: Sequence[Stack]) -> Any:
    figure = make_subplots(rows=1, cols=len(stacks), subplot_titles=[f"bytes {stack.title}" for stack in stacks])
    shown: set[str] = set()
    for column, stack in enumerate(stacks, start=1):
        for kind, values in stack.kinds.items():
            figure.add_bar(
                x=list(range(1, len(values) + 1)), y=(values / 1e3).tolist(), name=kind, legendgroup=kind,
                marker_color=COLOURS[KINDS.index(kind)], marker_line_width=0, showlegend=kind not in shown,
                row=1, col=column,
            )  # fmt: skip
            shown.add(kind)
        figure.update_xaxes(title_text="round", row=1, col=column)
        figure.update_yaxes(title_text="kB per round", row=1, col=column)
    figure.update_layout(
        template="plotly_white", height=360, barmode="stack", bargap=0, legend={"orientation": "h", "y": -0.2}
    )
    return figure


def _plotly_participation(data: Participation) -> Any:
    figure = go.Figure()
    axis = {"title": "share of E steps"}
    done = [[None if not value > 0 else round(float(value), 3) for value in row] for row in data.share]
    silent = [[1 if value == 0 else None for value in row] for row in data.share]
    hover = "round %{x}<br>client %{y}<br>"
    figure.add_heatmap(
        z=done, zmin=0, zmax=1, colorscale="Viridis", colorbar=axis, hovertemplate=hover + "s/E %{z}<extra></extra>"
    )
    figure.add_heatmap(
        z=silent,
        colorscale=[[0, SILENT], [1, SILENT]],
        showscale=False,
        hovertemplate=hover + "no answer<extra></extra>",
    )
    if data.dropped.any():
        where = data.dropped.nonzero()
        cross = {"symbol": "x-thin", "size": 5, "line": {"color": "white", "width": 1}}
        figure.add_scatter(
            x=where[1].tolist(),
            y=where[0].tolist(),
            mode="markers",
            marker=cross,
            name="work not used",
            hoverinfo="skip",
        )
    height = min(1000, 180 + 12 * len(data.share))
    figure.update_layout(template="plotly_white", height=height, xaxis_title="round", yaxis_title="client")
    return figure


def _figure(figure: Any, name: str) -> str:
    text: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name)
    return text


def _write_page(path: Path, title: str, parts: Sequence[str]) -> Path:
    page = PAGE.format(title=html.escape(title), plotly=get_plotlyjs(), body="\n".join(parts))
    write_atomically(path, page.encode())
    return path
