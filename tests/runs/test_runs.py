"""Whole runs on one machine."""

import pytest
import torch
from torch import nn

from efl import EFL, FedAvg, Federation, Fleet, UserError, resume, train
from efl.runs.checkpoint import list_checkpoints
from efl.runs.directory import RunDirectory
from efl.storage import read_state


def test_the_same_experiment_gives_the_same_model_twice(digits):
    first, second = (train(digits, rounds=6, seed=3) for _ in range(2))
    other = train(digits, rounds=6, seed=4)
    assert first.summary["model_sha256"] == second.summary["model_sha256"]
    assert first.summary["model_sha256"] != other.summary["model_sha256"]
    strip = [{key: value for key, value in record.items() if key != "seconds"} for record in first.history]
    assert strip == [{key: value for key, value in record.items() if key != "seconds"} for record in second.history]


def test_divergence_is_reported_and_not_averaged_away(digits):
    with pytest.warns(UserWarning, match=r"^the run diverged after \d+ rounds: .*; a smaller learning_rate may help$"):
        result = train(digits, "mlp", EFL(density_up=1.0, density_down=1.0), learning_rate=1e6, rounds=30, cohort=5)
    assert result.summary["diverged"]
    assert result.summary["rounds"] < 30
    assert result.summary["diverged_reason"]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


@pytest.mark.filterwarnings("error")  # such as NumPy's, of an overflow
def test_divergence_is_reported_without_noise(digits):
    deep = [layer for _ in range(4) for layer in (nn.Linear(100, 100), nn.ReLU())]
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), *deep, nn.Linear(100, 10))
    with pytest.warns(UserWarning, match="the run diverged") as warned:
        assert train(digits, module, EFL(), learning_rate=1.0, rounds=30, cohort=5).summary["diverged"]
    assert len(warned) == 1


def test_targets_of_a_few_hundred_are_not_divergence(tmp_path):
    """The loss of a regression is as large as its targets are; what counts is how it grows, also after a resume."""
    torch.manual_seed(0)
    x = torch.randn(160, 5)
    federation = Federation.from_tensors(x, 100 * x.sum(1, keepdim=True) + 300, clients=4)
    module = nn.Linear(5, 1)
    result = train(federation, module, "fedavg", rounds=10, cohort=4, learning_rate=0.02, out=tmp_path / "run")
    losses = [record["train_loss"] for record in result.history]
    assert losses[0] > 1e4 > losses[-1]
    newest = list_checkpoints(RunDirectory.open(tmp_path / "run").checkpoints)[-1]
    assert read_state(newest)["server"]["first_loss"] >= losses[0]
    with pytest.warns(UserWarning, match="the run diverged"):
        assert train(federation, module, "fedavg", rounds=30, cohort=4, learning_rate=2.0).summary["diverged"]


def test_training_stops_at_the_target_accuracy(digits):
    result = train(
        digits, "linear", FedAvg(), Fleet(stragglers=0, inactive=0), rounds=200, cohort=20, target_accuracy=0.8
    )
    assert result.summary["rounds"] == result.summary["rounds_to_target"] < 200
    assert result.summary["final_mean_accuracy"] >= 0.8
    assert result.summary["bmta_local"] is not None


def test_dropout_draws_from_the_clients_own_stream(digits):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
    torch.manual_seed(1)
    first = train(digits, module, rounds=3, cohort=5)
    torch.manual_seed(2)
    assert train(digits, module, rounds=3, cohort=5).summary["model_sha256"] == first.summary["model_sha256"]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(3, 10), "cannot be trained on batches of shape"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "10 classes"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(digits, module, message):
    with pytest.raises(UserError, match=message):
        train(digits, module, rounds=1)


def test_custom_module_and_tensors(tiny):
    result = train(tiny, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), "fedavg", rounds=30, cohort=6)
    assert result.summary["bmta_global"] > 0.6
    assert result.model(torch.randn(2, 4)).shape == (2, 3)


def test_resuming_with_another_model_says_so(tmp_path, digits):
    class Stop:
        def start(self, setup, history): ...

        def round(self, record):
            if record["round"] == 12:
                raise KeyboardInterrupt

        def end(self, summary): ...

    with pytest.raises(KeyboardInterrupt):
        train(digits, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), out=tmp_path / "r", cohort=3, callbacks=[Stop()])
    with pytest.raises(UserError, match="pass the model that the run was started with"):
        resume(tmp_path / "r", federation=digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 11)))
