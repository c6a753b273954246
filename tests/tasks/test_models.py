"""Models that people bring, each as its owner would write it."""

import pytest
import torch
from torch import nn

import efl

IRREGULAR = efl.Fleet(stragglers=0.3, lost=0.1)


def test_batchnorm_dropout_embedding_tied_and_frozen(tmp_path):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 16)
            self.features = nn.Linear(16, 16).requires_grad_(False)
            self.norm, self.dropout = nn.BatchNorm1d(16), nn.Dropout(0.1)
            self.out = nn.Linear(16, 20, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, x):
            return self.out(self.dropout(self.norm(self.features(self.embedding(x).mean(1)))))

    x = torch.randint(0, 20, (600, 4))
    words = efl.Federation.from_tensors(x, x[:, 0], clients=6, partition="iid")
    model = Words()
    run = efl.train(words, model, "efl", IRREGULAR, rounds=10, cohort=4, learning_rate=0.5, out=tmp_path / "run")
    assert run.summary["parameters"] == 20 * 16 + 2 * 16
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]
    assert run.model.out.weight is run.model.embedding.weight
    assert torch.equal(run.model.features.weight, model.features.weight)
    again = efl.resume(tmp_path / "run", federation=words, model=model, fleet=IRREGULAR)
    assert again.summary["model_sha256"] == run.summary["model_sha256"]


@pytest.mark.parametrize("algorithm", ["fedavg", "efl"])
def test_lora(algorithm):
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["1", "3"]))
    digits = efl.load("digits", clients=10, partition="iid")
    result = efl.train(digits, model, algorithm, IRREGULAR, rounds=8, cohort=5, local_steps=10)
    adapters = 2 * (64 + 256) + 2 * (256 + 10)
    assert result.summary["parameters"] == adapters
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    uploads = sum(len(record["aggregated"]) + record["dropped"] + record["partial"] for record in result.history)
    assert result.summary["bytes_up"] < uploads * (4 * adapters + 100)  # the base would be 76 KB each time
    assert torch.equal(result.model.base_model.model[1].base_layer.weight, base[1].base_layer.weight)


def test_a_transformer_with_lora():
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")

    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=12, num_labels=2, **size)
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = peft.get_peft_model(transformers.BertForSequenceClassification(config), lora)
    x = torch.randint(0, 30, (240, 8))
    texts = efl.Federation.from_tensors(x, (x < 15).sum(1).gt(4).long(), clients=4, partition="iid")
    result = efl.train(texts, model, efl.EFL(), IRREGULAR, rounds=3, cohort=4, local_steps=5)
    adapters, classifier = 2 * 2 * (16 + 16), 16 * 2 + 2
    assert result.summary["parameters"] == adapters + classifier
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert result.summary["bytes_up"] < whole  # of all twelve uploads


def test_personal_layers():
    """Every client numbers the classes in its own way: only a head of one's own can be right."""
    x = torch.randn(1200, 8)
    y = (x @ torch.randn(8, 3)).argmax(1)
    clients = torch.arange(1200) % 6
    own = efl.Federation.from_tensors(x, (y + clients) % 3, owners=clients)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    settings = {"fleet": IRREGULAR, "rounds": 12, "cohort": 6, "local_steps": 10, "learning_rate": 0.3}
    common = efl.train(own, model, "fedavg", **settings)
    assert common.summary["final_mean_accuracy"] < 0.5
    for algorithm in ("fedper", "fedrep"):
        result = efl.train(own, model, algorithm, **settings)
        assert result.summary["final_mean_accuracy"] > 0.8
    result = efl.train(own, model, efl.EFL(), personal=["2"], **settings)
    assert result.summary["final_mean_accuracy"] > 0.8
    assert result.summary["parameters"] == 8 * 32 + 32


def test_fedbn():
    """Every client measures in units of its own: BatchNorm of one's own takes them out."""
    x = torch.randn(1200, 8)
    y = (x @ torch.randn(8, 3)).argmax(1)
    clients = torch.arange(1200) % 6
    units = 4.0 ** (clients - 3)[:, None] * x + 10.0 * (clients - 3)[:, None]
    measured = efl.Federation.from_tensors(units, y, owners=clients)
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    settings = {"fleet": IRREGULAR, "rounds": 12, "cohort": 6, "local_steps": 10}
    common = efl.train(measured, model, "fedavg", **settings)
    assert common.summary["final_mean_accuracy"] < 0.6
    for algorithm, personal in (("fedbn", []), ("efl", ["BatchNorm*"])):
        result = efl.train(measured, model, algorithm, personal=personal, **settings)
        assert result.summary["final_mean_accuracy"] > 0.8
        assert "state" not in result.summary["bytes"]["up"]  # no statistics travel


def test_ditto():
    digits = efl.load("digits", clients=10, partition="classes:2")
    settings = {"rounds": 20, "cohort": 5, "evaluate_personalised_every": 20}
    result = efl.train(digits, "mlp", efl.Ditto(proximity=0.5), efl.Fleet(stragglers=0.3), **settings)
    assert result.summary["bmta_local"] > 0.9
    assert result.summary["bmta_local"] > result.summary["bmta_global"]
    fedavg = efl.train(digits, "mlp", "fedavg", efl.Fleet(stragglers=0.3), **settings)
    assert result.summary["model_sha256"] != fedavg.summary["model_sha256"]  # computed another way …
    assert result.summary["bytes"] == fedavg.summary["bytes"]  # … and nothing more is sent


def test_feddyn():
    digits = efl.load("digits", clients=10, partition="classes:2")
    settings = {"rounds": 30, "cohort": 5, "evaluate_personalised_every": "never"}
    dyn, fedavg = (
        efl.train(digits, "mlp", algorithm, efl.Fleet(stragglers=0.3), **settings)
        for algorithm in (efl.FedDyn(), efl.FedAvg())
    )
    assert dyn.summary["bmta_global"] > fedavg.summary["bmta_global"]
    assert dyn.summary["bytes"] == fedavg.summary["bytes"]
