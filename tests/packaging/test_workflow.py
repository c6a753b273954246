"""The workflow for GitHub tests the versions of Python that the package names, and runs what a change must pass."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent.parent
JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMED = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))


def steps(job):
    return [step.get("run") or step["uses"] for step in JOBS[job]["steps"]]


def test_every_python_is_tested_by_what_every_change_must_pass():
    assert NAMED[0] == PROJECT["requires-python"].removeprefix(">=")
    assert JOBS["test"]["strategy"]["matrix"]["python"] == NAMED
    assert ".ci/run" in steps("test")


def test_wheels_are_built_and_tried_on_every_system():
    assert any(step.startswith("pypa/cibuildwheel@") for step in steps("wheels"))
    assert JOBS["install"]["strategy"]["matrix"]["python"] == [NAMED[0], NAMED[-1]]
    systems = JOBS["install"]["strategy"]["matrix"]["system"]
    assert {system.split("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}
    assert set(JOBS["install"]["needs"]) <= set(JOBS)


def test_steps_are_complete_and_actions_have_versions():
    for name, job in JOBS.items():
        assert job["timeout-minutes"], name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), name
            assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step["uses"]), step
