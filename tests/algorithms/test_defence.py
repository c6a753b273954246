"""The default defence: each of its rules in numbers by hand, and all of them on digits."""

import numpy as np
import pytest
import torch

import efl
from efl import EFL, FedAvg, Fleet, chain, train
from efl.algorithms import every_name
from efl.algorithms.components.admission import Increment
from efl.algorithms.components.sketch import sketched
from efl.algorithms.components.standing import Column
from efl.algorithms.state import RoundSettings, ServerState, Update
from efl.algorithms.transforms.defence import Defence
from efl.algorithms.transforms.memory import Memory
from efl.runs.defended import defended, share_cap
from efl.server.client_table import ClientTable
from efl.wire import Context, Field

N = 12
LAYOUT = Context.flat(N).layout


def unit(place, length=1.0):
    vector = np.zeros(N, np.float32)
    vector[place] = length
    return vector


class Server:
    """Admits rounds of updates, ηE being 1."""

    def __init__(self, **settings):
        self.defence = Defence(**settings)
        self.state = ServerState(torch.zeros(N), self.defence.init(torch.zeros(N)))
        self.round = 0

    def admit(self, vectors, fields=None, rates=None, remembered=0.0, w=None, fidelity=1.0):
        updates = [
            Update(
                client,
                1,
                0.1,
                1.0,
                1.0 if rates is None else rates[client],
                1,
                {"update": Increment(vector)} | ({} if fields is None else {"field": fields[client]}),
                remembered=remembered,
                fidelity=fidelity,
            )
            for client, vector in vectors.items()
        ]
        if w is not None:
            self.state = ServerState(torch.from_numpy(w), self.state.tensors)
        settings = RoundSettings(self.round, 1.0, 1, 1, LAYOUT, clients=50)
        admitted, self.state = self.defence.admit(updates, self.state, settings)
        self.round += 1
        return {update.client: update for update in admitted}


def test_what_is_too_long_counts_less_than_honest_work():
    """Ten medians long: ρ = 10/1.5, and 10/ρ² = 0.225."""
    counted = Server().admit({k: unit(k, 10.0 if k == 4 else 1.0) for k in range(5)})
    assert [counted[k].trust for k in range(4)] == [1.0] * 4
    assert counted[4].trust == pytest.approx(0.0225)
    assert counted[4].delta.values[4] == pytest.approx(0.225)
    assert counted[0].delta is counted[0].sent


def test_clients_not_sampled_now_have_votes():
    """Two that lie are the majority of their cohort, but not of the clients heard of lately."""
    server = Server()
    server.admit({k: unit(k) for k in range(5)})
    counted = server.admit({0: unit(0), 5: unit(5, 10.0), 6: unit(6, 10.0)})
    assert counted[0].trust == 1.0
    assert counted[5].trust == counted[6].trust == pytest.approx(0.0225)


def test_small_lies_do_not_add_up_in_the_memory():
    """The same again and again means ever more where both sides remember; up to 1.5 medians of that it counts."""
    server, believed = Server(secant=0.0, alike=0.0), np.zeros(N)
    for _ in range(8):
        settled = {k: unit(k, 1.0 if server.round == 0 else 0.1) for k in range(1, 6)}  # little is new of the honest
        counted = server.admit({0: unit(0, 0.15)} | settled, remembered=1.0)
        believed = 0.99 * believed + counted[0].delta.values
    assert np.linalg.norm(believed) == pytest.approx(8 * 0.15, rel=0.05)  # no longer than honest ones: all of it counts
    for _ in range(20):
        counted = server.admit({0: unit(0, 0.15)} | {k: unit(k, 0.01) for k in range(1, 6)}, remembered=1.0)
        believed = 0.99 * believed + counted[0].delta.values
    assert np.linalg.norm(believed) < 1.5 * 1.7


def test_copies_count_together_as_one():
    counted = Server().admit({k: unit(max(k, 2)) for k in range(7)})
    assert [counted[k].trust for k in range(3)] == pytest.approx([1 / 3] * 3)
    assert [counted[k].trust for k in range(3, 7)] == [1.0] * 4


def test_who_is_more_alike_than_rounding_at_random_allows_counts_as_one():
    """Three with a cosine of 0.7: too little for copies, but more than two that mean the same have at fidelity 1/2."""
    near = {k: unit(0, 0.7**0.5) + unit(1 + k, 0.3**0.5) for k in range(3)}
    vectors = near | {k: unit(1 + k) for k in range(3, 7)}
    assert [one.trust for one in Server().admit(vectors).values()] == [1.0] * 7
    counted = Server().admit(vectors, fidelity=0.5)
    assert [counted[k].trust for k in range(7)] == pytest.approx([1 / 3] * 3 + [1.0] * 4)
    assert [one.trust for one in Server(alike=0.0).admit(vectors, fidelity=0.5).values()] == [1.0] * 7


