import numpy as np
import pytest
import torch
from assembled import assemble
from torch import nn

from efl import EFL, FedAvg, Federation, Fleet, UserError, resume, train
from efl.client.host import ClientHost
from efl.config import parse
from efl.errors import DivergedError
from efl.models import FlatModel, Task, build
from efl.runs.evaluation import worst_decile
from efl.runs.evaluation_schedule import global_spacing, looked_at, own_spacing
from efl.runs.setup import prepare
from efl.server.client_table import ClientTable
from efl.server.coordinator import Coordinator
from efl.training.batches import Trainer, auto_rows, batch_indices, fisher_samples
from efl.wire import Message


def test_the_same_experiment_gives_the_same_model_twice(digits):
    first, second = (train(digits, rounds=6, seed=3) for _ in range(2))
    other = train(digits, rounds=6, seed=4)
    assert first.summary["model_sha256"] == second.summary["model_sha256"]
    assert first.summary["model_sha256"] != other.summary["model_sha256"]
    strip = [{key: value for key, value in record.items() if key != "seconds"} for record in first.history]
    assert strip == [{key: value for key, value in record.items() if key != "seconds"} for record in second.history]


@pytest.mark.parametrize("algorithm", [EFL(density_up=0.05, density_down=0.05), FedAvg()])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_order_and_company_in_which_clients_run_do_not_matter(digits, algorithm, model):
    def weights(shuffle):
        experiment = parse({"federation": {"clients": 20}, "model": {"name": model}, "training": {"local_steps": 5}})
        coordinator, host = prepare(experiment, digits, None, algorithm, Fleet(stragglers=0.5)).assemble()
        answer = host.answer
        rng = np.random.default_rng(0)

        def one_by_one(requests, steps):
            replies = {}
            for client in rng.permutation(list(requests)).tolist():
                replies |= answer({client: requests[client]}, steps)
            return replies

        if shuffle:
            host.answer = one_by_one
        for round_ in range(6):
            coordinator.play(round_)
        return coordinator.server.w

    assert torch.equal(weights(shuffle=False), weights(shuffle=True))


def test_a_damaged_reply_is_refused_and_the_round_goes_on(digits):
    coordinator, _ = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=5, local_steps=2)
    real = coordinator.transport.exchange

    def noisy(round_, requests):
        exchange = real(round_, requests)
        replies = dict(exchange.replies)
        victim = min(replies)
        replies[victim] = replies[victim][:-10] + b"0123456789"
        return type(exchange)(replies, exchange.steps)

    coordinator.transport.exchange = noisy
    record = coordinator.play(0)
    assert len(record.counted) == 4
    assert "checksum" in next(iter(record.refused.values()))


def test_replies_of_strangers_and_to_other_rounds_are_refused(digits):
    coordinator, _ = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=5, local_steps=2)
    real, kept = coordinator.transport.exchange, {}

    def replaying(round_, requests):
        exchange = real(round_, requests)
        replies = {**kept, **exchange.replies} if round_ == 0 else {**exchange.replies, **kept}
        kept.update(exchange.replies)
        return type(exchange)(replies, exchange.steps)

    coordinator.transport.exchange = replaying
    coordinator.play(0)
    record = coordinator.play(1)
    assert record.refused
    assert set(record.counted).isdisjoint(record.refused)


def test_divergence_is_reported_and_not_averaged_away(digits):
    result = train(digits, "mlp", EFL(density_up=1.0, density_down=1.0), learning_rate=1e6, rounds=30, cohort=5)
    assert result.summary["diverged"]
    assert result.summary["rounds"] < 30
    assert result.summary["diverged_reason"]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())


@pytest.mark.filterwarnings("error")  # such as NumPy's, of an overflow
def test_divergence_is_reported_without_noise(digits):
    deep = [layer for _ in range(4) for layer in (nn.Linear(100, 100), nn.ReLU())]
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), *deep, nn.Linear(100, 10))
    assert train(digits, module, EFL(), learning_rate=1.0, rounds=30, cohort=5).summary["diverged"]


def test_a_runaway_loss_is_divergence(digits):
    coordinator, _ = assemble(digits)
    with pytest.raises(DivergedError, match="training loss"):
        Coordinator._train_loss(coordinator, {0: type("R", (), {"loss": 1e9})()}, 3)


