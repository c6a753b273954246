"""A search keeps to its budget, begins with the default, goes on where it was stopped, and leaves files that run."""

import json
import sys

import pytest

pytest.importorskip("optuna")

from stopping import StopAt

from efl.cli import main
from efl.config import load_experiment, parse
from efl.errors import UserError
from efl.tune import trials as trials_module
from efl.tune.outcome import write
from efl.tune.search import FIRST_SEED, Effort, Search
from efl.tune.storage import Journal
from efl.tune.trials import Outcome, Trial, Watcher
from efl.tune.tuner import searches, tune

TINY = {
    "federation": {"dataset": "digits", "clients": 6, "partition": "iid"},
    "model": {"name": "linear"},
    "training": {"rounds": 4, "cohort": 3, "local_steps": 2, "seed": 5},
    "track": {"checkpoint_every": 1},
}
EFFORT = Effort(trials=4, finalists=2, confirmations=2)


def started(out, algorithms=("fedavg",), effort=EFFORT, overrides=(), **tables):
    return searches(algorithms, parse({**TINY, **tables}), overrides, effort, out)


@pytest.fixture
def made(monkeypatch):
    """Every run that is started, and how many rounds it ran."""
    runs = []

    class Counted(trials_module.Run):
        def execute(self):
            rounds = self.coordinator.run_round
            runs.append([self.directory.path.name, 0])

            def counted(round_):
                runs[-1][1] += 1
                return rounds(round_)

            self.coordinator.run_round = counted
            return super().execute()

    monkeypatch.setattr(trials_module, "Run", Counted)
    return runs


def story(search):
    """All that a search depends on."""
    tried = [(one.number, dict(one.values), one.value, one.rounds, dict(one.curve)) for one in search.tried()]
    return tried, search.found()


def test_the_default_comes_first_and_all_algorithms_have_the_same_budget(tmp_path, made):
    found = started(tmp_path, ["fedavg", "fedprox"])
    seen = []
    tune(found, 1, lambda search, trial, outcome: seen.append(trial))
    for search in found:
        tried = search.tried()
        assert tried[0].values == {}
        assert sum(one.rounds for one in tried) <= 16  # 4 runs of 4 rounds
        assert sum(one.rounds for one in tried) > 16 - 4  # and there was no room for another
        assert search.rounds_left() == 0
    first = [trial for trial in seen if trial.number == 0 and trial.seed is None]
    assert [trial.experiment.training.learning_rate for trial in first] == [0.1, 0.1]
    assert {trial.experiment.federation.evaluate_on for trial in seen} == {"validation"}
    assert {trial.experiment.training.seed for trial in seen} == {5 + FIRST_SEED + extra for extra in range(3)}
    assert not list((tmp_path / "runs").iterdir())


def test_the_choice_is_never_worse_than_the_default_where_it_was_decided(tmp_path):
    (search,) = started(tmp_path)
    tune([search], 1)
    found = search.found()
    assert len(found.default) == len(found.best) == 2
    assert sum(found.best) >= sum(found.default)
    assert found.experiment.training.rounds == 4
    assert found.experiment.federation.evaluate_on == "test"
    assert found.experiment.training.seed == 5


def test_what_was_killed_goes_on_and_ends_as_if_it_had_not_been(tmp_path, made, monkeypatch):
    (whole,) = started(tmp_path / "whole")
    tune([whole], 1)
    rounds = sum(count for _, count in made)
    made.clear()
    stops = iter([0, 2, None, 1, 3])  # after which round a run is stopped; None: not at all

    class Killed(trials_module.Run):
        def __post_init__(self):
            super().__post_init__()
            if (after := next(stops, None)) is not None:
                self.observers = [*self.observers, StopAt(after)]

    monkeypatch.setattr(trials_module, "Run", Killed)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            tune(started(tmp_path / "killed"), 1)
    (search,) = started(tmp_path / "killed")
    tune([search], 1)
    assert story(search) == story(whole)
    assert sum(count for _, count in made) == rounds  # none was run twice


def test_what_is_finished_is_not_made_again_and_more_can_be_added(tmp_path, made):
    tune(started(tmp_path), 1)
    first = len(made)
    tune(started(tmp_path), 1)
    assert len(made) == first
    (larger,) = started(tmp_path, effort=Effort(trials=6, finalists=2, confirmations=2))
    assert larger.rounds_left() > 0
    tune([larger], 1)
    assert len(larger.tried()) > len({name for name, _ in made[:first] if "seed" not in name})
    tune(started(tmp_path, ["fedavg", "fedprox"]), 1)
    assert {name.split("-")[0] for name, _ in made[-3:]} == {"fedprox"}


def test_processes_find_the_same(tmp_path):
    alone, together = started(tmp_path / "1", ["fedavg", "efl"]), started(tmp_path / "2", ["fedavg", "efl"])
    tune(alone, 1)
    tune(together, 2)
    assert [story(search) for search in alone] == [story(search) for search in together]


