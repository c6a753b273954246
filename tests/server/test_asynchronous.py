"""Rounds that end with some replies: who is at work when, what late replies are relative to, and what they count."""

import math

import numpy as np
import pytest
import torch
from assembled import intercept
from hypothesis import given
from hypothesis import strategies as st

import efl
from efl import EFL, FedAvg, Fleet, StalenessDiscount, UserError, chain
from efl.algorithms.components.late import moved_to
from efl.algorithms.components.shares import fade
from efl.algorithms.state import Budget
from efl.config import parse
from efl.fleet import Clock
from efl.fleet.intervals import COLUMNS, Interval
from efl.fleet.traces import Trace
from efl.runs.setup import build
from efl.server.aggregation import updates_of
from efl.server.byte_control import ByteControl
from efl.server.round_end import RoundEnd
from efl.transport.base import TrainRequests
from efl.transport.in_flight import Upload, state_of, taken, uploads_of
from efl.transport.local import LocalTransport
from efl.wire import Field, Layout, TrainReply, decode

NO_TIME = 1e15  # bytes a second


def trace(tmp_path, *speeds):
    """Clients that are always there and take so many steps a second; bytes take no time."""
    lines = [f"{client},0,,{speed},{NO_TIME},{NO_TIME}" for client, speed in enumerate(speeds)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    return str(path)


def assemble(federation, algorithm, fleet, **training):
    experiment = parse({"federation": {"clients": len(federation)}, "training": training})
    return build(experiment, federation, None, algorithm, fleet).coordinator()


@pytest.fixture(scope="module")
def two():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=generator), torch.arange(60) % 3
    return efl.Federation.from_tensors(x, y, clients=2, partition="iid")


def test_two_clients_by_hand(two, tmp_path):
    """Ten steps take the one a second and the other 3.5; every round ends with the first reply."""
    fleet = Fleet(trace=trace(tmp_path, 10, 10 / 3.5))
    coordinator = assemble(two, FedAvg(), fleet, cohort=2, buffer=1, local_steps=10)
    models, uploads, seen = [], {}, []

    def watched(requests, replies):
        models.append(coordinator.server.w)
        uploads.update(
            {client: TrainReply.from_bytes(blob, coordinator.message_limits) for client, blob in replies.blobs.items()}
        )
        return replies

    intercept(coordinator.transport, watched)
    for round_ in range(6):
        record = coordinator.run_round(round_)
        seen.append((round(record.time, 6), record.aggregated, record.staleness, sorted(coordinator.at_work)))
    assert seen == [
        (1.0, [0], 0, [1]),
        (2.0, [0], 0, [1]),
        (3.0, [0], 0, [1]),
        (3.5, [1], 3, [0]),  # client 0 was asked at 3, client 1 at 0
        (4.0, [0], 1, [1]),
        (5.0, [0], 0, [1]),
    ]
    assert [reply.round for reply in uploads.values()] == [5, 0]
    w_then, w = models[0], models[3]
    late = torch.from_numpy(decode(uploads[1].parts["update"], coordinator.plain).values)
    weight = (1 + 3) ** -0.5
    torch.testing.assert_close(models[4], w + weight * (late - w_then))
    assert not torch.allclose(models[4], w + weight * (late - w), atol=1e-3)


@pytest.mark.parametrize("algorithm", ["efl", "efl:2021", "fedavg", "fedprox", "fedadam", "stc"])
def test_with_equal_speeds_and_all_replies_it_is_the_synchronous_run(digits, tmp_path, algorithm):
    fleet = Fleet(trace=trace(tmp_path, *[4] * 20))
    settings = {"cohort": 5, "rounds": 6, "local_steps": 4, "seed": 3}
    waiting, buffered = (efl.train(digits, "mlp", algorithm, fleet, **settings, **more) for more in ({}, {"buffer": 5}))
    for key in ("model_sha256", "bytes_up", "bytes_down", "simulated_seconds"):
        assert waiting.summary[key] == buffered.summary[key]
    assert {record["staleness"] for record in buffered.history} == {0.0}
    assert "staleness" not in waiting.history[0]


