"""The site builds strictly, everything public is in it, and nothing in it comes from elsewhere on the web."""

import doctest
import html
import importlib
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import efl
from efl.config import section_keys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "site"))  # keys.py, api.py
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def built(config, site):
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    for needed in ("mkdocs", "material", "mkdocstrings_handlers.python", "mkdocs_jupyter"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Tags(HTMLParser):
    """Ids of a page, where its links lead, and what it loads."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        if tag in LOADED and attributes.get(LOADED[tag]) and attributes.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(attributes[LOADED[tag]])


@pytest.fixture(scope="session")
def pages(site):
    return {page.relative_to(site).as_posix(): Tags(page) for page in site.rglob("*.html")}


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]  # built once


def test_every_public_name_is_in_the_reference(pages):
    found = set().union(*(page.ids for name, page in pages.items() if name.startswith("reference/")))
    assert {f"efl.{name}" for name in efl.__all__} <= found
    assert {"efl.algorithms.Codec", "efl.wire.TrainRequest", "efl.theory.Theorem1", "efl.flower.server_app"} <= found


def test_every_key_and_command_is_in_the_reference(site, pages):
    keys = html.unescape((site / "reference" / "keys.html").read_text())
    for section, names in section_keys().items():
        assert section in pages["reference/keys.html"].ids
        assert all(f"<code>{name}</code>" in keys for name in names), section
    assert all(f"<code>{name}</code>" in keys for name in efl.Fleet.__dataclass_fields__)
    commands = pages["reference/commands.html"].ids
    assert {"efl-run", "efl-compare", "efl-paper-table3", "efl-deploy-demo", "efl-runs-diff"} <= commands


def test_a_key_without_a_meaning_is_named():
    keys = pytest.importorskip("keys", reason="griffe is not installed")
    assert all(keys.meanings_in_example()[section].values() for section in section_keys())


def test_pages_load_nothing_from_other_servers(pages):
    assert not {name: url for name, page in pages.items() for url in page.loads if urlsplit(url).netloc}


def test_links_in_the_html_lead_somewhere(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            known = pages.get(target.resolve().relative_to(site.resolve()).as_posix()) if target.exists() else None
            if not target.exists() or (parts.fragment and known and unquote(parts.fragment) not in known.ids):
                broken.append(f"{name}: {link}")
    assert not broken


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "../nowhere.md"])
def test_a_broken_link_ends_a_build(tmp_path, link):
    pytest.importorskip("mkdocs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Home\n\n[here]({link})\n")
    ours = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config = {"site_name": "small", "validation": ours["validation"], "plugins": []}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1, done.stderr
    assert "nowhere" in done.stderr


def test_what_is_public_and_undocumented_ends_a_build(monkeypatch):
    pytest.importorskip("griffe")
    import api

    pages = [call.split() for call in re.findall(r"\{\{ api (.+) \}\}", "\n".join(reference()))]
    assert not list(api.complaints(pages))
    monkeypatch.setattr(api.public()["efl.train"], "docstring", None)
    assert list(api.complaints(pages)) == ["efl.api.train is public and has no docstring"]
    assert "efl.Fleet is on 0 pages of the reference" in list(api.complaints([["efl.api"]]))


@pytest.mark.parametrize("name", ["dialect", "docstrings", "keys"])
def test_examples_of_the_scripts_are_true(name):
    pytest.importorskip("griffe")
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed


def reference():
    return [page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]


def test_the_citation_is_complete():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == efl.__version__
    assert project.get("version", efl.__version__) == efl.__version__
    assert citation["license"] == project["license"]
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Ma", "Lu", "Lu", "Li", "Yi", "Cui"]


@pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form.keys() <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= form.keys()
    assert all({"type", "attributes"} <= field.keys() and field["attributes"]["label"] for field in form["body"])
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
