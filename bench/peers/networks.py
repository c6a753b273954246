"""The three networks in PyTorch."""

from torch import nn

LAYERS = {
    "linear": lambda: [nn.Flatten(), nn.Linear(784, 10)],
    "mlp200": lambda: [
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10),
    ],
    "cnn_large": lambda: [
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
    ],
}  # fmt: skip


def network(name: str) -> list[nn.Module]:
    """Its layers."""
    return LAYERS[name]()
