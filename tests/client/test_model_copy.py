"""A host's copy of the model: it follows sums of broadcasts, and can go back where the server does not know better."""

import numpy as np
import pytest
import torch

from efl.client.model_copy import ModelCopy
from efl.errors import WireError
from efl.storage import checksum
from efl.wire import Context, Dense, Lattice, Layout, TrainRequest, encode
from efl.wire.payloads.lattice import total

LAYOUT = Layout(((20, 10), (20,)))
CONTEXT = Context(LAYOUT)


class Server:
    """Models of a server that changes them by lattices, and what clients are sent."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.models = [(self.rng.integers(-1000, 1000, LAYOUT.n) / 2**10).astype(np.float32)]
        self.changes = []

    @property
    def version(self):
        return len(self.changes)

    def change(self, times=1):
        for _ in range(times):
            codes = np.where(self.rng.random(LAYOUT.n) < 0.3, self.rng.integers(-3, 4, LAYOUT.n), 0)
            self.changes.append(Lattice.of(LAYOUT, codes.astype(np.int32), 2.0 ** self.rng.integers(-8, -4)))
            self.models.append(self.changes[-1].onto(self.models[-1]))

    def request(self, client, base, how="summed"):
        log = [encode(total(self.changes[base:], LAYOUT), CONTEXT)]
        if how == "model":
            base, log = -2, [encode(Dense(self.models[-1]), CONTEXT)]
        start = checksum(self.models[0]) if base == 0 else None
        return TrainRequest(0, client, 0.1, 1, 1, 0, 0, -1, how, base, self.version, start, {}, None, log)


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def copy(server):
    return ModelCopy(torch.from_numpy(server.models[0]), CONTEXT)


def receive(copy, server, client, base, how="summed"):
    request = server.request(client, base, how)
    assert copy.can_receive(request)
    copy.receive(request, CONTEXT)
    assert np.array_equal(copy.w.numpy(), server.models[-1])
    assert copy.version == server.version


def test_a_client_follows_from_sum_to_sum(copy, server):
    base = 0
    for missed in (1, 5, 2, 30):
        server.change(missed)
        receive(copy, server, 0, base)
        base = server.version


def test_a_host_goes_back_for_a_client_that_was_away_longer(copy, server):
    bases = {0: 0, 1: 0, 2: 0}
    for client in (0, 1, 0, 0, 2, 1, 0, 2, 2, 0, 1):
        server.change(2)
        receive(copy, server, client, bases[client])
        bases[client] = server.version


def test_a_lost_reply_leaves_the_server_behind(copy, server):
    """The server does not know that the client has version 2: it sends the sum from version 1 on again."""
    server.change()
    receive(copy, server, 0, 0)
    server.change()
    receive(copy, server, 0, 1)
    server.change(3)
    receive(copy, server, 0, 1)
    server.change()
    receive(copy, server, 0, 1)


def test_the_way_back_survives_a_restart(copy, server):
    server.change()
    receive(copy, server, 0, 0)
    server.change(2)
    receive(copy, server, 1, 0)
    restarted = ModelCopy(torch.from_numpy(server.models[0]), CONTEXT)
    restarted.load_state_dict(copy.state_dict())
    server.change()
    receive(restarted, server, 0, 1)


def test_what_no_client_will_ask_for_is_forgotten(copy, server):
    for _ in range(20):
        base = server.version
        server.change()
        receive(copy, server, 0, base)
    assert len(copy.state_dict()["changes"]) <= 2


def test_a_base_that_is_not_here_needs_the_model(copy, server):
    server.change(3)
    receive(copy, server, 0, 0)
    server.change()
    request = server.request(1, 2)
    assert not copy.can_receive(request)
    with pytest.raises(WireError, match="does not continue"):
        copy.receive(request, CONTEXT)
    receive(copy, server, 1, 2, how="model")
    server.change()
    receive(copy, server, 1, 4)


def test_an_unknown_first_model_is_not_built_upon(server):
    stranger = ModelCopy(torch.zeros(LAYOUT.n), CONTEXT)
    server.change()
    assert not stranger.can_receive(server.request(0, 0))
