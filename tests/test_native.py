"""The libraries in C: the best is taken, or the one that is asked for; without any, PyTorch and NumPy do it."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from fleets import IRREGULAR
from levels import LEVELS, using
from torch import nn

from efl import EFL, Federation
from efl.config import parse
from efl.federation.preprocessing import Pixels, fetched, inputs_for, source_of
from efl.native import NotCompiledError, library, loaded, loops
from efl.runs.loop import Run
from efl.runs.setup import build as build_setup
from efl.training.backends import selection
from efl.training.backends.native import CompiledChain

LIBRARIES, CODE = library.FOLDER, library.FOLDER.parent
needs_library = pytest.mark.skipif(not LEVELS, reason="elastic-fl was installed without its C code")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(autouse=True)
def _every_process_is_new(monkeypatch):
    monkeypatch.delenv(library.VARIABLE, raising=False)
    forget()
    yield
    forget()


def forget():
    library._attempt.cache_clear()
    selection._warn_not_compiled.cache_clear()


@needs_library
def test_the_best_level_is_taken_and_kept(monkeypatch):
    asked = []
    real = library.load
    monkeypatch.setattr(library, "load", lambda level: asked.append(level) or real(level))
    assert loops() is loops() is loaded()
    assert asked == LEVELS[-1:]
    for level in LEVELS:
        monkeypatch.setenv(library.VARIABLE, level)
        forget()
        loops()
    assert asked[1:] == LEVELS


@needs_library
def test_levels_are_those_of_the_processor():
    """What the library asks the processor for is what Linux lists."""
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text().splitlines() if listed.exists() else []
    if not (flags := next((set(line.split()) for line in lines if line.startswith("flags")), None)):
        pytest.skip("this system does not list what its processor has")
    needed = {"baseline": set(), "avx2": {"avx2", "fma", "bmi1", "bmi2", "popcnt"}}
    needed["avx512"] = needed["avx2"] | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    assert [level for level in library.LEVELS if needed[level] <= flags] == LEVELS


def no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "FOLDER", tmp_path)


def damaged_library(monkeypatch, tmp_path):
    (tmp_path / "loops-baseline.so").write_bytes(b"no library")
    monkeypatch.setattr(library, "FOLDER", tmp_path)


def asked_for_none(monkeypatch, tmp_path):
    monkeypatch.setenv(library.VARIABLE, "none")


def asked_for_nonsense(monkeypatch, tmp_path):
    monkeypatch.setenv(library.VARIABLE, "sse9")


def asked_for_too_much(monkeypatch, tmp_path):
    if not LEVELS:
        pytest.skip("elastic-fl was installed without its C code")
    shutil.copy(LIBRARIES / "loops-baseline.so", tmp_path)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setenv(library.VARIABLE, "avx512")


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (no_library, "elastic-fl was installed without its C code"),
        (damaged_library, "the C code cannot be loaded: "),
        (asked_for_none, "EFL_NATIVE is none"),
        (asked_for_nonsense, "EFL_NATIVE: 'sse9' is none of the levels baseline, avx2, avx512"),
        (asked_for_too_much, "EFL_NATIVE: this processor, or this installation, does not have avx512"),
    ],
)
def test_without_compiled_code_pytorch_does_it(tiny, prepare, why, tmp_path, monkeypatch, caplog):
    prepare(monkeypatch, tmp_path)
    result = run_of(tiny).execute()
    assert loaded() is None
    with pytest.raises(NotCompiledError):
        loops()
    assert result.summary["rounds"] == 3
    run_of(tiny)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"training steps are not compiled ({why}")


@needs_library
def test_with_every_level_and_without_models_agree_to_rounding(tiny):
    expected = list(run_of(tiny, compile=False).execute().model.parameters())
    for level in LEVELS:
        with using(level):
            run = run_of(tiny)
            assert run.setup.backend.name == "native"
            for ours, theirs in zip(run.execute().model.parameters(), expected, strict=True):
                assert torch.allclose(ours, theirs, atol=1e-5)


@needs_library
@pytest.mark.parametrize("mean", [0.0, 0.3])
def test_samples_have_the_same_bits_with_every_level_and_without(mean):
    """Also where the compiler could make one operation of a product and a sum."""
    chosen = torch.randint(0, 50, (4, 11))
    pixels = torch.randint(0, 256, (50, 3, 5, 7), dtype=torch.uint8)
    inputs = Pixels(mean=(mean, 0.1, 0.7), deviation=(0.3, 0.7, 0.9))
    for whole, made in ((pixels, inputs), (torch.randn(50, 13), inputs_for(torch.float32))):
        assert source_of(whole, made) is not None
        expected = made(whole[chosen]).numpy()
        for level in LEVELS:
            with using(level):
                assert fetched(whole, chosen, made).numpy().tobytes() == expected.tobytes()


@needs_library
def test_large_steps_are_left_to_pytorch(tiny):
    assert run_of(tiny).setup.backend.name == "native"
    assert run_of(tiny, hidden=2000, batch_size=4000).setup.backend.name == "eager"


@needs_compiler
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("chain.c", "target.factor * product :", "1.1f * target.factor * product :"),
        ("chain.c", "+= product * product", "+= product"),
        ("samples.c", "out[i] = from[i] * scale", "out[i] = from[i] * scale * 1.1f"),
        ("samples.c", "sample * source->channels", "(sample ? sample - 1 : 0) * source->channels"),
    ],
    ids=["gradients", "squares", "values", "samples"],
)
def test_a_compiler_that_gets_it_wrong_is_found_out(tiny, tmp_path, monkeypatch, caplog, file, right, wrong):
    """Before samples are fetched by its code for PyTorch, too."""
    for path in (*CODE.glob("*.c"), *CODE.glob("*.h")):
        code = path.read_text()
        assert right in code or path.name != file
        (tmp_path / path.name).write_text(code.replace(right, wrong) if path.name == file else code)
    made = ["-o", "loops-baseline.so", "-lm"]
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", *tmp_path.glob("*.c"), *made], cwd=tmp_path, check=True)
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    for _ in range(2):
        assert run_of(tiny).setup.backend.name == "batched"
        assert loaded() is not None
    assert "other numbers" in caplog.text


@needs_library
def test_it_is_found_out_where_pytorch_fetches_the_samples(tiny, monkeypatch, caplog):
    own = dataclasses.replace(tiny, inputs=lambda x: x.float())
    assert own.source() is None
    assert run_of(own).setup.backend.name == "native"
    real = CompiledChain.gradient

    def wrong(self, w, x, y, to, factor=1.0, *, squares=None):
        return real(self, w, x, y, to, factor * 1.1, squares=squares)

    monkeypatch.setattr(CompiledChain, "gradient", wrong)
    assert run_of(own).setup.backend.name == "batched"
    assert "other numbers" in caplog.text


def run_of(federation: Federation, hidden=20, batch_size=5, **engine):
    table = {
        "federation": {"clients": len(federation)},
        "training": {"rounds": 3, "cohort": 3, "local_steps": 4, "batch_size": batch_size},
        "engine": engine,
    }
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    return Run(build_setup(parse(table), federation, module, EFL(density_up=1.0, density_down=1.0), IRREGULAR))
