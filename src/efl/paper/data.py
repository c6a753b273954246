"""The data sets of the paper's experiments with their networks and training, at four sizes.

``smoke`` stands in for them with what needs no files and seconds of training; ``small`` is the real data with smaller
networks where the paper's take hours, and with fewer rounds; ``medium`` trains until others' published accuracies are
in reach, hours to a day on two processors; ``full`` is the paper's setting as far as it tells it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from efl.paper.study import Setting, Tables

ScaleName = Literal["smoke", "small", "medium", "full"]
REGULAR = {"stragglers": 0.0, "inactive": 0.0}


def _tables(
    dataset: str, partition: str, model: str, clients: int = 100, *, evaluations: int = 2, **training: Any
) -> Tables:
    rounds = training["rounds"]
    evaluation = {
        "evaluate_every": max(1, rounds // 30),
        "evaluate_personalised_every": max(1, rounds // evaluations),
    }
    return {
        "federation": {"dataset": dataset, "clients": clients, "partition": partition},
        "model": {"name": model},
        "training": {"cohort": 10, "local_steps": 20, "batch_size": 20, "decay": 0.0, **evaluation, **training},
        "fleet": REGULAR,
    }


# As others train it (Caldas et al. 2018 and after): ten clients per round, each six batches of four snippets, which is
# an epoch of the usual client with its 22; 1200 rounds. η is the best of 1 and 2 for FedAvg after 60 rounds.
_SNIPPETS = {"local_steps": 6, "batch_size": 4, "learning_rate": 2.0}

DATA: Mapping[ScaleName, Mapping[str, Tables]] = {
    "smoke": {
        "mnist": _tables("digits", "classes:2", "mlp", 10, rounds=8, learning_rate=0.1, local_steps=5),
        "emnist": _tables("digits", "classes:3", "linear", 10, rounds=8, learning_rate=0.1, local_steps=5),
        "cifar100": _tables("digits", "classes:3", "cnn", 10, rounds=4, learning_rate=0.05, local_steps=3, cohort=5),
        "sent140": _tables("synthetic:1,1", "natural", "linear", 10, rounds=8, learning_rate=0.05, local_steps=5),
        "shakespeare": _tables("synthetic:0,0", "natural", "linear", 10, rounds=8, learning_rate=0.05, local_steps=5),
    },
    "small": {
        "mnist": _tables("mnist", "classes:2", "cnn", rounds=150, learning_rate=0.1, evaluations=5),
        "emnist": _tables("emnist", "classes:5", "cnn", rounds=60, learning_rate=0.1),
        "cifar100": _tables("cifar100", "classes:2", "cnn", rounds=40, learning_rate=0.05, local_steps=40),
        "sent140": _tables("sent140", "natural", "sentiment_lstm", rounds=40, learning_rate=1.0),
        "shakespeare": _tables(
            "shakespeare",
            "natural",
            "char_lstm",
            rounds=20,
            learning_rate=4.0,
            cohort=4,
            local_steps=10,
            batch_size=10,
            evaluations=1,
        ),
    },
    "medium": {
        "mnist": _tables("mnist", "classes:2", "cnn", rounds=300, learning_rate=0.1),
        "emnist": _tables("emnist", "classes:10", "resnet_small", rounds=60, learning_rate=0.05),
        "cifar100": _tables("cifar100", "classes:2", "cnn", rounds=100, learning_rate=0.05, local_steps=40),
        "cifar100 vgg11": _tables("cifar100", "classes:2", "vgg11_gn", rounds=60, learning_rate=0.05),
        "sent140": _tables("sent140", "natural", "sentiment_lstm", rounds=100, learning_rate=1.0),
        "shakespeare": _tables("shakespeare", "natural", "char_lstm", 300, rounds=1200, evaluations=1, **_SNIPPETS),
    },
    "full": {
        "mnist": _tables("mnist", "classes:2", "resnet50", rounds=500, learning_rate=0.05, evaluations=20),
        "emnist": _tables("emnist", "classes:5", "resnet50", rounds=500, learning_rate=0.05, evaluations=20),
        "cifar100": _tables("cifar100", "classes:5", "vgg11", rounds=1000, learning_rate=0.05, evaluations=20),
        "sent140": _tables("sent140", "natural", "sentiment_lstm", rounds=500, learning_rate=1.0, evaluations=20),
        "shakespeare": _tables("shakespeare", "natural", "char_lstm", rounds=500, learning_rate=4.0, evaluations=20),
    },
}


def setting(scale: ScaleName, dataset: str, name: str | None = None, **changes: Mapping[str, Any]) -> Setting:
    """A data set at a scale, with some keys of its sections changed."""
    tables = {section: {**table, **changes.get(section, {})} for section, table in DATA[scale][dataset].items()}
    return Setting(("for " if scale == "smoke" else "") + (name or dataset), tables)
