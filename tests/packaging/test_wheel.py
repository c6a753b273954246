"""Sources and wheels that `python -m build` makes, installed into an empty environment away from the sources.

The environment has the packages that elastic-fl needs from the one the tests run in; elastic-fl itself, and its
command, come from the wheel.
"""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from levels import LEVELS

from efl.native import library

ROOT = Path(__file__).parent.parent.parent
SECONDS = 5  # until the first round is over
pytestmark = pytest.mark.long


@dataclass(frozen=True)
class Installed:
    """An environment with a wheel in it."""

    folder: Path
    wheel: Path
    log: str  # of the build

    def start(self, command, *arguments, cwd):
        """A command of the environment that finds nothing else, no compiler either."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EFL_"))}
        binaries = self.folder / "bin"
        environment = {**kept, "PATH": str(binaries), "XDG_CACHE_HOME": str(cwd / "cache"), "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([binaries / command, *arguments], cwd=cwd, env=environment, **pipes)

    def run(self, command, *arguments, cwd):
        """What the command says."""
        process = self.start(command, *arguments, cwd=cwd)
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
        return said


def built(folder, *options, **environment):
    command = [sys.executable, "-m", "build", *options, "--outdir", folder, ROOT]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def installed(folder, log):
    (wheel,) = folder.glob("*.whl")
    where = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", where], check=True)
    pip = [sys.executable, "-m", "pip", "--python", where / "bin" / "python", "install", "--quiet"]
    subprocess.run([*pip, "--no-index", "--no-deps", wheel], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": where, "platbase": where}))
    needed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "needed.pth").write_text("\n".join(needed))  # the .pth files in there have no effect
    return Installed(where, wheel, log)


def test_with_a_compiler(tmp_path):
    """As `python -m build` does it: the source distribution, and from that a wheel with the C code."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made = installed(tmp_path, built(tmp_path))
    tags = made.wheel.stem.split("-")[2:]
    assert tags[:2] == ["py3", "none"]
    assert tags[2] != "any"
    assert "built without its C code" not in made.log
    levels = library.LEVELS if "avx2" in LEVELS else library.LEVELS[:1]
    assert files_of(made.wheel) == package() | {f"efl/native/lib/loops-{level}.so" for level in levels}
    (sources,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "constraints.txt", "Makefile", "tests/test_native.py"} <= names
    assert {"cmake/CMakeLists.txt", "src/efl/native/chain.c", "src/efl/native/samples.h"} <= names
    assert not {name for name in names if name.endswith((".so", ".pyc")) or "CMakeFiles" in name}
    assert "training steps are not compiled" not in tried(made, tmp_path, native=True)


def test_without_a_compiler(tmp_path):
    """A pure wheel, and a line when it is built and when it is used."""
    made = installed(tmp_path, built(tmp_path, "--wheel", CC=str(tmp_path / "no-compiler")))
    assert made.wheel.stem.split("-")[2:] == ["py3", "none", "any"]
    assert "built without its C code" in made.log
    assert files_of(made.wheel) == package()
    said = tried(made, tmp_path, native=False)
    assert said.count("training steps are not compiled (elastic-fl was installed without its C code)") == 1


def package():
    """All files of the package but the C code."""
    paths = [path for path in (ROOT / "src" / "efl").rglob("*") if path.is_file()]
    left_out = (".pyc", ".so", ".c", ".h")
    return {path.relative_to(ROOT / "src").as_posix() for path in paths if path.suffix not in left_out}


def files_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("efl/")}


def tried(made, tmp_path, native):
    """Import it and run its commands, with no compiler in sight; what a run says."""
    script = "import efl, efl.native; print(efl.__file__, efl.native.loaded() is not None)"
    file, loaded = made.run("python", "-c", script, cwd=tmp_path).split()
    assert Path(file).is_relative_to(made.folder)
    assert loaded == str(native)
    short = ["--set", "training.rounds=4"]
    said = made.run("efl", "run", *short, "--out", "one", cwd=tmp_path)
    assert (tmp_path / "one" / "report.html").is_file()
    made.run("efl", "compare", "--algorithms", "efl,fedavg", "--seeds", "1", *short, "--out", "two", cwd=tmp_path)
    assert len(list((tmp_path / "two").rglob("summary.json"))) == 2
    assert not list((tmp_path / "cache").rglob("*.so"))  # nothing is compiled when it is used
    # By the time of the processor, and once of three times: a busy machine is no fault of ours.
    assert any(seconds_to_first_round(made, tmp_path / str(number)) < SECONDS for number in range(3))
    return said


def seconds_to_first_round(made, folder):
    folder.mkdir()
    process = made.start("efl", "run", "--out", "run", cwd=folder)
    metrics = folder / "run" / "metrics.jsonl"
    try:
        while not (metrics.exists() and b"\n" in metrics.read_bytes()):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
    finally:
        process.kill()
        _, _, spent = os.wait4(process.pid, 0)
        process.returncode = -signal.SIGKILL
        process.stdout.close()
    return spent.ru_utime + spent.ru_stime