def test_what_both_sides_remember_is_the_same_however_late_updates_were(digits, tmp_path):
    """H = Σ p^k y_k γ^(rounds since k started), once everybody has replied; y_k lies with the clients."""
    rng = np.random.default_rng(0)
    fleet = Fleet(trace=trace(tmp_path, *rng.uniform(0.5, 20, 20)))
    coordinator = assemble(digits, EFL(memory="on"), fleet, cohort=10, buffer=3, local_steps=4, decay=5.0)
    stale = [coordinator.run_round(round_).staleness for round_ in range(25)]
    assert max(stale) > 2
    coordinator.round_end = RoundEnd()
    coordinator.run_round(25)
    assert not coordinator.at_work
    store = coordinator.transport.host.store
    gamma = fade(coordinator.settings(25).clients)
    expected = torch.zeros_like(coordinator.server.w)
    for client, share in enumerate(coordinator.table.shares):
        since = 25 - store.last_upload(client).round
        remembered = store.file.read([store.current(client)])
        expected += share * gamma**since * remembered["remembered"][0]
    assert expected.norm() > 0.1
    torch.testing.assert_close(coordinator.server.tensors["memory"], expected, rtol=1e-3, atol=1e-5)


def test_late_replies_are_decoded_by_the_field_of_their_own_round(tmp_path):
    """Updates of large models are coded by the round's field."""
    generator = torch.Generator().manual_seed(0)
    federation = efl.Federation.from_tensors(
        torch.randn(400, 300, generator=generator), torch.arange(400) % 10, clients=10, partition="iid"
    )
    model = torch.nn.Sequential(torch.nn.Linear(300, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    fleet = Fleet(trace=trace(tmp_path, *range(1, 11)))
    coordinator = build(
        parse({"federation": {"clients": 10}, "training": {"cohort": 6, "buffer": 2, "local_steps": 4}}),
        federation, model, EFL(), fleet,
    ).coordinator()  # fmt: skip
    for round_ in range(8):
        record = coordinator.run_round(round_)
        assert not record.rejected
    assert record.staleness > 0
    contexts = {started.settings.round: started.context for started in coordinator.at_work.values()}
    assert len(contexts) > 1
    assert all(context.field is not None for context in contexts.values())
    before = coordinator.at_work
    coordinator.load_state_dict(coordinator.state_dict())
    assert coordinator.at_work.keys() == before.keys()
    for client, started in coordinator.at_work.items():
        assert started.settings == before[client].settings
        assert started.probability[client] == before[client].probability[client]
        assert np.array_equal(started.context.field.rows, before[client].context.field.rows)
        assert torch.equal(started.w, before[client].w)


def test_the_anchor_of_a_late_field_stays_in_its_place():
    then, now = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.0, 1.0])
    for index, values in ((None, [0.5, 0.5, 0.5]), (np.array([0, 2]), [0.5, 0.5])):
        at = [0, 1, 2] if index is None else [0, 2]
        field = Field(Layout.flat(3), index, np.ones(len(at), np.float32), np.float32(values))
        moved = moved_to({"field": field}, then, now)["field"]
        assert (now[at] + torch.from_numpy(moved.displacement)).tolist() == (then[at] + 0.5).tolist()


def test_slow_clients_count_as_much_as_others(digits, tmp_path, monkeypatch):
    """Σ 1/π_k over the replies of client k comes to as much for all, though slow ones reply less often."""
    fleet = Fleet(trace=trace(tmp_path, *[8 if client % 2 else 1 for client in range(20)]))
    algorithm = EFL(elasticity=0, density_up=1, density_down=1)
    coordinator = assemble(digits, algorithm, fleet, cohort=6, buffer=2, local_steps=1)
    total, count = np.zeros(20), np.zeros(20)

    def watched(*given):
        updates = updates_of(*given)
        for update in updates:
            total[update.client] += 1 / (update.sampling_probability * update.response_rate)
            count[update.client] += 1
        return updates

    monkeypatch.setattr("efl.server.coordinator.updates_of", watched)
    for round_ in range(600):
        coordinator.run_round(round_)
    assert count[1::2].mean() > 1.15 * count[::2].mean()
    assert total[::2].mean() == pytest.approx(total[1::2].mean(), rel=0.1)
    assert total.mean() == pytest.approx(600, rel=0.1)


