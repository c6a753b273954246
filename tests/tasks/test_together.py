"""Tasks, data and callbacks of one's own, together."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import efl


def houses(count=40, seed=0):
    """Prices of houses in five towns."""
    generator = torch.Generator().manual_seed(seed)
    slope = torch.tensor([1.0, -2.0, 0.5, 3.0])
    features = [torch.randn(count, 4, generator=generator) for _ in range(5)]
    return [TensorDataset(x, x @ slope + torch.randn(count, generator=generator)) for x in features]


def test_lazy_regression_stops_at_its_own_figure_of_merit(tmp_path):
    federation = efl.Federation.from_datasets(houses(), test=houses(seed=1), lazy=True)
    stop, best, model = efl.EarlyStopping(patience=3), efl.BestCheckpoint(), nn.Linear(4, 1)
    settings = {"rounds": 200, "cohort": 3, "evaluate_every": 1, "schedule": "constant"}
    result = efl.train(federation, model, "fedavg", out=tmp_path / "run", callbacks=[stop, best], **settings)
    assert result.summary["stopped"] == "EarlyStopping"
    assert result.summary["bmta_global"] == min(record["mse"] for record in result.history) == -stop.best
    found = efl.load_model(tmp_path / "run" / "best.safetensors", model)
    found.requires_grad_(False)
    errors = [float(((found(x).squeeze(1) - y) ** 2).mean()) for x, y in (test.tensors for test in houses(seed=1))]
    assert sum(errors) / 5 == pytest.approx(result.summary["bmta_global"], rel=1e-4)
    assert repr(result).startswith("Result(fedavg on custom: ")
    assert f"best mse {result.summary['bmta_global']:.4g}" in repr(result)


def test_inputs_by_name_are_augmented():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], -1))

    def noisy(batch):
        return {**batch, "left": batch["left"] + torch.randn_like(batch["left"])}

    x = {"left": torch.randn(60, 3), "right": torch.randn(60, 2)}
    federation = efl.Federation.from_tensors(x, torch.arange(60) % 2, clients=3)
    plain, augmented = (efl.train(f, Both(), rounds=2, cohort=2) for f in (federation, federation.augmented(noisy)))
    assert plain.summary["model_sha256"] != augmented.summary["model_sha256"]


def test_american_spelling_names_the_right_key():
    with pytest.raises(efl.UserError, match=r"optimizer; did you mean training.optimiser\?"):
        efl.train("digits", optimizer="adam")
