"""What the documentation shows is true: code runs, experiment files are valid, links and paths lead somewhere.

The blocks of a page run in order, in one namespace and one empty folder. A comment on the line before a block says what
else is to be done with it:

``<!-- not run: REASON -->``  it is left alone
``<!-- file: NAME -->``       it is saved under that name, for the blocks that follow
"""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path

import pytest
from copies import in_a_copy
from pydantic import BaseModel

from efl.algorithms.registry import create, every_name
from efl.cli import main
from efl.config import Experiment, parse
from efl.fleet import Fleet
from efl.settings import make

ROOT = Path(__file__).resolve().parents[1]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md")]
FOLDERS = [ROOT / "docs", *(ROOT / "docs" / name for name in ("howto", "notebooks", "reference"))]
PAGES = [*TOP, *(page for folder in FOLDERS for page in sorted(folder.glob("*.md")))]
NAMES = ["-".join(page.relative_to(ROOT).parts[-2:]).removeprefix("docs-") for page in PAGES]
LANGUAGES = {"python", "sh", "toml", "text"}
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NOTE = re.compile(r"<!-- (not run|file): (.+) -->\n *$")
MOST_NOT_RUN = 12


@dataclass(frozen=True)
class Block:
    """A block of code: where it is, its language, its text, and what the comment before it says."""

    page: Path
    line: int
    language: str
    text: str
    kind: str
    note: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    content = page.read_text()
    found = []
    for match in FENCE.finditer(content):
        indent, language, text = match.groups()
        text = "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))
        note = NOTE.search(content[: match.start()])
        line = content.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, language, text, *(note.groups() if note else ("run", ""))))
    return found


BLOCKS = {page: blocks_of(page) for page in PAGES}
EVERY_BLOCK = list(chain.from_iterable(BLOCKS.values()))
EXECUTABLE = [page for page in PAGES if any(block.language in ("python", "sh") for block in BLOCKS[page])]


@pytest.mark.slow
@pytest.mark.parametrize("page", EXECUTABLE, ids=[NAMES[PAGES.index(page)] for page in EXECUTABLE])
def test_a_page_runs(page, tmp_path):
    for word, package in (("datasets", "flwr_datasets"), ("from transformers", "transformers"), ("from peft", "peft")):
        if word in page.read_text():
            pytest.importorskip(package)
    in_a_copy(run_page, page, tmp_path)  # what a page registers is not known to other tests


def run_page(page: Path, folder: Path) -> None:
    os.chdir(folder)
    names = {"__name__": "__main__"}
    for block in BLOCKS[page]:
        try:
            if block.kind == "file":
                Path(block.note).write_text(block.text)
            elif block.kind == "run" and block.language == "python":
                run_python(block, names)
            elif block.kind == "run" and block.language == "sh":
                run_shell(block)
        except (Exception, SystemExit) as error:
            raise AssertionError(block.place) from error


def run_python(block: Block, names: dict) -> None:
    code = re.sub(r"(rounds=|\"rounds\": )\d\d+", r"\g<1>2", block.text)
    if ">>>" in code:
        runner = doctest.DocTestRunner(verbose=False)
        test = doctest.DocTestParser().get_doctest(code, names, block.place, str(block.page), block.line)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        names |= test.globs
        assert not runner.failures, "".join(report)
    else:
        exec(compile("\n" * (block.line - 1) + code, str(block.page), "exec"), names)


def run_shell(block: Block) -> None:
    """Run a block's commands; ours in this process, for it takes seconds to start another."""
    for command in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(command, comments=True)
        if words[:1] == ["efl"]:
            sys.argv = [*words, *shorter(words)]
            with pytest.raises(SystemExit) as stop:
                main()
            assert not stop.value.code, f"{command}: exit code {stop.value.code}"
        elif words:
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            subprocess.run(["bash", "-ec", command], check=True, env={**os.environ, "PATH": path})


def shorter(words: list[str]) -> list[str]:
    """Options that make a command quick, unless it says otherwise itself."""
    said, command = " ".join(words), words[1]
    options = []
    if command in ("run", "compare") and "training.rounds=" not in said:
        options += ["--set", "training.rounds=2"]
    if command == "compare":
        options += ["--workers", "1", "--seeds", "1"]
    if command == "tune":
        options += ["--workers", "1", "--trials", "2", "--rounds", "2", "--confirmations", "0"]
    if command == "paper" and "--scale" not in said:
        options += ["--scale", "smoke"]
    return options


def test_a_block_is_run_unless_it_says_why_not():
    assert {block.language for block in EVERY_BLOCK} <= LANGUAGES
    left_out = [block for block in EVERY_BLOCK if block.kind == "not run"]
    print(*(f"{block.place}: {block.note}" for block in left_out), sep="\n")
    assert len(left_out) <= MOST_NOT_RUN
    comments = sum(page.read_text().count("<!--") for page in PAGES)
    assert comments == sum(block.kind != "run" for block in EVERY_BLOCK), "a comment is not right before a block"


TOML = [block for block in EVERY_BLOCK if block.language == "toml" and block.kind != "not run"]


@pytest.mark.parametrize("block", TOML, ids=[block.place for block in TOML])
def test_an_experiment_is_valid(block):
    experiment = parse(tomllib.loads(block.text))
    tables = [transform.model_dump() for transform in experiment.transform]
    if not experiment.plugins:  # names that a plug-in registers are used where the page is run
        create(experiment.algorithm_name, experiment.algorithm_settings, tables, experiment.codec)
    make(Fleet, experiment.fleet, "fleet")


def test_the_page_of_experiments_has_every_key():
    (block,) = (block for block in TOML if block.page.name == "experiments.md")
    shown = parse(tomllib.loads(block.text)).model_dump(exclude_unset=True)
    assert shown.keys() == Experiment.model_fields.keys()
    assert shown["fleet"].keys() == Fleet.__dataclass_fields__.keys()
    for name, field in Experiment.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            assert shown[name].keys() == field.annotation.model_fields.keys(), name


def test_the_page_of_algorithms_has_every_name():
    table = re.findall(r"^\| `([\w:]+)` \|", (ROOT / "docs" / "algorithms.md").read_text(), re.MULTILINE)
    presets_of_ablation = {"efl:paper"}
    assert set(table) == set(every_name()) - presets_of_ablation


def prose_of(page: Path) -> str:
    return FENCE.sub("", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"\w+://", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name}: {target}"
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE) if anchor else []
        slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_and_functions_that_a_page_names_exist(page):
    """``tests/x.py`` from the top, ``server/x.py`` from src/efl, ``server/x.py:name`` a function there."""
    for path, _, name in re.findall(r"`((?:[\w.]+/)*\w+\.(?:py|md|c|json|toml))(:([\w.]+))?`", page.read_text()):
        if "/" not in path and not name:
            continue
        found = [base / path for base in (ROOT, ROOT / "src" / "efl", page.parent) if (base / path).exists()]
        assert found, f"{page.name}: {path}"
        if name:
            module = importlib.import_module("efl." + path.removesuffix(".py").replace("/", "."))
            reduce(getattr, name.split("."), module)
