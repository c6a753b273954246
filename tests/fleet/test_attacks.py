"""Attacks: what each sends, in numbers by hand; who is hostile; and that forged messages go the way of all others."""

import numpy as np
import pytest
from stopping import StopAt

import efl
from efl import Fleet, UserError, chain, resume, train
from efl.algorithms.transforms.defence import Defence
from efl.fleet.attacks import (
    ATTACKS,
    Situation,
    a_little_is_enough,
    adaptive,
    at_limit,
    hostile_clients,
    inner_product,
    mimic,
    min_max,
    noise,
    sign_flip,
)
from efl.runs.hostility import claimed, poisoned

SHORT = {"rounds": 6, "cohort": 8, "local_steps": 3, "evaluate_personalised_every": "never", "engine": {"workers": 1}}


def at(own=(3.0, 4.0), honest=((1.0, 0.0), (3.0, 4.0)), strength=1.0, model=(0.0, 0.0), before=None):
    vectors = [np.float32(one) for one in (own, honest, model)]
    past = None if before is None else np.float32(before)
    return Situation(*vectors, strength, np.random.default_rng(0), past)


def test_sign_flip():
    assert sign_flip(at(strength=10.0)).tolist() == [-30.0, -40.0]


def test_at_the_limit_is_as_long_as_a_deployment_allows():
    """10 · max(1, ‖w‖) with w = (0, 2), of which 0.5."""
    assert at_limit(at(model=(0.0, 2.0), strength=0.5)) == pytest.approx([-6.0, -8.0])


def test_noise_is_as_long_as_told():
    forged = noise(at(strength=2.0))
    assert np.linalg.norm(forged) == pytest.approx(10.0)
    assert abs(forged @ np.float32([3, 4])) < 50 - 1e-3


def test_a_little_is_enough():
    """The means are 2 and 2, the standard deviations 1 and 2."""
    assert a_little_is_enough(at(strength=1.5)).tolist() == [0.5, -1.0]


def test_inner_product():
    assert inner_product(at(strength=0.5)).tolist() == [-1.0, -1.0]


def test_mimic():
    assert mimic(at()).tolist() == [1.0, 0.0]


def test_min_max_is_no_further_from_anybody_than_honest_clients_are():
    """The honest are √20 apart; of what lies at the mean less γ times (1, 2), that is γ = 1: the first of them."""
    assert min_max(at()) == pytest.approx([1.0, 0.0], abs=1e-4)
    assert min_max(at(honest=[(0.0, 0.0), (2.0, 0.0), (1.0, 0.0)]))[0] == pytest.approx(0.0, abs=1e-4)


def test_adaptive_is_as_long_as_honest_and_pulls_back():
    """Backwards is (−3, −4), the pull to (1, 0) is (5, 0): together (2, −4), made 5 long."""
    forged = adaptive(at(before=(1.0, 0.0)))
    assert forged == pytest.approx(np.float32([2.0, -4.0]) * 5 / np.sqrt(20))
    assert adaptive(at()).tolist() == [-3.0, -4.0]


def test_alone_in_a_cohort_they_flip_signs():
    for forge in (a_little_is_enough, inner_product, min_max):
        assert forge(at(honest=np.empty((0, 2)))).tolist() == [-3.0, -4.0]


def test_labels_and_counts(digits):
    fleet = Fleet(attack="label_flip", hostile=0.2)
    hostile, wrong = hostile_clients(0.2, len(digits), 3), poisoned(digits, fleet, 3)
    for client, (mine, tested) in enumerate(zip(digits.train, digits.test, strict=True)):
        flipped = 9 - digits.y[mine] if client in hostile else digits.y[mine]
        assert (wrong.y[mine] == flipped).all()
        assert (wrong.y[tested] == digits.y[tested]).all()
    sizes = claimed(digits.sizes, Fleet(attack="counts", hostile=0.2), 3)
    assert (sizes[hostile] == 1000 * digits.sizes[hostile]).all()
    assert sizes.sum() - sizes[hostile].sum() == digits.sizes.sum() - digits.sizes[hostile].sum()


def test_before_they_turn_nothing_is_different(digits):
    honest = train(digits, fleet=Fleet(), **SHORT)
    later = train(digits, fleet=Fleet(attack="sign_flip", hostile=0.3, attack_from=6), **SHORT)
    now = train(digits, fleet=Fleet(attack="sign_flip", hostile=0.3, attack_from=5), **SHORT)
    assert later.summary["model_sha256"] == honest.summary["model_sha256"] != now.summary["model_sha256"]


def test_the_absent_take_no_part_and_sleepers_seldom_answer(digits):
    hostile = set(hostile_clients(0.3, len(digits), 0).tolist())
    absent = train(digits, fleet=Fleet(attack="absent", hostile=0.3), **SHORT)
    assert not any(hostile & set(map(int, record["clients"])) for record in absent.history)
    sleepers = train(digits, fleet=Fleet(attack="sleepers", hostile=0.3), **{**SHORT, "rounds": 10})
    asked = [client for record in sleepers.history for client in map(int, record["clients"]) if client in hostile]
    answered = [client for record in sleepers.history for client in record["aggregated"] if client in hostile]
    assert len(answered) < len(asked) / 3


@pytest.mark.parametrize("attack", sorted(set(ATTACKS) - {"absent", "label_flip"}))
def test_every_attack_is_sent_and_decoded(digits, attack):
    """Some change the field alone, which acts from the second round on."""
    honest = train(digits, fleet=Fleet(), **{**SHORT, "rounds": 3})
    hostile = train(digits, fleet=Fleet(attack=attack, hostile=0.4, attack_from=0), **{**SHORT, "rounds": 3})
    assert hostile.summary["model_sha256"] != honest.summary["model_sha256"]
    assert not hostile.summary["diverged"]


@pytest.mark.parametrize("algorithm", ["fedavg", "stc", "signsgd", "fedgate:compressed"])
def test_attacks_go_the_way_of_any_codec(digits, algorithm):
    result = train(digits, algorithm=algorithm, fleet=Fleet(attack="min_max", hostile=0.4), **{**SHORT, "rounds": 2})
    assert not any("rejected" in record for record in result.history)


def test_a_stopped_run_under_attack_goes_on_bit_for_bit(tmp_path, digits):
    """What adaptive clients keep, and what the server knows of clients, is in the checkpoint."""

    def start(**how):
        fleet, algorithm = Fleet(attack="adaptive", hostile=0.4, lost=0.2), chain(efl.EFL(), Defence())
        return train(digits, algorithm=algorithm, fleet=fleet, **SHORT, **how)

    whole = start(out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        start(out=tmp_path / "stopped", track={"checkpoint_every": 1}, callbacks=[StopAt(3)])
    went_on = resume(tmp_path / "stopped", federation=digits)
    assert went_on.summary["model_sha256"] == whole.summary["model_sha256"]
    assert went_on.summary["reputation"] == whole.summary["reputation"]


@pytest.mark.parametrize("wrong", [{"attack": "flip", "hostile": 0.1}, {"attack": "noise"}, {"hostile": 0.1}])
def test_half_an_attack_is_refused(wrong):
    with pytest.raises(UserError, match="attack: "):
        Fleet(**wrong)
