"""Things added without editing the package: by call, by decorator, by file, by import path, by entry point."""

import importlib
import json
import shutil
import subprocess
import sys

import pytest
from copies import efl_command
from torch import nn

import efl
from efl.config import parse
from efl.errors import UserError
from efl.plugins import Registry, load_plugin, register, registry

pytestmark = pytest.mark.usefixtures("_forget_what_a_test_registers")


@pytest.fixture
def colours():
    return Registry("colour", lambda thing: thing if isinstance(thing, str) else None)


def test_a_name_is_found_and_a_misspelt_one_gets_a_hint(colours):
    colours.register("red", "#f00")
    assert colours.get("red") == "#f00"
    assert colours.names() == ["red"]
    with pytest.raises(UserError, match=r"^unknown colour 'rde'; did you mean 'red'\?$"):
        colours.get("rde")
    with pytest.raises(UserError, match=r"^unknown colour 'ultramarine'; choose one of: red$"):
        colours.get("ultramarine")


def test_a_name_that_is_taken_is_not_overwritten(colours):
    colours.register("red", "#f00")
    colours.register("red", colours.get("red"))
    with pytest.raises(UserError, match="there already is a colour 'red'"):
        colours.register("red", "#e00")
    with pytest.raises(UserError, match="there already is a model 'cnn'"):
        register("cnn", nn.Linear)
    assert colours.get("red") == "#f00"


def test_the_same_code_run_again_takes_its_own_place():
    def define(width):
        @register("again")
        def again(spec) -> nn.Module:
            return nn.Linear(width, spec.classes)

        return again

    define(3)
    second = define(4)
    assert registry("model").get("again") is second


@pytest.mark.parametrize("name", ["", "two words", "a:b", "a,b", "a.b"])
def test_names_that_could_not_be_asked_for_are_refused(colours, name):
    with pytest.raises(UserError, match="cannot be the name of a colour"):
        colours.register(name, "#f00")


def test_register_tells_the_kind_by_the_thing():
    class Network(nn.Module):
        pass

    def data(request) -> efl.Federation:
        """A data set."""
        raise NotImplementedError

    class Tracker:
        def start(self, setup, history): ...

        def round(self, record): ...

        def end(self, summary): ...

    register("own-network", Network)
    register("own-data", data)
    register("own-tracker")(Tracker)
    assert registry("model").get("own-network") is Network
    assert registry("dataset").get("own-data").make is data
    assert registry("dataset").get("own-data").what == "A data set."
    assert registry("tracker").get("own-tracker") is Tracker


def test_register_asks_where_it_cannot_tell():
    with pytest.raises(UserError, match="say what it is"):
        register("mystery", lambda request: None)
    register("mystery", lambda request: None, kind="dataset")
    assert "mystery" in registry("dataset")
    with pytest.raises(UserError, match="unknown kind 'colour'"):
        register("red", "#f00", kind="colour")
    with pytest.raises(UserError, match="is not a dataset"):
        register("number", 3, kind="dataset")