def test_a_departed_client_at_work_is_not_sampled_and_its_reply_counts_by_the_rule(digits, tmp_path):
    fleet = Fleet(trace=trace(tmp_path, 1, *[8] * 19), departures=[[1, [0]]], on_departure="drop")
    coordinator = assemble(digits, FedAvg(), fleet, cohort=20, buffer=4, local_steps=8)
    records = [coordinator.run_round(round_) for round_ in range(40)]
    heard = [record.round for record in records if 0 in record.steps]
    assert len(heard) == 1
    assert not any(0 in record.aggregated for record in records)


@pytest.mark.parametrize(
    "algorithm", [EFL(), FedAvg(), chain(FedAvg(), efl.ClipByNorm(1.0)), efl.FedAdam(server_rate=0.02)]
)
def test_it_learns(digits, tmp_path, algorithm):
    fleet = Fleet(trace=trace(tmp_path, *np.geomspace(1, 30, 20)))
    result = efl.train(digits, "mlp", algorithm, fleet, rounds=80, cohort=10, buffer=3, evaluate_every=80)
    assert result.summary["final_mean_accuracy"] > 0.5


@pytest.mark.parametrize("attack", ["sign_flip", "alie"])
def test_the_defence_knows_from_which_model_late_updates_started(digits, tmp_path, attack):
    fleet = Fleet(trace=trace(tmp_path, *np.geomspace(1, 10, 20)), attack=attack, hostile=0.2)
    result = efl.train(digits, "mlp", EFL(), fleet, rounds=60, cohort=10, buffer=4, robust="default")
    assert result.summary["bmta_global"] > 0.45


def test_the_discount_can_be_another_or_none(two, tmp_path):
    fleet = Fleet(trace=trace(tmp_path, 1, 2))
    for algorithm, expected in ((FedAvg(), 0.5), (chain(FedAvg(), StalenessDiscount(0.0)), 0.0)):
        coordinator = assemble(two, algorithm, fleet, cohort=2, buffer=1)
        assert [one.exponent for one in coordinator.algorithm.transforms] == [expected]
    assert not assemble(two, FedAvg(), fleet, cohort=2).algorithm.transforms


def test_weights_that_were_left_to_efl_sum_to_one_where_updates_may_be_late(two, tmp_path):
    fleet = Fleet(trace=trace(tmp_path, 1, 2))
    for given_as, buffer, expected in (
        ("auto", 1, "self-normalised"),
        ("auto", 2, "auto"),
        ("unbiased", 1, "unbiased"),
        ("share", 1, "share"),
    ):
        algorithm = EFL(participation=given_as, memory="on")
        assert assemble(two, algorithm, fleet, cohort=2, buffer=buffer).algorithm.participation == expected


@pytest.mark.parametrize(
    ("algorithm", "fleet", "training", "message"),
    [
        ("fedavg", {}, {}, "needs fleet.trace"),
        ("fedavg", {"trace": "phones"}, {"buffer": 11}, "training.buffer is 11, but training.cohort has 10"),
        ("fedavg", {"trace": "phones", "selection": "poisson"}, {}, "'poisson'"),
        ("mime", {"trace": "phones"}, {}, "mime asks the same clients twice"),
        ("scaffold", {"trace": "phones"}, {}, "what scaffold keeps between rounds"),
        ("fedgate", {"trace": "phones"}, {}, "what fedgate keeps"),
        ("cafe", {"trace": "phones"}, {}, "what cafe keeps"),
        (EFL(field_every=2), {"trace": "phones"}, {}, "field is sent in every round then"),
        (chain(FedAvg(), codec=efl.SharedSupport()), {"trace": "phones"}, {}, "adds up what is of one round"),
        (
            chain(EFL(), efl.Privacy(noise_multiplier=1.0)),
            {"trace": "phones", "selection": "poisson"}, {}, "whole cohorts",
        ),
    ],
)  # fmt: skip
def test_what_would_be_wrong_is_refused_in_a_line(algorithm, fleet, training, message):
    with pytest.raises(UserError, match=message) as error:
        efl.train("digits", algorithm=algorithm, fleet=Fleet(**fleet), rounds=1, **{"buffer": 3, **training})
    assert "\n" not in str(error.value)


