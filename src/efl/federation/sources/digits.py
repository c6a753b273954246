"""The digits of scikit-learn: 1,797 real 8 × 8 images, installed with the library, no download."""

import numpy as np
import torch

from efl.errors import UserError
from efl.federation.federation import Federation


def load(dataset: str, clients: int, partition: str, test_fraction: float, seed: int) -> Federation:
    """Images of shape (1, 8, 8) in [0, 1]."""
    if dataset != "digits":
        raise UserError(f"unknown dataset {dataset!r}; did you mean 'digits'?")
    if partition == "natural":
        raise UserError("partition 'natural' needs data with an owner per sample; digits has none")
    from sklearn.datasets import load_digits  # a slow import, needed by this source only

    bunch = load_digits()
    x = torch.from_numpy((bunch.images / 16.0).astype(np.float32)).unsqueeze(1)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    return Federation.from_tensors(x, y, clients, partition, test_fraction=test_fraction, seed=seed, name=dataset)