def test_an_import_path_is_a_name(tmp_path, monkeypatch):
    (tmp_path / "paint_shop.py").write_text("RED = '#f00'\n")
    (tmp_path / "broken_shop.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    colours = Registry("colour", lambda thing: thing if isinstance(thing, str) else None)
    assert colours.get("paint_shop:RED") == "#f00"
    assert colours.split("paint_shop:RED") == ("#f00", "")
    with pytest.raises(UserError, match="module paint_shop has no BLUE"):
        colours.get("paint_shop:BLUE")
    with pytest.raises(UserError, match=r"broken_shop:RED cannot be imported: .*no_such_module"):
        colours.get("broken_shop:RED")
    with pytest.raises(UserError, match="unknown colour 'no_such_shop:RED'"):
        colours.get("no_such_shop:RED")
    with pytest.raises(UserError, match="sys:path is not a colour"):
        colours.get("sys:path")


def test_what_follows_a_known_name_is_left_to_the_caller(colours):
    colours.register("red", "#f00")
    assert colours.split("red:dark") == ("#f00", "dark")
    assert colours.split("red") == ("#f00", "")


def test_entry_points_of_installed_packages(tmp_path, monkeypatch):
    (tmp_path / "paints.py").write_text("BLUE = '#00f'\n")
    folder = tmp_path / "paints-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: paints\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[efl.colours]\nblue = paints:BLUE\ngreen = paints:GREEN\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    colours = Registry("colour", lambda thing: thing if isinstance(thing, str) else None)
    assert colours.names() == ["blue", "green"]
    assert "paints" not in sys.modules
    assert colours.get("blue") == "#00f"
    with pytest.raises(UserError, match=r"colour 'green' \(paints:GREEN\) cannot be loaded: AttributeError"):
        colours.get("green")


def test_a_plugin_file_runs_once_per_process(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from pathlib import Path\nlog = Path(__file__).with_suffix('.log')\nlog.open('a').write('ran ')\n")
    assert load_plugin(file) == file
    load_plugin(str(file))
    assert (tmp_path / "mine.log").read_text() == "ran "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"^plugin .*broken\.py: no such file$"),
        ("x = 1\nx = unknown\n", r"^plugin .*broken\.py, line 2: NameError: name 'unknown' is not defined$"),
        ("def (:\n", r"^plugin .*broken\.py, line 1: SyntaxError: .*$"),
        ("import no_such_module\n", r"^plugin .*, line 1: ModuleNotFoundError: .*$"),
        ("raise SystemExit(3)\n", r"^plugin .*, line 1: SystemExit: 3$"),
        ("import efl\nefl.register('cnn', print, kind='model')\n", r"^plugin .*, line 2: there already is .*$"),
    ],
)
def test_a_plugin_file_that_does_not_run_is_one_line(tmp_path, text, message):
    if text is not None:
        (tmp_path / "broken.py").write_text(text)
    with pytest.raises(UserError, match=message) as problem:
        load_plugin(tmp_path / "broken.py")
    assert "\n" not in str(problem.value)
    assert not [name for name in sys.modules if name.startswith("efl_plugin_") and name.endswith("_broken")]


def test_a_plugin_must_be_a_python_file(tmp_path):
    (tmp_path / "mine.txt").write_text("x = 1\n")
    with pytest.raises(UserError, match="not a Python file"):
        load_plugin(tmp_path / "mine.txt")


NEWCOMER = """
import torch
from torch import nn

import efl


@efl.register("blobs")
def blobs(request) -> efl.Federation:
    "Two clouds of points."
    generator = torch.Generator().manual_seed(request.seed)
    y = torch.arange(40 * request.clients) % 2
    x = torch.randn(len(y), 6, generator=generator) + 2.0 * y[:, None]
    return efl.Federation.from_tensors(x, y, **request.dealing)


@efl.register("narrow")
class Narrow(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, spec.classes))

    def forward(self, x):
        return self.layers(x)


@efl.register("gentle")
class Gentle(efl.FedAvg):
    "FedAvg whose clients take smaller steps and count alike."

    brake: float = 0.5

    @property
    def uses_incomplete(self):
        return True

    def local_step(self, work):
        return efl.Step(keep=torch.full_like(work.start, self.brake), shift=work.start * (1 - self.brake))

    def weights(self, updates, settings):
        return [1 / len(updates)] * len(updates)


@efl.register("soften")
class Soften(efl.Transform):
    "Shrinks every update, and counts the rounds on the server."

    factor: float = 1.0

    def init(self, w):
        return {"softened": torch.zeros(1)}

    def on_client(self, delta, work):
        return delta * self.factor

    def on_server(self, delta, updates, server, settings):
        return delta, server.having(softened=server.tensors["softened"] + 1)


@efl.register("log")
class Log:
    def __init__(self, directory):
        self.path = directory / "log.txt"

    def start(self, setup, history):
        self.path.write_text("start\\n")

    def round(self, record):
        self.path.open("a").write(f"{record['round']}\\n")

    def end(self, summary):
        self.path.open("a").write("end\\n")
"""
TRAINING = {"rounds": 3, "cohort": 4, "local_steps": 4}


@pytest.fixture
def plugin(tmp_path):
    file = tmp_path / "newcomer.py"
    file.write_text(NEWCOMER)
    return file


def summary_of(directory):
    return json.loads((directory / "summary.json").read_text())


EXPERIMENT = """
federation = {dataset = "blobs", clients = 8}
model = {name = "narrow"}
algorithm = {name = "gentle", brake = 0.7}
transform = [{name = "soften", factor = 0.5}]
training = {rounds = 3, cohort = 4, local_steps = 4}
fleet = {stragglers = 0.5, inactive = 0.1}
track = {trackers = ["log"]}
"""


