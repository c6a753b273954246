"""1,797 real 8 × 8 images that come with the package: no download, no library to read them.

Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository (1998), CC BY 4.0:
the test set, with the same values and in the same order as scikit-learn's ``load_digits``.
"""

from pathlib import Path

import numpy as np
import torch

from efl.federation.federation import Federation
from efl.federation.sources.registry import SOURCES, DatasetRequest, DatasetSource


def load(request: DatasetRequest) -> Federation:
    """Images of shape (1, 8, 8) in [0, 1]."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        x = torch.from_numpy(file["images"]).float().div_(16).unsqueeze(1)
        y = torch.from_numpy(file["labels"]).long()
    return Federation.from_tensors(x, y, **request.dealing)


SOURCES.register(
    "digits",
    DatasetSource(
        "1,797 handwritten digits, 8 × 8, 10 classes (comes with the package)", "mlp", "classes:2", make=load
    ),
)