def test_a_trial_worse_than_most_is_pruned_and_the_first_ones_are_not(tmp_path):
    journal = Journal(tmp_path / "a.journal", warm_up=2)
    study = journal.study()

    def reported(value, step):
        number = study.ask({}).number
        watcher = Watcher(Trial("a", number, None, tmp_path, journal, "accuracy"))
        watcher.start(None, [])
        pruned = watcher.round({"round": step - 1, "accuracy": value})
        study.tell(number, value)
        return pruned

    assert [reported(value, 4) for value in (0.9, 0.1, 0.8, 0.85)] == [False] * 4
    assert reported(0.2, 4)
    assert not reported(0.95, 4)
    assert not reported(0.1, 2)  # too early to tell
    assert Watcher.round(WITHOUT, {"round": 0}) is False


WITHOUT = Watcher(Trial("a", 0, None, None, None, "accuracy"))


def test_a_trial_that_diverges_is_no_candidate(tmp_path):
    (search,) = started(tmp_path, effort=Effort(trials=2, confirmations=0))
    for value, rounds in ((0.5, 4), (None, 1)):
        trial = search.next()
        trial.directory.mkdir(parents=True)
        search.done(trial, Outcome(value, rounds, pruned=False))
    assert [one.value for one in search.tried()] == [0.5, None]
    assert search.finalists() == [0]
    assert search.found().best == [0.5]


def test_lower_is_better_for_a_loss(tmp_path):
    training = {**TINY["training"], "metrics": ["loss", "accuracy"]}
    (search,) = started(tmp_path, effort=Effort(trials=3, confirmations=0), training=training)
    assert search.merit == "loss"
    for value in (0.5, 0.2, 0.9):
        trial = search.next()
        trial.directory.mkdir(parents=True)
        search.done(trial, Outcome(value, 4, pruned=False))
    assert search.found().best == [0.2]
    assert search.found().values == search.tried()[1].values


def test_algorithms_with_models_of_their_own_are_judged_by_those(tmp_path, made):
    (search,) = started(tmp_path, ["apfl"], Effort(trials=1, confirmations=0))
    tune([search], 1)
    assert search.merit == "personalised_accuracy"
    assert search.tried()[0].curve[4] == search.tried()[0].value


def test_a_default_outside_of_the_space_is_tried_nevertheless(tmp_path):
    (search,) = started(tmp_path, overrides=["training.learning_rate=0.3:0.9"], effort=Effort(2, confirmations=0))
    assert search.next().experiment.training.learning_rate == 0.1
    tune([search], 1)
    assert 0.3 <= search.tried()[1].values["training.learning_rate"] <= 0.9


def test_another_experiment_in_the_same_place_is_one_line(tmp_path):
    started(tmp_path)
    with pytest.raises(UserError, match="has a search for fedavg in another experiment; choose another --out"):
        started(tmp_path, training={**TINY["training"], "cohort": 2})
    with pytest.raises(UserError, match="another experiment"):
        started(tmp_path, overrides=["training.learning_rate=0.1:1"])


def test_a_damaged_journal_is_one_line(tmp_path):
    started(tmp_path)
    path = tmp_path / "search" / "fedavg.journal"
    path.write_text(path.read_text() + "{not json}\n" + path.read_text())
    with pytest.raises(UserError, match=r"fedavg.journal: damaged .*; delete it to search anew"):
        started(tmp_path)


def test_without_optuna_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"needs Optuna: pip install 'elastic-fl\[tune\]'"):
        started(tmp_path)


def test_the_files_it_leaves(tmp_path):
    found = started(tmp_path, ["fedavg", "efl"], Effort(trials=3, finalists=1, confirmations=1))
    tune(found, 1)
    table = write(found, tmp_path)
    assert (tmp_path / "table.md").read_text() == table
    assert [row.split(" | ")[0] for row in table.splitlines()[2:]] == ["| fedavg", "| efl"]
    assert (tmp_path / "search.png").stat().st_size > 10_000
    for search in found:
        best = load_experiment(tmp_path / "best" / f"{search.label}.toml")
        assert best == search.found().experiment
        assert best.algorithm_name == search.label


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["--set=training.rounds=2", "--set=training.cohort=3", "--set=federation.clients=6", "--trials=2"]
    command = ["efl", "tune", "--algorithms=fedavg", *small, "--confirmations=0", "--workers=1", "--out=t"]

    def call(*more):
        monkeypatch.setattr("sys.argv", [*command, *more])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, *capsys.readouterr()

    code, out, _ = call()
    assert code == 0
    assert out.count("fedavg, trial") == 2
    assert "| fedavg |" in out
    code, out, _ = call()
    assert code == 0
    assert "fedavg, trial" not in out
    code, _, err = call("--space=training.learning_rate=2:1")
    assert code == 2
    assert err.strip().count("\n") == 0
    assert "a range goes up" in err


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    class Stopped(trials_module.Run):
        def execute(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(trials_module, "Run", Stopped)
    monkeypatch.setattr("sys.argv", ["efl", "tune", "--algorithms=fedavg", "--trials=2", "--workers=1", "--out=t"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert "Go on with the same command and --out t" in capsys.readouterr().out


def test_the_journal_is_json_lines(tmp_path):
    (search,) = started(tmp_path)
    assert isinstance(search, Search)
    assert all(json.loads(line) for line in search.journal.path.read_text().splitlines())