def test_a_file_outside_the_package_is_run_by_the_command_and_by_train(plugin, tmp_path):
    """A newcomer's: an algorithm, a model, a data set, a transformation and a tracker, in one file."""
    (tmp_path / "option.toml").write_text(EXPERIMENT)
    (tmp_path / "key.toml").write_text('plugins = ["newcomer.py"]\n' + EXPERIMENT)
    efl_command("run", tmp_path / "option.toml", "--plugin", plugin, "--out", tmp_path / "option", "-q")
    efl_command("run", tmp_path / "key.toml", "--out", tmp_path / "key", "-q")
    load_plugin(plugin)
    gentle, soften = registry("algorithm").get("gentle"), registry("transform").get("soften")
    trained = efl.train(
        efl.load("blobs", clients=8),
        "narrow",
        efl.chain(gentle(brake=0.7), soften(factor=0.5)),
        efl.Fleet(stragglers=0.5, inactive=0.1),
        **TRAINING,
    )
    assert trained.summary["algorithm"] == "gentle"
    digests = [summary_of(tmp_path / name)["model_sha256"] for name in ("option", "key")]
    assert digests == [trained.summary["model_sha256"]] * 2
    assert (tmp_path / "option/log.txt").read_text().split() == ["start", "0", "1", "2", "end"]
    plain = efl.train("blobs", "narrow", "gentle", plugins=[plugin], **TRAINING)
    assert (plain.summary["dataset"], plain.summary["clients"]) == ("blobs", 50)


def test_a_run_that_was_stopped_finds_its_plugin_again(plugin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    efl_command("run", "mine.toml", "--plugin", "newcomer.py", "--out", tmp_path / "a", "-q")
    digest = summary_of(tmp_path / "a")["model_sha256"]
    shutil.rmtree(tmp_path / "a/checkpoint")
    (tmp_path / "a/checkpoint").mkdir()
    (tmp_path / "a/summary.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    efl_command("resume", tmp_path / "a", "-q")
    assert summary_of(tmp_path / "a")["model_sha256"] == digest
    plugin.rename(tmp_path / "moved.py")
    (tmp_path / "a/summary.json").unlink()
    efl_command("resume", tmp_path / "a", "--plugin", tmp_path / "moved.py", "-q")
    assert summary_of(tmp_path / "a")["model_sha256"] == digest


def test_a_comparison_in_several_processes_sees_the_plugin(plugin, tmp_path):
    keys = ["--set=federation.dataset=blobs", "--set=federation.clients=8", "--set=training.rounds=2"]
    keys += ["--set=model.name=narrow", "--set=training.cohort=4", "--algorithms=gentle,fedavg", "--workers=2"]
    command = [sys.executable, "-m", "efl", "compare", "--plugin", plugin, *keys, "--out", tmp_path / "cmp", "-q"]
    assert "fedavg" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert summary_of(tmp_path / "cmp/gentle-seed0")["dataset"] == "blobs"


def test_names_at_an_import_path(tmp_path, monkeypatch):
    (tmp_path / "newcomer_module.py").write_text(NEWCOMER.replace("@efl.register", "# ").replace('"""', ""))
    monkeypatch.syspath_prepend(tmp_path)
    experiment = parse(
        {
            "federation": {"dataset": "newcomer_module:blobs", "clients": 8},
            "model": {"name": "newcomer_module:Narrow"},
            "algorithm": {"name": "newcomer_module:Gentle", "brake": 0.7},
            "transform": [{"name": "newcomer_module:Soften", "factor": 0.5}],
            "training": TRAINING,
        }
    )
    summary = efl.run(experiment, tmp_path / "run").summary
    assert (summary["dataset"], summary["model"]) == ("newcomer_module:blobs", "newcomer_module:Narrow")
    assert summary["algorithm"] == "newcomer_module:Gentle"
    (tmp_path / "run/summary.json").unlink()
    assert efl.resume(tmp_path / "run").summary["model_sha256"] == summary["model_sha256"]


def test_threads_that_come_first_wait_until_built_in_things_are_there():
    script = """
import threading, efl
from efl.plugins import registry
found = []
ask = lambda: found.append(registry("dataset").names())
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8 and all("digits" in names for names in found), found
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_process_forked_during_a_discovery_does_not_wait_for_it(colours):
    import multiprocessing
    import threading

    entered, leave = threading.Event(), threading.Event()

    def hold():
        with Registry._discovering:
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(30)
    child = multiprocessing.get_context("fork").Process(target=colours.discover)
    child.start()
    child.join(20)
    code = child.exitcode
    leave.set()
    thread.join()
    if code is None:
        child.kill()
    assert code == 0
