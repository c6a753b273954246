import pytest
from hypothesis import given
from hypothesis import strategies as st

from efl import Experiment, UserError, load_experiment
from efl.config import parse
from efl.settings import unknown_key


def test_the_default_experiment_is_the_documented_one():
    experiment = Experiment()
    assert (experiment.federation.dataset, experiment.federation.clients) == ("digits", 50)
    assert (experiment.training.rounds, experiment.training.cohort, experiment.training.local_steps) == (100, 10, 20)
    assert experiment.algorithm_name == "efl"


@given(
    rounds=st.integers(1, 10**6),
    rate=st.floats(1e-6, 10),
    target=st.one_of(st.none(), st.floats(0, 1)),
    seed=st.integers(0, 2**31),
)
def test_an_experiment_survives_its_file(rounds, rate, target, seed):
    import tomllib

    training = {"rounds": rounds, "learning_rate": rate, "seed": seed} | (
        {} if target is None else {"target_accuracy": target}
    )
    experiment = parse({"training": training, "algorithm": {"name": "efl", "weight_cap": float("inf")}})
    assert parse(tomllib.loads(experiment.to_toml())) == experiment


def test_overrides_are_typed_like_toml_and_bare_words_are_strings():
    experiment = load_experiment(
        None, ["training.rounds=7", "federation.dataset=synthetic:1,1", "fleet.inactive=[0.1, 0.2]", 'model.name="mlp"']
    )
    assert experiment.training.rounds == 7
    assert experiment.federation.dataset == "synthetic:1,1"
    assert experiment.fleet["inactive"] == [0.1, 0.2]
    assert experiment.model.name == "mlp"


def test_a_preset_may_be_a_key_or_part_of_the_name():
    for table in ({"name": "efl", "preset": "paper"}, {"name": "efl:paper"}):
        assert parse({"algorithm": table}).algorithm_name == "efl:paper"


def test_the_first_mistake_is_named():
    with pytest.raises(UserError, match=r"training.batch_size"):
        parse({"training": {"batch_size": 0}})


def test_transformations_are_tables_in_order_and_survive_the_file():
    import tomllib

    text = '[[transform]]\nname = "clip"\nnorm = 1.0\n[[transform]]\nname = "median"\n'
    experiment = parse(tomllib.loads(text))
    assert [(one.name, one.settings) for one in experiment.transform] == [("clip", {"norm": 1.0}), ("median", {})]
    assert parse(tomllib.loads(experiment.to_toml())) == experiment


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"plugins": "mine.py"}, "plugins: write a list of Python files"),
        ({"transform": {"name": "clip"}}, r"transform: write \[\[transform\]\]"),
        ({"transform": [{"norm": 1.0}]}, r"transform: write \[\[transform\]\]"),
    ],
)
def test_lists_that_are_none_are_one_line(table, message):
    with pytest.raises(UserError, match=message):
        parse(table)


def test_a_list_is_not_changed_by_set(tmp_path):
    with pytest.raises(UserError, match="--set cannot change transform"):
        load_experiment(None, ["transform.name=clip"])


def test_plugins_of_a_file_are_beside_it_those_of_the_command_are_here(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/exp.toml").write_text('plugins = ["one.py"]\n')
    monkeypatch.chdir(tmp_path)
    experiment = load_experiment("there/exp.toml", plugins=["two.py", "there/one.py"])
    assert experiment.plugins == (str(tmp_path / "there/one.py"), str(tmp_path / "two.py"))


def test_keys_of_the_first_edition_are_still_read(tmp_path):
    old, new = (parse({"training": {key: 7}}) for key in ("evaluate_own_every", "evaluate_personalised_every"))
    assert old == new
    assert old.training.evaluate_personalised_every == 7
    assert Experiment().with_values(training={"evaluate_own_every": 7}) == new
    (tmp_path / "old.toml").write_text("[training]\nevaluate_own_every = 3\n")
    assert load_experiment(tmp_path / "old.toml", ["training.evaluate_personalised_every=7"]) == new
    with pytest.raises(UserError, match=r"training\.evaluate_own_every is now called"):
        parse({"training": {"evaluate_own_every": 1, "evaluate_personalised_every": 2}})


@pytest.mark.parametrize(
    ("section", "key", "line"),
    [
        ("training", "lr", "unknown key training.lr; did you mean training.learning_rate?"),
        (
            "training",
            "epochs",
            "unknown key training.epochs; did you mean training.local_steps? (work is counted in SGD ",
        ),
        ("training", "num_rounds", "unknown key training.num_rounds; did you mean training.rounds?"),
        ("training", "clients_per_round", "unknown key training.clients_per_round; did you mean training.cohort?"),
        ("training", "clients", "unknown key training.clients; did you mean federation.clients?"),
        ("training", "workers", "unknown key training.workers; did you mean engine.workers?"),
        ("training", "observers", "unknown key training.observers; pass callbacks=[…] to efl.train"),
        (
            "training",
            "epoch",
            "unknown key training.epoch; did you mean training.local_steps? (work is counted in SGD ",
        ),
        (
            "training",
            "max_epochs",
            "unknown key training.max_epochs; did you mean training.rounds? (what a client does ",
        ),
        ("training", "momentum", "unknown key training.momentum; it belongs to the optimiser, such as optimiser="),
        ("training", "weight_decay", "unknown key training.weight_decay; it belongs to the optimiser, such as "),
        ("training", "stragglers", "unknown key training.stragglers; it belongs to the fleet: efl.Fleet(stragglers=…)"),
        ("training", "tint", "unknown key training.tint; known keys: training.rounds, "),
        ("federation", "num_clients", "unknown key federation.num_clients; did you mean federation.clients?"),
    ],
)
def test_a_key_of_another_library_names_the_right_one(section, key, line):
    with pytest.raises(UserError) as refused:
        parse({section: {key: 1}})
    assert str(refused.value).startswith(line)


def test_american_spelling_names_the_right_key():
    assert unknown_key("training.optimizer", ["training.rounds", "training.optimiser"]).endswith(
        "did you mean training.optimiser?"
    )


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("lr=0.1", "write --set training.learning_rate=0.1"),
        ("optimizer=adam", "write --set training.optimiser=adam"),
        ("rounds = 5", "write --set training.rounds=5"),
        ("nonsense=5", "write section.key=value"),
        ("rounds", "write section.key=value"),
    ],
)
def test_a_key_without_its_section_names_it(given, remedy):
    with pytest.raises(UserError) as refused:
        load_experiment(None, [given])
    assert str(refused.value).startswith(f"--set {given}: ")
    assert remedy in str(refused.value)


def test_the_learning_rate_of_an_optimiser_is_that_of_the_round():
    from efl import train

    with pytest.raises(UserError, match=r"lr; the learning rate is training\.learning_rate, whatever the optimiser$"):
        train("digits", optimiser={"name": "adam", "lr": 0.1}, rounds=1)


def test_one_pattern_need_not_be_a_list():
    assert parse({"model": {"trainable": "head", "personal": ["a", "b"]}}).model.trainable == ("head",)
    assert parse({"model": {"personal": ["a", "b"]}}).model.personal == ("a", "b")
