"""Tasks as a user brings them, each in a few lines; most with EFL in all its parts and irregular clients."""

import pytest
import torch
from torch import nn

import efl
from efl.runs.learning import Learning

FLEET = efl.Fleet(stragglers=0.5, inactive=0.1)


def linear_data(outputs=1, samples=400, noise=0.1):
    x = torch.randn(samples, 5)
    return x, x @ torch.randn(5, outputs) + noise * torch.randn(samples, outputs)


def test_regression():
    x, y = linear_data()
    federation = efl.Federation.from_tensors(x, y.squeeze(1), clients=8)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1))
    settings = {"rounds": 60, "cohort": 4, "learning_rate": 0.02, "evaluate_every": 20}
    result = efl.train(federation, model, "efl", FLEET, **settings)
    summary = result.summary
    assert (summary["metric"], summary["higher_is_better"]) == ("mse", False)
    assert summary["bmta_global"] == min(r["mse"] for r in result.history if "mse" in r) < 0.05
    assert summary["final_metrics"]["mae"] < 0.3
    held_out = torch.cat([torch.from_numpy(test) for test in federation.test])
    predictions = result.model(x[held_out]).squeeze(1)
    errors = (predictions - y[held_out, 0]).square()
    by_client = [part.mean() for part in errors.split([len(test) for test in federation.test])]
    assert summary["final_mean"] == pytest.approx(torch.stack(by_client).mean().item(), rel=1e-5)


def test_huber_with_several_outputs_and_a_target():
    x, y = linear_data(outputs=3)
    federation = efl.Federation.from_tensors(x, y, clients=8)
    loss = {"name": "huber", "delta": 0.5}
    settings = {"rounds": 60, "cohort": 4, "learning_rate": 0.02, "evaluate_every": 1, "target": 0.3}
    result = efl.train(federation, "mlp", loss=loss, metrics=["mae", "r2"], **settings)
    assert result.summary["rounds"] < 60
    assert result.summary["rounds_to_target"] == result.summary["rounds"]
    assert result.history[-1]["mae"] <= 0.3 < result.history[-2]["mae"]
    assert result.history[-1]["r2"] > 0.5


def test_multi_label():
    x, scores = linear_data(outputs=4)
    federation = efl.Federation.from_tensors(x, (scores > 0).float(), clients=8)
    result = efl.train(federation, nn.Linear(5, 4), "efl", FLEET, loss="bce", rounds=40, cohort=4)
    assert result.summary["metric"] == "accuracy"
    assert result.summary["bmta_global"] > 0.9
    assert result.summary["final_metrics"]["f1"] > 0.9


class Tagger(nn.Module):
    def __init__(self, tokens, tags):
        super().__init__()
        self.embedding, self.rnn, self.head = (
            nn.Embedding(tokens, 8),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, tags),
        )

    def forward(self, x):
        hidden, state = self.rnn(self.embedding(x))
        return self.head(hidden), state


def padded_tags(samples=200, longest=7):
    """Tags are tokens modulo 3; sequences have different lengths, and end in padding: token 0, tag -100."""
    tokens = torch.randint(1, 10, (samples, longest))
    beyond = torch.arange(longest) >= torch.randint(2, longest + 1, (samples, 1))
    return tokens.masked_fill(beyond, 0), (tokens % 3).masked_fill(beyond, -100)


def test_padded_sequences():
    x, y = padded_tags()
    federation = efl.Federation.from_tensors(x, y, clients=6)
    result = efl.train(
        federation, Tagger(10, 3), "efl", FLEET, rounds=30, cohort=3, learning_rate=1.0, schedule="constant"
    )
    assert result.summary["bmta_global"] > 0.95
    outputs, _ = result.model(x[federation.test[0]])
    counts = y[federation.test[0]] != -100
    right = (outputs.argmax(-1) == y[federation.test[0]]) & counts
    (last,) = [r for r in result.history if "accuracy" in r][-1:]
    assert int(right.sum()) / int(counts.sum()) == pytest.approx(1.0, abs=0.1)
    assert last["accuracy"] == result.summary["final_mean_accuracy"]


