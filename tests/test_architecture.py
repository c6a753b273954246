"""A package depends only on what lies further down (CONTRIBUTING shows the order)."""

import ast
from pathlib import Path

import efl

ROOT = Path(efl.__file__).parent
ANYONE = {"errors", "processes", "rng", "storage", "validation"}
MAY_IMPORT = {
    "native": set(),
    "wire": set(),
    "federation": {"native"},
    "models": {"native"},
    "fleet": {"theory"},
    "theory": set(),
    "algorithms.parts": {"wire", "theory"},
    "algorithms": {"wire", "models", "algorithms.parts"},
    "engine": {"wire", "federation", "models", "native", "fleet", "algorithms", "algorithms.parts", "config"},
    "track": {"config", "engine"},
    "bench": {
        "deploy",
        "engine",
        "algorithms",
        "algorithms.parts",
        "config",
        "federation",
        "fleet",
        "models",
        "native",
        "wire",
    },
    "paper": {"algorithms", "comparison", "config", "engine", "theory", "track"},
    "flower": {"wire", "federation", "models", "fleet", "algorithms", "config", "engine", "track"},
    "deploy": {"config", "engine"},
    "cli": {"api", "bench", "comparison", "config", "deploy", "engine", "federation", "paper", "track"},
}


def packages_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            if name.startswith("efl."):
                yield package_of(name.removeprefix("efl.").split("."))


def package_of(parts):
    return "algorithms.parts" if parts[:2] == ["algorithms", "parts"] else parts[0]


def test_imports_go_one_way():
    wrong = []
    for path in ROOT.rglob("*.py"):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        package = package_of(parts)
        if len(parts) > 1:
            allowed = MAY_IMPORT[package] | ANYONE | {package}
            wrong += [
                f"{path.relative_to(ROOT)} imports {name}" for name in packages_imported(path) if name not in allowed
            ]
    assert not wrong, "\n".join(wrong)


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): n for path in ROOT.rglob("*.py") if (n := len(path.read_text().splitlines())) > 300
    }
    assert not long
