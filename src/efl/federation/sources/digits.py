"""The digits of scikit-learn: 1,797 real 8 × 8 images, installed with the library, no download."""

import numpy as np
import torch

from efl.federation.federation import Federation
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource


def load(request: DatasetRequest) -> Federation:
    """Images of shape (1, 8, 8) in [0, 1]."""
    from sklearn.datasets import load_digits  # a slow import, needed by this source only

    bunch = load_digits()
    x = torch.from_numpy((bunch.images / 16.0).astype(np.float32)).unsqueeze(1)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    return Federation.from_tensors(x, y, **request.dealing)


SOURCES.register(
    "digits",
    DatasetSource(
        "1,797 handwritten digits, 8 × 8, 10 classes (ships with scikit-learn)", "mlp", "classes:2", make=load
    ),
)