def test_who_goes_on_where_others_turn_back_loses_its_weight():
    """Descent on ½‖w − b_k‖² from models all over the place; client 0 climbs, client 1 only pretends to descend."""
    rng, server = np.random.default_rng(0), Server(length=100.0, secant_most=3.0, alike=0.0)
    minima = rng.standard_normal((8, N)).astype(np.float32)
    for _ in range(12):
        w = rng.standard_normal(N).astype(np.float32)
        steps = {k: minima[k] - w for k in range(8)}
        counted = server.admit(steps | {0: -steps[0]}, w=w)
    assert counted[0].trust == 0.0
    assert [counted[k].trust for k in range(1, 8)] == pytest.approx([1.0] * 7)


def pushing(server, forge, rounds=20):
    """Rounds in which the model goes where eight clients push it, each to a minimum of its own; the ninth forges."""
    rng = np.random.default_rng(0)
    minima = rng.standard_normal((8, N)).astype(np.float32) + 20 * unit(0)
    w, seen = np.zeros(N, np.float32), np.zeros(N, np.float32)
    for _ in range(rounds):
        steps = minima + 2 * rng.standard_normal((8, N)).astype(np.float32) - w
        counted = server.admit(dict(enumerate(steps)) | {8: forge(steps, w, seen).astype(np.float32)}, w=w)
        seen += np.float32(0.15) * (w - seen)
        w = w + np.float32(0.02) * steps.mean(0)
    return [counted[k].trust for k in range(9)]


def test_who_pushes_against_where_the_model_goes_loses_its_weight():
    """Backwards, and back to where the model came from as much as passes for descent."""

    def weak_pull(steps, w, seen):
        back = seen - w
        return -steps[0] + 0.3 * np.linalg.norm(steps[0]) * back / max(np.linalg.norm(back), 1e-9)

    settings = {"length": 100.0, "secant": 0.0, "alike": 0.0}
    *honest, hostile = pushing(Server(**settings), weak_pull)
    assert hostile == 0.0
    assert min(honest) > 0.6
    assert pushing(Server(**settings, agreement=0.0), weak_pull)[8] == 1.0


def test_who_agrees_more_than_one_with_data_of_its_own_loses_weight():
    """Clients far from each other, and one that always sends the mean of all."""
    rng = np.random.default_rng(0)
    server, w = Server(length=100.0, secant=0.0, alike=0.0), np.zeros(N, np.float32)
    minima = 5 * rng.standard_normal((8, N)).astype(np.float32) + 3 * unit(0)
    for _ in range(12):
        steps = minima - w
        counted = server.admit(dict(enumerate(steps)) | {8: steps.mean(0)}, w=w)
        w = w + np.float32(0.02) * steps.mean(0)
    assert counted[8].trust < 0.6


def test_clients_of_a_checkpoint_from_before_agreement_are_tested_anew():
    server = Server()
    server.admit({k: unit(k) for k in range(5)})
    numbers = server.state.tensors["defence_numbers"]
    server.state = server.state.having(defence_numbers=numbers[:, : Column.AGREEMENT])
    counted = server.admit({k: unit(k) for k in range(5)}, w=unit(7))
    assert [counted[k].trust for k in range(5)] == [1.0] * 5
    assert server.state.tensors["defence_numbers"].shape == numbers.shape


def test_without_descent_nobody_is_judged():
    server, rng = Server(length=100.0, alike=0.0), np.random.default_rng(0)
    for _ in range(4):
        w = rng.standard_normal(N).astype(np.float32)
        counted = server.admit({k: w + unit(k) for k in range(4)}, w=w)
    assert [one.trust for one in counted.values()] == [1.0] * 4


def test_answer_rates_count_from_half_the_median_on():
    counted = Server().admit({k: unit(k) for k in range(3)}, rates=[0.1, 0.8, 0.9])
    assert [counted[k].response_rate for k in range(3)] == [0.4, 0.8, 0.9]