def test_bytes_of_late_work_are_paid_back_by_later_rounds():
    control = ByteControl.of(Budget(1 / 25), 10_000)
    control.note({"up": {"update": 900}}, 40_000, requests=0, complete=0, clients=50)  # partial work, and nobody idle
    assert (control.sent, control.allowed, control.octaves) == (900, 0, 0)
    control.note({"up": {"update": 1500}}, 40_000, requests=0, complete=1, clients=50)
    assert control.sent == 2400
    assert control.octaves > 0


class Host:
    """Replies to every request by as many bytes as its client's number, and one."""

    def train(self, blobs, steps):
        return {client: b"x" * (client + 1) for client in blobs if steps[client] > 0}


@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.0]), min_size=2, max_size=8),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([None, 5.0, 30.0]),
    st.floats(0, 0.5),
    st.integers(0, 99),
)
def test_nobody_works_twice_at_once_and_nothing_is_lost_on_the_way(speeds, cohort, buffer, deadline, lost, seed):
    n, rng = len(speeds), np.random.default_rng(seed)
    clock = Clock(Trace([Interval(0, c, 0, math.inf, speed, 1e9, 10.0) for c, speed in enumerate(speeds)], n), 1)
    transport = LocalTransport(Host(), Fleet(lost=lost, inactive=lost), seed, 10, clock)
    sent, heard, at_work = 0, 0, set()
    for round_ in range(12):
        idle = [client for client in range(n) if client not in at_work]
        chosen = sorted(rng.permutation(idle)[: max(0, cohort - len(at_work))].tolist())
        began = clock.now
        transport.send(TrainRequests(round_, dict.fromkeys(chosen, b"request"), deadline))
        at_work |= set(chosen)
        assert {upload.client for upload in transport._in_flight} <= at_work
        replies = transport.collect(RoundEnd(deadline, buffer))
        assert replies.steps.keys() <= at_work
        assert replies.blobs.keys() <= replies.steps.keys()
        at_work -= replies.steps.keys()
        assert {upload.client for upload in transport._in_flight} == at_work
        assert clock.now >= began
        assert deadline is not None or len(replies.blobs) <= buffer
        assert deadline is None or clock.now <= began + deadline + 1e-9
        sent += sum(c + 1 for c in chosen if c in at_work or replies.steps.get(c, 0) > 0)
        heard += sum(map(len, replies.blobs.values())) + replies.lost_bytes
        in_flight = sum(len(upload.blob) + upload.lost_bytes for upload in transport._in_flight)
        if deadline is None:
            assert sent == heard + in_flight
        assert uploads_of(state_of(transport._in_flight)) == transport._in_flight


def test_replies_end_a_round_one_by_one_and_a_deadline_lets_in_all_that_are_there():
    uploads = [Upload(client, 5, 0.0, 4.0, b"reply") for client in range(3)] + [Upload(3, 5, 0.0, 9.0, b"reply")]
    assert [one.client for one in taken(uploads, 0.0, RoundEnd(buffer=2))[0]] == [0, 1]
    assert [one.client for one in taken(uploads, 0.0, RoundEnd(4.0))[0]] == [0, 1, 2]
    assert taken(uploads[2:], 4.0, RoundEnd(buffer=2)) == (uploads[2:], 5.0)
