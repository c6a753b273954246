"""Run the notebooks of docs/notebooks and store what they show: ``python scripts/site/notebooks.py [NAME …]``.

Outputs are kept in the files, so that the site and GitHub show them without running anything. Pictures are small and
everything is drawn from seeds, so a change of an output is a change of the code. All notebooks share one kernel,
for it takes longer to start one than to run most of them; each begins with an empty namespace in an empty folder.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
ROUNDS = re.compile(r"(rounds=|\"rounds\": )\d\d+")
PROLOGUE = """\
import os as _os, matplotlib.pyplot as _pyplot
_os.chdir({folder!r})
_pyplot.close("all")
%reset -f
"""


@contextmanager
def kernel() -> Iterator[NotebookClient]:
    """A kernel for any number of notebooks."""
    client = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3", timeout=300)
    with client.setup_kernel():
        yield client


def run(client: NotebookClient, path: Path, folder: Path, rounds: int | None = None) -> NotebookNode:
    """Execute a notebook in ``folder``; with ``rounds``, training that is longer is shortened to so many.

    Raises:
        CellExecutionError: If a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    client.nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROLOGUE.format(folder=str(folder)))])
    client.execute_cell(client.nb.cells[0], 0, store_history=False)
    client.nb = notebook
    count = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            count += 1
            if rounds is not None:
                cell.source = ROUNDS.sub(rf"\g<1>{rounds}", cell.source)
            client.execute_cell(cell, index, execution_count=count)
    return notebook


def store(client: NotebookClient, path: Path) -> None:
    """Run a notebook as it is, and write it with its outputs and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = run(client, path, Path(folder))
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        for output in cell.get("outputs", []):
            output.pop("metadata", None)
            if output.output_type in ("display_data", "execute_result"):
                output.metadata = NotebookNode()
    nbformat.write(notebook, path)


if __name__ == "__main__":
    names = sys.argv[1:]
    with kernel() as started:
        for found in sorted(FOLDER.glob("*.ipynb")):
            if not names or found.stem in names:
                store(started, found)
                print(f"{found.name}: {found.stat().st_size / 1000:.0f} kB")
