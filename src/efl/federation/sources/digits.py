"""The digits of scikit-learn: 1,797 real 8 × 8 images, installed with the library, no download."""

import numpy as np
import torch

from efl.federation.federation import Federation
from efl.federation.sources.request import Request


def load(request: Request) -> Federation:
    """Images of shape (1, 8, 8) in [0, 1]."""
    from sklearn.datasets import load_digits  # a slow import, needed by this source only

    bunch = load_digits()
    x = torch.from_numpy((bunch.images / 16.0).astype(np.float32)).unsqueeze(1)
    y = torch.from_numpy(bunch.target.astype(np.int64))
    return Federation.from_tensors(x, y, **request.dealing)
