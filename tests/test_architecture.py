"""A package imports only what stands below it (docs/architecture.md draws the order), and nothing is too long."""

import ast
import re
from pathlib import Path

import efl

ROOT = Path(efl.__file__).parent
REPOSITORY = Path(__file__).parent.parent
METAPHORS = re.compile(
    r"\b(hands?|crew|workshop|seats?|courier|looks|told|elsewhere|unhurried|in vain|play(s|ed)?)\b", re.I
)
IDIOMS = re.compile(r"(by|at|on the other) hand|Shakespeare's plays", re.I)
# Files that read what the first edition wrote, list what changed, or are about real plays.
NAMES_OF_THE_FIRST_EDITION = {"checkpoint_format_4.py", "state_file.py", "CHANGELOG.md", "shakespeare.py"}
# From top to bottom. Packages of one line do not import each other, but for those in one package.
ORDER = [
    ["cli"],
    ["paper", "bench"],
    ["tune"],
    ["deploy"],
    ["api"],
    ["flower"],
    ["track"],
    ["runs", "config"],
    ["config_sections"],
    ["server"],
    ["transport"],
    ["client"],
    ["algorithms"],
    ["training"],
    ["federation", "fleet", "models", "wire"],
    ["theory", "native"],
    ["layout", "errors", "rng", "storage", "reading", "settings", "processes", "plugins"],
]
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}
SAME_LEVEL = {("runs", "config")}
BOTTOM = len(ORDER) - 1


def packages_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            if name.startswith("efl."):
                yield name.split(".")[1]


def goes_down(package, imported):
    if package == imported or (package, imported) in SAME_LEVEL:
        return True
    return LEVEL[package] < LEVEL[imported] or LEVEL[package] == LEVEL[imported] == BOTTOM


def test_every_package_imports_only_what_stands_below_it():
    wrong = []
    for path in ROOT.rglob("*.py"):
        package = path.relative_to(ROOT).with_suffix("").parts[0]
        if package.startswith("__"):
            continue
        wrong += [
            f"{path.relative_to(ROOT)} imports {name}"
            for name in packages_imported(path)
            if not goes_down(package, name)
        ]
    assert not wrong, "\n".join(wrong)


def test_every_package_has_its_place():
    found = {path.relative_to(ROOT).with_suffix("").parts[0] for path in ROOT.rglob("*.py")}
    assert {package for package in found if not package.startswith("__")} == set(LEVEL)


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): n for path in ROOT.rglob("*.py") if (n := len(path.read_text().splitlines())) > 300
    }
    assert not long


def test_functions_are_short():
    """At most 40 lines, docstring not counted."""
    long = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= node.body[0].end_lineno - node.body[0].lineno + 1
                if lines > 40:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert not long


def test_a_task_is_brought_in_25_lines():
    """What the rows of tests/tasks show is easy."""
    for path in (REPOSITORY / "tests" / "tasks").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                assert node.end_lineno - node.lineno < 25, f"{path.name}: {node.name}"


def test_none_of_the_first_editions_metaphors_is_left():
    pages = [*ROOT.rglob("*.py"), *ROOT.rglob("*.c"), *REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]
    found = []
    for path in pages:
        if path.name not in NAMES_OF_THE_FIRST_EDITION:
            lines = enumerate(path.read_text().splitlines(), 1)
            found += [f"{path.name}:{n}: {line.strip()}" for n, line in lines if METAPHORS.search(IDIOMS.sub("", line))]
    assert not found, "\n".join(found)