def test_fields_count_up_to_two_medians():
    """Fisher values 100 times too large: 1/50 of them is left; displacements 10 times: 1/5."""
    honest = Field(LAYOUT, np.array([1, 2]), np.float32([1.0, 1.0]), np.float32([3.0, 4.0]))
    false = Field(LAYOUT, np.array([1, 2]), np.float32([100.0, 100.0]), np.float32([-30.0, 40.0]))
    counted = Server().admit({k: unit(k) for k in range(3)}, fields=[honest, honest, false])
    assert counted[2].parts["field"].fisher == pytest.approx([2.0, 2.0])
    assert counted[2].parts["field"].displacement == pytest.approx([-6.0, 8.0])
    assert counted[0].parts["field"] is honest


def test_fields_of_too_many_entries_do_not_count():
    honest = Field(LAYOUT, np.array([1, 2]), np.float32([1.0, 1.0]), np.float32([3.0, 4.0]))
    dense = Field(LAYOUT, None, np.ones(N, np.float32), np.ones(N, np.float32))
    counted = Server().admit({k: unit(k) for k in range(3)}, fields=[honest, honest, dense])
    assert not counted[2].parts["field"].fisher.any()


def test_sketches_keep_lengths_and_inner_products():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 20_000)).astype(np.float32)
    y += x
    short_x, short_y = (sketched(one, 20_000, 1021, 0) for one in (x, y))
    scale = np.linalg.norm(x) * np.linalg.norm(y)
    assert abs(short_x @ short_y - x @ y) < 4 * scale / np.sqrt(1021)
    some = np.sort(rng.choice(20_000, 300, replace=False))
    sparse = np.zeros(20_000, np.float32)
    sparse[some] = x[some]
    assert sketched(x[some], 20_000, 1021, 0, some) == pytest.approx(sketched(sparse, 20_000, 1021, 0), abs=1e-5)


def test_shares_are_capped():
    table = ClientTable.of(np.array([10, 10, 10, 2**40]), share_cap(chain(FedAvg(), Defence())))
    assert table.shares.tolist() == [0.2, 0.2, 0.2, 0.4]


def test_on_in_deployments_off_in_simulation_unless_told():
    def has(algorithm):
        return [type(one) for one in algorithm.transforms].count(Defence)

    assert has(defended(EFL(), "auto", deployed=True)) == 1
    assert has(defended(defended(EFL(), "default"), "default")) == 1
    assert has(defended(EFL(), "auto")) == has(defended(EFL(), "none", deployed=True)) == 0
    assert has(defended(efl.Mime(), "auto", deployed=True)) == 0


def test_no_more_than_a_part_of_each_client_is_kept():
    """2n floats each would be 135 kB on digits."""
    result = train(algorithm="efl", robust="default", rounds=2, cohort=4, local_steps=1)
    assert result.summary["parameters"] == 17226
    server = Server()
    server.admit({k: unit(k) for k in range(5)})
    kept = sum(tensor.numel() * tensor.element_size() for tensor in server.state.tensors.values()) / 5
    assert kept < 17_000


def test_reputation_tells_the_hostile_from_others_and_the_model_is_saved(digits):
    settings = {"rounds": 30, "cohort": 8, "local_steps": 10, "evaluate_personalised_every": "never"}
    fleet = Fleet(attack="limit", hostile=0.2)
    ruined = train(digits, fleet=fleet, **settings)
    saved = train(digits, fleet=fleet, robust="default", **settings)
    assert ruined.summary["final_mean"] < 0.4 < 0.7 < saved.summary["final_mean"]
    hostile = set(map(str, efl.fleet.attacks.hostile_clients(0.2, len(digits), 0)))
    reputation = saved.summary["reputation"]
    assert max(reputation[client]["reputation"] for client in hostile) < 0.7
    assert set(sorted(reputation, key=lambda client: reputation[client]["reputation"])[: len(hostile)]) == hostile
    assert any(set(record.get("trust", {})) & hostile for record in saved.history)


def test_memory_says_what_is_remembered():
    assert Memory().remembered(Increment(unit(0)), RoundSettings(0, 1.0, 1, 1, LAYOUT)) == 1.0


@pytest.mark.parametrize("name", [name for name in every_name() if not name.startswith("mime")])
def test_every_algorithm_can_be_defended(digits, name):
    """Two of eight are hostile enough for their updates to be scaled."""
    settings = {"rounds": 2, "cohort": 8, "local_steps": 1, "evaluate_personalised_every": "never"}
    attacked = Fleet(attack="limit", hostile=0.25)
    result = train(digits, algorithm=name, fleet=attacked, robust="default", engine={"workers": 1}, **settings)
    assert not result.summary["diverged"]
    assert all(record["aggregated"] for record in result.history)
