import pytest
import torch
from hypothesis import settings

from efl import Federation, load
from efl.plugins import REGISTRIES, registry

settings.register_profile("same every time", derandomize=True)
settings.load_profile("same every time")


@pytest.fixture(autouse=True)
def _same_every_time():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def _forget_what_a_test_registers():
    known = [registry(kind) for kind in REGISTRIES]
    before = [(dict(found._things), dict(found._given)) for found in known]
    yield
    for found, (things, given) in zip(known, before, strict=True):
        found._things, found._given = things, given


@pytest.fixture(scope="session")
def digits() -> Federation:
    return load("digits", clients=20, partition="classes:2")


@pytest.fixture(scope="session")
def tiny() -> Federation:
    """Six clients, four features, three classes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(180, 4, generator=generator)
    y = (x @ torch.randn(4, 3, generator=generator)).argmax(1)
    return Federation.from_tensors(x, y, clients=6, partition="iid")
