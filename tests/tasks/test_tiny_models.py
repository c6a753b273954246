"""Models of a handful of parameters, of which every one matters."""

import torch

import efl


def test_a_regression_of_six_parameters():
    generator = torch.Generator().manual_seed(1)
    true, clients = torch.randn(5, 1, generator=generator), []
    for _ in range(20):
        x = torch.randn(40, 5, generator=generator) + 0.5 * torch.randn(1, 5, generator=generator)
        clients.append((x, x @ true + 0.1 * torch.randn(40, 1, generator=generator)))
    federation, settings = efl.Federation.from_clients(clients), {"rounds": 60, "learning_rate": 0.1, "local_steps": 10}
    ends = {
        name: efl.train(federation, torch.nn.Linear(5, 1), name, loss="mse", **settings).summary["final_mean"]
        for name in ("fedavg", "efl")
    }
    assert ends["efl"] < 1.1 * ends["fedavg"] < 0.011
