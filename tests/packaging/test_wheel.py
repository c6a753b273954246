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


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """As `python -m build` does it: the source distribution, and the wheel from that."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("compiled")
    return installed(folder, built(folder))


@pytest.fixture(scope="module")
def pure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pure")
    return installed(folder, built(folder, "--wheel", CC=str(folder / "no-compiler")))


@pytest.fixture(params=["compiled", "pure"])
def either(request):
    return request.getfixturevalue(request.param)


def test_the_wheel_has_the_package_and_the_libraries(compiled, pure):
    code = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "efl").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".so", ".c", ".h")
    }
    levels = library.LEVELS if "avx2" in LEVELS else library.LEVELS[:1]
    libraries = {f"efl/native/lib/loops-{level}.so" for level in levels}
    for made, more in ((compiled, libraries), (pure, set())):
        names = set(zipfile.ZipFile(made.wheel).namelist())
        assert {name for name in names if name.startswith("efl/")} == code | more
    assert compiled.wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not compiled.wheel.name.endswith("any.whl")
    assert pure.wheel.name.endswith("-py3-none-any.whl")
    assert "built without its C code" in pure.log
    assert "built without its C code" not in compiled.log


def test_the_sources_are_complete_and_nothing_is_built_in_them(compiled):
    (sources,) = compiled.wheel.parent.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "constraints.txt", "Makefile", "tests/test_native.py"} <= names
    assert {"cmake/CMakeLists.txt", "src/efl/native/chain.c", "src/efl/native/samples.h"} <= names
    assert not {name for name in names if name.endswith((".so", ".pyc")) or "CMakeFiles" in name}


def test_it_is_imported_from_the_wheel(either, tmp_path):
    script = "import efl, efl.native; print(efl.__file__); print(efl.native.loaded() is not None)"
    file, native = either.run("python", "-c", script, cwd=tmp_path).split()
    assert Path(file).is_relative_to(either.folder)
    assert native == str(either.wheel.name.find("any.whl") < 0)


def test_the_commands_run_without_a_compiler(either, tmp_path):
    said = either.run("efl", "run", "--set", "training.rounds=4", "--out", "one", cwd=tmp_path)
    assert ("training steps are not compiled (elastic-fl was installed without its C code)" in said) == (
        either.wheel.name.endswith("any.whl")
    )
    assert (tmp_path / "one" / "report.html").is_file()
    shorter = ["--algorithms", "efl,fedavg", "--seeds", "1", "--set", "training.rounds=4"]
    either.run("efl", "compare", *shorter, "--out", "two", cwd=tmp_path)
    assert len(list((tmp_path / "two").rglob("summary.json"))) == 2
    assert not list(tmp_path.rglob("*.so"))  # nothing is compiled when it is used


def test_the_first_round_is_over_soon(either, tmp_path):
    """By the time of the processor, the best of three: a busy machine is no fault of ours."""
    assert min(seconds_to_first_round(either, tmp_path / str(number)) for number in range(3)) < SECONDS


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
