"""What the documentation shows, runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "data.md"]
SNIPPETS = [
    (page.name, number, code)
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "number", "code"), SNIPPETS, ids=[f"{page}-{number}" for page, number, _ in SNIPPETS])
def test_a_snippet_runs(page, number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for library in ("datasets", "flwr_datasets"):
        if library in code:
            pytest.importorskip(library)
    names: dict[str, object] = {}
    exec(compile(code.replace("rounds=100", "rounds=2"), f"{page}, snippet {number}", "exec"), names)
    assert names["result"].summary["rounds"] == 2
