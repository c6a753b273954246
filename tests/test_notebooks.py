"""The notebooks of docs/notebooks: every one runs, and what is stored in them is what a run without errors shows."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import notebooks  # noqa: E402

FILES = sorted(notebooks.FOLDER.glob("*.ipynb"))
by_name = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


@pytest.fixture(scope="module")
def kernel():
    with notebooks.kernel() as started:
        yield started


def test_there_are_six():
    assert [path.stem[:2] for path in FILES] == ["01", "02", "03", "04", "05", "06"]


@pytest.mark.slow
@pytest.mark.xdist_group("notebooks")  # share a kernel
@by_name
def test_a_notebook_runs(path, kernel, tmp_path):
    done = notebooks.run(kernel, path, tmp_path, rounds=2)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert not [output.text for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no picture"


@by_name
def test_stored_outputs_are_whole_and_small(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "stored by notebooks.py"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert path.stat().st_size < 200_000
    assert "/tmp" not in path.read_text()
