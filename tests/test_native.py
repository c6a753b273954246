"""Compiling: once, kept, done without where it cannot be done."""

import dataclasses
import hashlib
import shutil

import pytest
import torch
from fleets import IRREGULAR
from torch import nn

from efl import EFL, Federation
from efl.config import parse
from efl.native import NotCompiledError, build, loaded, loops
from efl.runs.loop import Run
from efl.runs.setup import build as build_setup
from efl.training.backends import selection
from efl.training.backends.native import CompiledChain


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and every process is new."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path / "efl" / "native"
    forget()


def forget():
    build._attempt.cache_clear()
    selection._warn_not_compiled.cache_clear()


@pytest.fixture
def compiler(cache):
    """One that works, and has not been used."""
    try:
        loops()
    except NotCompiledError as problem:
        pytest.skip(str(problem))
    shutil.rmtree(cache)
    forget()


@pytest.mark.usefixtures("compiler")
def test_what_is_compiled_is_kept(cache, monkeypatch):
    assert loaded() is None
    assert loops() is loops() is loaded()
    (file,) = cache.iterdir()
    monkeypatch.setenv("CC", "false")
    forget()
    assert loops()
    damaged = file.read_bytes()[:5000]
    file.unlink()  # it is in use
    file.write_bytes(damaged)
    forget()
    with pytest.raises(NotCompiledError, match="the C compiler failed"):
        loops()
    monkeypatch.delenv("CC")
    forget()
    assert loops()
    assert [path.name for path in cache.iterdir()] == [file.name]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("mode", [0o622, 0o644])
def test_what_cannot_be_trusted_or_loaded_is_compiled_again(cache, mode):
    loops()
    (file,) = cache.iterdir()
    file.unlink()
    file.write_bytes(b"no library" + hashlib.sha256(b"no library").digest())
    file.chmod(mode)
    forget()
    assert loops()


@pytest.mark.usefixtures("compiler")
def test_without_a_place_to_keep_it_it_works_as_well(tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert loops()


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("PATH", "", "there is no C compiler"),
        ("CC", "no-such-compiler", "compiling failed"),
        ("CC", "false", "the C compiler failed"),
    ],
)
def test_without_a_compiler_pytorch_does_it(tiny, variable, value, why, monkeypatch, caplog):
    if variable == "PATH":
        monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv(variable, value)
    result = run_of(tiny).execute()
    assert loaded() is None
    assert result.summary["rounds"] == 3
    run_of(tiny)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"training steps are not compiled ({why}")


@pytest.mark.usefixtures("compiler")
def test_compiled_or_not_models_agree_to_rounding(tiny):
    compiled, plain = (run_of(tiny, compile=choice).execute().model for choice in (True, False))
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.usefixtures("compiler")
def test_large_steps_are_left_to_pytorch(tiny):
    assert run_of(tiny).setup.backend.name == "native"
    assert run_of(tiny, hidden=2000, batch_size=4000).setup.backend.name == "eager"


@pytest.mark.usefixtures("compiler")
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
    """Also if its code is at hand already, so that samples would be fetched by it for PyTorch, too."""
    files = [tmp_path / path.name for path in build.FILES]
    for path, copy in zip(build.FILES, files, strict=True):
        code = path.read_text()
        assert right in code or path.name != file
        copy.write_text(code.replace(right, wrong) if path.name == file else code)
    monkeypatch.setattr(build, "FILES", tuple(files))
    for _ in range(2):
        assert run_of(tiny).setup.backend.name == "batched"
        assert loaded() is not None
    assert "other numbers" in caplog.text


@pytest.mark.usefixtures("compiler")
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
