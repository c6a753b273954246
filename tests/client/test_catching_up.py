"""Clients that sat out rounds, or lack the first model: what they are sent, and that it is the server's model."""

import pytest
import torch
from assembled import assemble, assembled, intercept

from efl import EFL, FedAvg, Fleet, train
from efl.client.host import ClientHost
from efl.config import parse
from efl.runs.setup import build
from efl.wire import TrainRequest
from efl.wire.limits import Limits


def test_clients_that_sat_out_rounds_catch_up_bit_for_bit_and_pay_for_it(digits):
    coordinator, host = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=3, local_steps=2)
    whole_model = 4 * coordinator.model.n
    seen: dict[int, int] = {}
    billed = 0

    def watched(requests, replies):
        for client, blob in requests.blobs.items():
            message = TrainRequest.from_bytes(blob, Limits())
            if message.how == "model":
                assert len(blob) > whole_model
            else:
                assert message.base == seen.get(client, 0)
            assert (message.start is not None) == (client not in seen and message.how != "model")
            seen[client] = message.version
            nonlocal billed
            billed += len(blob)
        return replies

    intercept(coordinator.transport, watched)
    for round_ in range(40):
        before = coordinator.server.w
        coordinator.run_round(round_)
        assert torch.equal(host.w, before)
    assert len(seen) == 20
    assert coordinator.ledger.down == billed
    assert sum(map(len, coordinator.log.blobs)) <= whole_model


@pytest.fixture
def coded_as_if_large(monkeypatch):
    """Small models coded in every way that large ones are: factored fields, classes, merged broadcasts."""
    monkeypatch.setattr("efl.algorithms.components.fields.FACTORED_FROM", 1)
    monkeypatch.setattr("efl.wire.context.WORTH_SORTING", 1)
    monkeypatch.setattr("efl.wire.catchup.WORTH_CODING_ANEW", 1)


@pytest.mark.usefixtures("coded_as_if_large")
def test_merged_and_field_coded_broadcasts_give_every_client_the_servers_model(digits):
    coordinator, first = assemble(digits, fleet=Fleet(stragglers=0.3, inactive=0.0), cohort=4, local_steps=2)
    hosts = {client: ClientHost(first.algorithm, first.trainer) for client in range(len(digits))}
    deliveries = []

    def each_client_by_itself(requests, steps):
        replies = {}
        for client, blob in requests.items():
            message = TrainRequest.from_bytes(blob, Limits())
            deliveries.append((message.how, message.version - message.base, message.log))
            replies |= hosts[client].train({client: blob}, steps)
            assert not steps[client] or torch.equal(hosts[client].w, coordinator.server.w)
        return replies

    first.train = each_client_by_itself
    for round_ in range(25):
        coordinator.run_round(round_)
    merged = [missed for how, missed, _ in deliveries if how == "merged"]
    assert merged
    assert max(merged) > 5
    by_field = [missed for how, missed, log in deliveries if how == "each" and any(b[1] >> 4 == 1 for b in log)]
    assert min(by_field) == 1
    assert max(by_field) > 1  # broadcasts of earlier rounds, coded anew


@pytest.mark.parametrize("algorithm", [EFL(density_up=0.05, density_down=0.05), FedAvg()])
def test_a_client_that_cannot_rebuild_the_first_model_is_sent_it(digits, algorithm):
    coordinator, first = assemble(
        digits, algorithm, Fleet(stragglers=0.0, inactive=0.0), cohort=20, local_steps=2, seed=5
    )
    other_seed = parse({"federation": {"clients": len(digits)}, "training": {"seed": 6}})
    _, stranger = assembled(build(other_seed, digits, None, algorithm, None))
    requests_seen = []

    def client_7_is_a_stranger(requests, steps):
        requests_seen.append(TrainRequest.from_bytes(requests[7], Limits()).how)
        others = {client: blob for client, blob in requests.items() if client != 7}
        return train_others(others, steps) | stranger.train({7: requests[7]}, steps)

    train_others, first.train = first.train, client_7_is_a_stranger
    records = [coordinator.run_round(round_) for round_ in range(3)]
    assert [7 in record.aggregated for record in records] == [False, True, True]
    assert not any(record.rejected for record in records)
    assert torch.equal(stranger.w, first.w)
    if isinstance(algorithm, EFL):
        assert requests_seen == ["each", "model", "each"]


def test_bfloat16_halves_the_bytes_and_both_sides_have_the_rounded_model(digits):
    fleet = Fleet(stragglers=0.0, inactive=0.0)
    full, half = (
        train(digits, algorithm=FedAvg(precision=precision), fleet=fleet, rounds=6, cohort=5)
        for precision in ("float32", "bfloat16")
    )
    for way in ("bytes_up", "bytes_down"):
        assert half.summary[way] / full.summary[way] == pytest.approx(0.5, abs=0.02)
    weights = torch.cat([p.detach().flatten() for p in half.model.parameters()])
    assert torch.equal(weights, weights.bfloat16().float())