def test_training_stops_at_the_target_accuracy(digits):
    result = train(
        digits, "linear", FedAvg(), Fleet(stragglers=0, inactive=0), rounds=200, cohort=20, target_accuracy=0.8
    )
    assert result.summary["rounds"] == result.summary["rounds_to_target"] < 200
    assert result.summary["final_mean_accuracy"] >= 0.8
    assert result.summary["bmta_local"] is not None


def test_response_rates_are_one_where_everybody_answered_and_learn_otherwise():
    table = ClientTable.of(np.array([1, 1, 1]))
    assert (table.response_rates() == 1.0).all()
    table.requests[:], table.replies[:] = 50, 50
    assert (table.response_rates() == 1.0).all()
    table.requests[:], table.replies[:] = 1000, [1000, 500, 100]
    assert np.allclose(table.response_rates(), [1.0, 0.5, 0.1], atol=0.01)


def test_accuracy_is_measured_on_each_clients_own_test_data():
    x = torch.eye(2).repeat(10, 1)
    federation = Federation(
        x, torch.zeros(20).long(), [np.arange(0, 8)] * 2, [np.arange(8, 20, 2), np.arange(9, 20, 2)], 2
    )
    model = FlatModel(nn.Linear(2, 2, bias=False))
    right_for_the_first_only = torch.tensor([1.0, 0.0, 0.0, 1.0])
    host = ClientHost(FedAvg(), Trainer(model, federation, seed=0, rows=1))
    accuracies = host.accuracies(right_for_the_first_only, model.buffers)
    assert accuracies.tolist() == [1.0, 0.0]


def test_worst_decile():
    assert worst_decile([0.2, 0.4] + [1.0] * 18) == pytest.approx(0.3)
    assert worst_decile([0.5]) == 0.5


def test_batches_go_through_all_samples_before_any_comes_again():
    indices = batch_indices(np.arange(100, 107), 3, 5, np.random.default_rng(0))
    assert indices.shape == (3, 5)
    order = indices.reshape(-1)
    assert sorted(order[:7]) == sorted(order[7:14]) == list(range(100, 107))


def test_fisher_samples_are_all_there_are_up_to_the_limit_each_with_equal_weight():
    chosen, weights = fisher_samples([np.arange(3), np.arange(10, 18)], 5, [np.random.default_rng(0)] * 2)
    assert chosen.shape == (2, 5)
    assert sorted(chosen[0, :3].tolist()) == [0, 1, 2]
    assert weights[0].tolist() == pytest.approx([1 / 3] * 3 + [0, 0])
    assert weights.sum(1).tolist() == pytest.approx([1, 1])


def test_rows_are_chosen_by_the_size_of_the_model():
    assert auto_rows(FlatModel(build("linear", Task((60,), 10), 0)), 10) == 10
    assert auto_rows(FlatModel(build("mlp200", Task((784,), 10), 0)), 10) == 1
    assert auto_rows(FlatModel(build("cnn", Task((1, 8, 8), 10), 0)), 10) == 1


def test_dropout_draws_from_the_clients_own_stream(digits):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
    torch.manual_seed(1)
    first = train(digits, module, rounds=3, cohort=5)
    torch.manual_seed(2)
    assert train(digits, module, rounds=3, cohort=5).summary["model_sha256"] == first.summary["model_sha256"]


def test_looks_at_own_models_cost_about_a_twentieth():
    training = parse({}).training
    assert own_spacing(training, 50, 10) == 100
    assert own_spacing(training, 10, 10) == 20
    assert own_spacing(training, 1000, 10) == 2000
    assert looked_at(training, 50) == list(range(50))
    some = looked_at(training, 100_000)  # 100 rounds of 10 clients afford a look at 50
    assert len(some) == len(set(some)) == 50
    assert looked_at(training, 100_000) == some


def test_looks_at_the_global_model_are_rarer_where_there_is_much_test_data(digits):
    training = parse({}).training
    assert global_spacing(training, digits) == 10
    test = [np.arange(1000)] * 100  # 100,000 answers take as long as 25,000 samples of training, 4,000 a round
    large = Federation(torch.zeros(1000, 1), torch.zeros(1000).long(), [np.arange(5)] * 100, test, 10)
    assert global_spacing(training, large) == 130
    assert global_spacing(parse({"training": {"evaluate_every": 3}}).training, large) == 3


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(3, 10), "cannot be trained on batches of shape"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "10 classes"),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(digits, module, message):
    with pytest.raises(UserError, match=message):
        train(digits, module, rounds=1)


