"""Tasks people bring, written as they would write them: Python around a run."""

from concurrent.futures import ThreadPoolExecutor

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import efl

QUICK = {"cohort": 5, "local_steps": 4}

ALGORITHM = """
import efl

@efl.register("half_steps")
class HalfSteps(efl.Algorithm):
    share: float = 0.5

    def weights(self, updates, settings):
        return [self.share / len(updates)] * len(updates)
"""


@pytest.mark.usefixtures("_forget_what_a_test_registers")
def test_own_algorithm_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(ALGORITHM)
    result = efl.train("digits", algorithm="half_steps", plugins=[file], rounds=5, **QUICK)
    assert result.summary["algorithm"] == "half_steps"


def held_out(federation):
    """Every client's test data."""
    return [federation.batch(torch.from_numpy(test)) for test in federation.test]


def test_early_stopping():
    stop = efl.EarlyStopping("accuracy", patience=2, min_delta=0.01)
    result = efl.train("digits", algorithm="fedavg", rounds=500, evaluate_every=2, callbacks=[stop], **QUICK)
    rounds, accuracies = len(result.history), [r["accuracy"] for r in result.history if "accuracy" in r]
    assert rounds < 500
    assert result.summary["stopped"] == "EarlyStopping"
    assert max(accuracies[-2:]) <= max(accuracies[:-2]) + 0.01


def test_own_callback():
    class Watch(efl.Callback):
        def round(self, record):
            weight = self.run.module()[1].weight  # the model as it stands
            return record["round"] == 3 and bool(weight.isfinite().all())  # True ends the run

    assert efl.train("digits", rounds=50, callbacks=[Watch()], **QUICK).summary["rounds"] == 4


def test_best_checkpoint(tmp_path):
    best, table = efl.BestCheckpoint(), efl.CSVFile()
    federation = efl.load("digits", clients=20)
    settings = {"rounds": 12, "evaluate_every": 1, "learning_rate": 0.5, "schedule": "constant"}
    result = efl.train(federation, algorithm="fedavg", out=tmp_path / "run", callbacks=[best, table], **settings)
    model = efl.load_model(tmp_path / "run" / "best.safetensors")
    accuracies = [model(x).argmax(1).eq(y).float().mean() for x, y in held_out(federation)]
    assert torch.stack(accuracies).mean().item() == pytest.approx(result.summary["bmta_global"], abs=1e-6)
    assert (tmp_path / "run" / "metrics.csv").read_text().count("\n") == 13


def test_pandas():
    table = efl.train("digits", rounds=4, evaluate_every=2, **QUICK).to_pandas()
    assert table.index.tolist() == [0, 1, 2, 3]
    assert table["accuracy"].isna().tolist() == [True, False, True, False]
    assert table["sampled"].tolist() == [5] * 4
    assert (table.filter(like="bytes.up.").sum(axis=1) == table["bytes_up"]).all()


@pytest.mark.parametrize("algorithm", ["efl", "fedavg", "apfl", "fedamp"])
def test_personalised_model_out_and_in(algorithm, tmp_path):
    federation = efl.load("digits", clients=10)
    result = efl.train(federation, algorithm=algorithm, rounds=6, evaluate_personalised_every=6, **QUICK)
    models = [result.personalised(client) for client in range(10)]
    pairs = zip(models, held_out(federation), strict=True)
    accuracies = [float(model(x).argmax(1).eq(y).float().mean()) for model, (x, y) in pairs]
    assert sum(accuracies) / 10 == pytest.approx(result.history[-1]["personalised_accuracy"], abs=1e-6)
    torch.save(models[3].state_dict(), tmp_path / "client3.pt")  # out
    model = result.personalised(5)
    model.load_state_dict(torch.load(tmp_path / "client3.pt"))  # and in
    further = efl.train(federation, model, "fedavg", rounds=1, learning_rate=1e-9).model
    assert torch.allclose(further[1].weight, models[3][1].weight, atol=1e-6)


def test_inside_a_notebook(tmp_path):
    code = f"""
import efl
result = efl.train("digits", rounds=30, cohort=4, progress=True, out={str(tmp_path / "run")!r}, engine={{"workers": 2}})
result
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    bar, shown = notebook.cells[0].outputs
    assert "30/30" in bar["data"]["text/html"]
    assert shown["data"]["text/plain"].startswith("Result(efl on digits: 30 rounds")


def test_in_a_thread():
    def trained(seed):
        return efl.train("digits", "cnn", rounds=5, seed=seed, **QUICK).summary["model_sha256"]

    with ThreadPoolExecutor(3) as threads:
        beside = list(threads.map(trained, range(3)))
    assert beside == [trained(seed) for seed in range(3)]