def test_own_loss_and_metric():
    x, y = linear_data()

    def quantile_loss(outputs, targets):
        error = targets - outputs["median"].squeeze(-1)
        return torch.maximum(0.5 * error, -0.5 * error).mean()

    def within(outputs, targets):
        return ((outputs["median"].squeeze(-1) - targets).abs() < 0.5).float()

    class Median(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, x):
            return {"median": self.layer(x)}

    federation = efl.Federation.from_tensors(x, y.squeeze(1), clients=8)
    settings = {"rounds": 60, "cohort": 4, "learning_rate": 0.1}
    result = efl.train(federation, Median(), "efl", FLEET, loss=quantile_loss, metrics={"within": within}, **settings)
    assert result.summary["metric"] == "within"
    assert result.summary["bmta_global"] > 0.9


def test_own_loss_is_needed_to_resume(tmp_path):
    x, y = linear_data()
    federation, model = efl.Federation.from_tensors(x, y.squeeze(1), clients=8), nn.Linear(5, 1)

    def loss(outputs, targets):
        return (outputs.squeeze(-1) - targets).pow(4).mean()

    given = {"loss": loss, "optimiser": torch.optim.Adagrad, "metrics": {"fourth": loss}}
    whole = efl.train(federation, model, rounds=4, cohort=4, out=tmp_path / "run", **given)
    with pytest.raises(efl.UserError, match=r"loss of your own; pass them: efl.resume\(DIR, loss=…\)"):
        efl.resume(tmp_path / "run", federation=federation, model=model)
    again = efl.resume(tmp_path / "run", federation=federation, model=model, **given)
    assert again.summary["model_sha256"] == whole.summary["model_sha256"]


def test_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics")
    accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=10, average="micro")
    result = efl.train("digits", rounds=4, metrics={"theirs": accuracy, "accuracy": "accuracy"}, fleet=FLEET)
    assert result.summary["metric"] == "theirs"
    assert result.summary["final_metrics"]["accuracy"] == pytest.approx(result.summary["final_mean"], abs=1e-6)
    assert result.summary["final_mean_accuracy"] is None


def test_adamw_with_clipping_and_warm_up():
    settings = {"rounds": 20, "learning_rate": 0.01, "schedule": "cosine", "warmup": 5}
    optimiser = {"name": "adamw", "weight_decay": 0.01, "clip": 1.0}
    result = efl.train("digits", "mlp", "efl", FLEET, optimiser=optimiser, **settings)
    assert result.summary["bmta_global"] > 0.6
    assert [round(record["eta"], 5) for record in result.history[:2]] == [0.002, 0.00398]
    assert result.history[-1]["eta"] < 0.001


def test_fedadam():
    result = efl.train("digits", "mlp", "fedadam", FLEET, rounds=20, optimiser=efl.SGD(momentum=0.9))
    assert result.summary["bmta_global"] > 0.6


def test_any_optimiser_of_torch():
    settings = {"rounds": 20, "learning_rate": 0.003}
    result = efl.train("digits", "mlp", "fedavg", optimiser=torch.optim.RMSprop, **settings)
    assert result.summary["bmta_global"] > 0.7
    experiment = efl.Experiment().with_values(training=settings, algorithm={"name": "fedavg"}, engine={"workers": 2})
    two_processes = efl.run(experiment, learning=Learning(optimiser=torch.optim.RMSprop))
    assert two_processes.summary["model_sha256"] == result.summary["model_sha256"]


def test_hugging_face_from_a_config():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    tokens = (torch.randint(0, 20, (120, 1)) + torch.arange(8)) % 20  # counting upwards
    x = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    federation = efl.Federation.from_tensors(x, tokens, clients=4, classes=20)
    result = efl.train(
        federation, model, "efl", FLEET, loss="next_token", optimiser="adamw", learning_rate=0.01, rounds=12, cohort=2
    )
    assert result.summary["metric"] == "accuracy"
    assert result.summary["bmta_global"] > 0.5
    assert result.history[-1]["loss"] < 2.0