def test_custom_module_and_tensors(tiny):
    result = train(tiny, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), "fedavg", rounds=30, cohort=6)
    assert result.summary["bmta_global"] > 0.6
    assert result.model(torch.randn(2, 4)).shape == (2, 3)


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Counting(nn.Module):
    """Replaces a buffer instead of changing it in place, and has a parameter it does not use."""

    def __init__(self):
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 3), nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen = self.seen + 1
        return self.layer(x)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Residual(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)),
        nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3), nn.Flatten(), nn.Linear(6, 3)),
        Counting(),
    ],
)
def test_unusual_modules_train_the_same_in_any_order(tiny, module):
    def weights(reverse):
        experiment = parse({"federation": {"clients": 6}, "training": {"cohort": 6, "local_steps": 3}})
        coordinator, host = prepare(experiment, tiny, module, EFL(density_up=0.5, density_down=0.5), None).assemble()
        answer = host.answer
        if reverse:
            host.answer = lambda requests, steps: {
                k: v for c in sorted(requests, reverse=True) for k, v in answer({c: requests[c]}, steps).items()
            }
        for round_ in range(4):
            coordinator.play(round_)
        return torch.cat([coordinator.server.w, coordinator.buffers])

    first = weights(reverse=False)
    assert torch.equal(first, weights(reverse=True))
    assert torch.isfinite(first).all()
    if isinstance(module, Counting):
        assert first[-1] <= 12  # three steps a round at most, averaged: not one count for all clients


def test_a_reply_with_the_wrong_parts_is_refused(digits):
    coordinator, _ = assemble(digits, fleet=Fleet(stragglers=0.0, inactive=0.0), cohort=5, local_steps=2)
    real = coordinator.transport.exchange

    def wrong(round_, requests):
        exchange = real(round_, requests)
        replies = dict(exchange.replies)
        victim = Message.from_bytes(replies[min(replies)], "reply")
        replies[min(replies)] = Message("reply", victim.header, {"update": victim.parts["field"]}).to_bytes()
        other = Message.from_bytes(replies[max(replies)], "reply")
        swapped = {"update": other.parts["field"], "field": other.parts["update"]}
        replies[max(replies)] = Message("reply", other.header, swapped).to_bytes()
        return type(exchange)(replies, exchange.steps)

    coordinator.transport.exchange = wrong
    record = coordinator.play(0)
    assert len(record.counted) == 3
    assert sorted(reason.split(" sent ")[1][:5] for reason in record.refused.values()) == ["Field", "['upd"]


def test_resuming_with_another_model_says_so(tmp_path, digits):
    class Stop:
        def start(self, setup, history): ...

        def round(self, record):
            if record["round"] == 12:
                raise KeyboardInterrupt

        def end(self, summary): ...

    with pytest.raises(KeyboardInterrupt):
        train(digits, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), out=tmp_path / "r", cohort=3, observers=[Stop()])
    with pytest.raises(UserError, match="pass the model that the run was started with"):
        resume(tmp_path / "r", federation=digits, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 11)))


def test_lost_replies_that_are_taken_back_do_not_count_as_silence(digits):
    """Otherwise the same loss would be made up for twice: by the client's residual, and by its weight."""

    def rates(echo):
        algorithm = EFL(density_up=0.05, density_down=0.05, echo=echo)
        fleet = Fleet(stragglers=0.0, inactive=0.0, lost=0.4)
        coordinator, _ = assemble(digits, algorithm, fleet, cohort=20, local_steps=1)
        for round_ in range(60):
            coordinator.play(round_)
        return coordinator.table.response_rates().mean()

    assert rates(echo=True) > 0.8
    assert 0.55 < rates(echo=False) < 0.65


def test_own_models_are_looked_at_only_if_wanted(digits):
    settings = {"rounds": 2, "cohort": 3, "local_steps": 2, "evaluate_every": 1}
    summary = train(digits, "linear", evaluate_own_every="never", **settings).summary
    assert summary["bmta_local"] is None
    assert train(digits, "linear", **settings).summary["bmta_local"] is not None
