"""What travels and what does not: frozen layers, personal layers and buffers, tied weights."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from stopping import StopAt
from torch import nn

import efl
from efl import UserError
from efl.algorithms import Clients
from efl.algorithms.pipeline import initial_state
from efl.config import parse
from efl.models import FlatModel
from efl.models.files import load_module
from efl.runs.directory import RunDirectory
from efl.runs.learning import Learning
from efl.runs.loop import Run
from efl.runs.setup import build
from efl.training.assignment import PERSONAL
from efl.training.backends.eager import EagerRows
from efl.training.optimisers import optimiser_of

E, ETA, SAMPLES = 4, 0.1, 12


class Net(nn.Module):
    """A body with BatchNorm, and a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Tied(nn.Module):
    """Embedding and output layer have the same weight."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.embedding(x).mean(1))


def federation(clients=3):
    """Every mini-batch is all of a client's samples."""
    x = torch.randn(clients * (SAMPLES + 3), 4)
    y = torch.randint(0, 3, (len(x),))
    parts = torch.arange(len(x)).view(clients, -1).numpy()
    return efl.Federation(
        name="own", x=x, y=y, train=[p[:SAMPLES] for p in parts], test=[p[SAMPLES:] for p in parts], classes=3
    )


# Which tensors


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["head"], ["head.weight", "head.bias"]),
        (["head.bias"], ["head.bias"]),
        (["*.weight"], ["body.0.weight", "body.1.weight", "head.weight"]),
        (["body.0"], ["body.0.weight", "body.0.bias"]),
        (["BatchNorm*", "head.bias"], ["body.1.weight", "body.1.bias", "head.bias"]),
        (["last layer"], ["head.weight", "head.bias"]),
    ],
)
def test_patterns_choose_what_is_trained(patterns, names):
    module = Net()
    model = FlatModel(module, trainable=patterns)
    assert list(model.layout.names) == names
    assert all(p.requires_grad for p in module.parameters())  # the user's own module stays as it is


def test_frozen_normalisation_is_not_sent_and_keeps_its_statistics():
    module = Net()
    module.body.requires_grad_(False)
    for model in (FlatModel(module), FlatModel(Net(), trainable=["head"])):
        assert (model.n, len(model.buffers), len(model.personal)) == (18, 0, 0)
        model.train()
        assert (model.module.body[1].training, model.module.head.training) == (False, True)
    result = efl.train(federation(), module, "fedavg", rounds=2, cohort=3, batch_size=SAMPLES)
    for before, after in zip(module.body.state_dict().values(), result.model.body.state_dict().values(), strict=True):
        assert torch.equal(before, after)
    assert not torch.equal(module.head.weight, result.model.head.weight)


def test_buffers_that_are_not_saved_are_not_sent():
    module = Net()
    module.register_buffer("table", torch.ones(1000), persistent=False)
    assert FlatModel(module).buffer_layout.names == ("body.1.running_mean", "body.1.running_var")


def test_personal_tensors_are_a_vector_of_their_own():
    model = FlatModel(Net(), personal=["BatchNorm*"])
    assert model.layout.names == ("body.0.weight", "body.0.bias", "head.weight", "head.bias")
    assert model.personal.tolist() == [1.0] * 5 + [0.0] * 5 + [0.0] * 5 + [1.0] * 5
    assert not len(model.buffers)
    whole = torch.cat([model.w, torch.arange(20.0)])
    module = model.module_at(whole, model.buffers)
    assert module.body[1].bias.tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert module.body[1].running_var.tolist() == [15.0, 16.0, 17.0, 18.0, 19.0]
    x = torch.randn(2, 4)
    assert torch.equal(module(x), model.outputs(whole, model.buffers, x))


def test_a_tied_weight_is_one_by_either_name():
    assert FlatModel(Tied()).n == 28
    for name in ("embedding", "out"):
        assert FlatModel(Tied(), trainable=[name]).layout.names == ("embedding.weight",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"trainable": ["haed"]},
            "model.trainable: nothing in the model matches 'haed'; its tensors are body.0.weight",
        ),
        ({"personal": ["body.7"]}, "model.personal: nothing in the model matches"),
        ({"algorithm": efl.FedPer(layers=("tail",))}, "algorithm.layers: nothing in the model matches 'tail'"),
        ({"personal": ["*"]}, "leave some to be trained together"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        efl.train(federation(), Net(), rounds=1, cohort=3, **settings)


# Gradients and Fisher diagonals


@pytest.mark.parametrize("kind", ["tied", "frozen", "personal"])
def test_squared_gradients_are_those_of_single_samples(kind):
    """EFL's Fisher diagonal, sample by sample by autograd, in evaluation mode."""
    module = Tied() if kind == "tied" else Net()
    if kind == "frozen":
        module.body[0].requires_grad_(False)
    model = FlatModel(module, personal=["head"] if kind == "personal" else ())
    x = torch.randint(0, 7, (6, 3)) if kind == "tied" else torch.randn(6, 4)
    y = torch.randint(0, 3, (6,))
    found = EagerRows(model, model.w, 1).squared_gradients(x[None], y[None], torch.full((1, 6), 1 / 6))[0]
    expected = torch.zeros(model.n)
    reference = copy.deepcopy(module).eval()
    parameters = [dict(reference.named_parameters())[name] for name in model.layout.names]
    for sample, label in zip(x, y, strict=True):
        loss = nn.functional.cross_entropy(reference(sample[None]), label[None])
        gradient = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        expected += torch.cat([g.flatten() for g in gradient]).square() / 6
    assert torch.allclose(found, expected, atol=1e-7)


# Training


def reference(modules, data, own, head_steps=None):
    """One round in plain PyTorch: every client's module trains on all its samples; ``own`` is not averaged."""
    for module, samples in zip(modules, data.train, strict=True):
        x, y = data.x[samples], data.y[samples]
        for step in range(E):
            module.train()
            module.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            for name, parameter in module.named_parameters():
                if head_steps is None or (step < head_steps) == own(name):
                    parameter.data.sub_(ETA * parameter.grad)
    for name in modules[0].state_dict():
        if not own(name) and "tracked" not in name:
            tensors = [module.state_dict()[name] for module in modules]
            mean = torch.stack(tensors).mean(0)
            for tensor in tensors:
                tensor.copy_(mean)


@pytest.mark.parametrize(
    ("algorithm", "own", "head_steps"),
    [
        (efl.FedPer(), "head", None),
        (efl.FedPer(layers=("body.0", "head.bias")), ("body.0", "head.bias"), None),
        (efl.FedRep(head=0.75), "head", 3),
        (efl.FedBN(), "body.1", None),
        (efl.FedAvg(), "nothing", None),
    ],
    ids=str,
)
def test_rounds_with_personal_layers_are_those_of_plain_pytorch(algorithm, own, head_steps):
    data, module = federation(), Net()
    model = FlatModel(module, personal=algorithm.personal_layers)
    clients = Clients.of(data, model, batch_size=SAMPLES)
    settings = replace(clients.settings, eta=ETA, local_steps=E, batch_size=SAMPLES)
    server = initial_state(algorithm, model.w.clone())
    modules = [copy.deepcopy(module) for _ in data.train]
    for round_ in range(3):
        played = efl.run_round(algorithm, server, clients, replace(settings, round=round_))
        server, clients = played.server, played.clients
        reference(modules, data, lambda name: name.startswith(own), head_steps)
        if model.buffers.numel():
            break  # `run_round` leaves averaging buffers to the coordinator
    for row, client in enumerate(played.participants):
        whole = torch.cat([server.w, played.work.rows.personal[row]])
        mine = model.module_at(whole, played.work.rows.buffers[row])
        for name, parameter in modules[client].named_parameters():
            assert torch.allclose(mine.get_parameter(name), parameter, atol=1e-6), name
        if own == "body.1":
            assert torch.allclose(mine.body[1].running_mean, modules[client].body[1].running_mean, atol=1e-6)


@pytest.mark.parametrize(("optimiser", "factory"), [("adamw", torch.optim.AdamW), (torch.optim.Adagrad,) * 2])
def test_fedrep_steps_by_the_optimiser(optimiser, factory):
    """First the head by an optimiser of its own, then the body by another, as in plain PyTorch."""
    data, module, algorithm = federation(), Net(), efl.FedRep(head=0.5)
    model = FlatModel(module, personal=algorithm.personal_layers)
    clients = Clients.of(data, model, batch_size=SAMPLES)
    clients = replace(clients, trainer=replace(clients.trainer, optimiser=optimiser_of(optimiser)))
    settings = replace(clients.settings, eta=0.01, local_steps=E, batch_size=SAMPLES)
    work = efl.run_round(algorithm, initial_state(algorithm, model.w.clone()), clients, settings).work
    for row, samples in enumerate(data.train):
        alone = copy.deepcopy(module).train()
        stages = [factory(some.parameters(), lr=0.01) for some in (alone.head, alone.body)]
        for step in range(E):
            alone.zero_grad()
            nn.functional.cross_entropy(alone(data.x[samples]), data.y[samples]).backward()
            stages[step // 2].step()
        mine = model.module_at(torch.cat([work.W[row], work.rows.personal[row]]), work.rows.buffers[row])
        alone.body[0].bias = None  # BatchNorm undoes it: its gradient is nothing but rounding, which AdamW magnifies
        for name, parameter in alone.named_parameters():
            assert torch.allclose(mine.get_parameter(name), parameter, atol=1e-6), name


def made(algorithm, workers=1, **model):
    training = {"rounds": 5, "cohort": 3, "local_steps": 3, "evaluate_every": 2, "evaluate_personalised_every": 4}
    table = {
        "federation": {"clients": 4},
        "model": model,
        "training": training,
        "engine": {"workers": workers},
        "track": {"checkpoint_every": 2},
    }
    torch.manual_seed(0)
    fleet = efl.Fleet(stragglers=0.3, lost=0.2)
    return build(parse(table), federation(4), Net(), algorithm, fleet)


def comparable(result):
    history = [{key: value for key, value in record.items() if key != "seconds"} for record in result.history]
    return result.summary["model_sha256"], result.summary["final_mean_accuracy"], history


@pytest.mark.parametrize("name", ["efl", "fedbn", "ditto", "scaffold", "apfl"])
def test_workers_and_interruptions_make_no_difference_to_personal_layers(name, tmp_path):
    algorithm = efl.create(name)
    personal = [] if name == "fedbn" else ["BatchNorm*", "head.bias"]
    expected = comparable(Run(made(algorithm, personal=personal)).execute())
    assert comparable(Run(made(algorithm, workers=2, personal=personal)).execute()) == expected
    setup = made(algorithm, personal=personal)
    directory = RunDirectory.create(tmp_path / "run", setup.experiment)
    with pytest.raises(KeyboardInterrupt):
        Run(setup, directory, [StopAt(2)]).execute()
    assert comparable(Run(made(algorithm, personal=personal), directory).execute()) == expected


@pytest.mark.parametrize("optimiser", ["adamw", {"name": "sgd", "momentum": 0.9}, torch.optim.RMSprop], ids=str)
def test_personal_layers_take_the_steps_of_the_clients_optimiser(optimiser):
    """For a client that is alone it makes no difference what of its model is personal."""
    data, module = federation(1), Net()
    personal, common = (after_a_round(data, module, optimiser, own) for own in (["head"], []))
    for name, parameter in common.named_parameters():
        assert torch.allclose(personal.get_parameter(name), parameter, atol=1e-6), name


def after_a_round(data, module, optimiser, personal):
    """The module as the only client has it."""
    training = {"rounds": 1, "cohort": 1, "local_steps": E, "batch_size": SAMPLES, "learning_rate": 0.01}
    table = {"federation": {"clients": 1}, "model": {"personal": personal}, "training": training}
    run = Run(build(parse(table), data, module, efl.FedAvg(), efl.Fleet(), learning=Learning(optimiser=optimiser)))
    run.execute()
    coordinator = run.coordinator
    store = coordinator.transport.host.store
    kept = store.file.read([store.current(0)]).get(PERSONAL, torch.zeros(1, 0))[0]
    return coordinator.model.module_at(torch.cat([coordinator.server.w, kept]), coordinator.buffers)


def test_only_what_is_shared_travels():
    """FedAvg sends 4 bytes per parameter; what is personal, frozen or constant is none of them."""
    for settings, shared in (
        ({"personal": ["BatchNorm*"]}, 25 + 18),
        ({"personal": ["head", "BatchNorm*"]}, 25),
        ({"trainable": ["head"]}, 18),
        ({"trainable": ["head"], "personal": ["head.bias"]}, 15),
    ):
        result = efl.train(federation(), Net(), "fedavg", rounds=3, cohort=3, batch_size=SAMPLES, **settings)
        sent = result.summary["bytes"]["up"]
        assert result.summary["parameters"] == shared
        assert sent["update"] == pytest.approx(3 * 3 * 4 * shared, abs=3 * 3 * 8)  # and a few bytes of header each
        assert "state" not in sent


# Files


def test_tied_weights_are_saved_once_and_come_back(tmp_path):
    torch.manual_seed(1)
    x = torch.randint(0, 7, (90, 3))
    data = efl.Federation.from_tensors(x, x[:, 0], clients=3, partition="iid")
    first = efl.train(data, Tied(), rounds=2, cohort=3, out=tmp_path / "run")
    assert first.model.out.weight is first.model.embedding.weight
    loaded = load_module(Tied(), tmp_path / "run" / "model.safetensors")
    assert torch.equal(loaded.out.weight, first.model.out.weight)
    again = efl.resume(tmp_path / "run", federation=data, model=Tied())
    assert again.summary["model_sha256"] == first.summary["model_sha256"]
    with pytest.raises(UserError, match="not the weights of this model"):
        load_module(Net(), tmp_path / "run" / "model.safetensors")


def test_an_experiment_file_says_what_is_trained(tmp_path):
    model = '[model]\ntrainable = ["5"]\npersonal = ["5.bias"]\n'
    text = f"[federation]\nclients = 6\n{model}[training]\nrounds = 1\ncohort = 2\n"
    (tmp_path / "own.toml").write_text(text)
    result = efl.run(efl.load_experiment(tmp_path / "own.toml"), out=tmp_path / "run")
    assert result.summary["parameters"] == 64 * 10
    assert efl.resume(tmp_path / "run").summary["model_sha256"] == result.summary["model_sha256"]
    assert math.isfinite(result.summary["train_loss"])


def test_what_is_not_trained_cannot_be_personal():
    data, frozen = federation(), Net()
    frozen.head.requires_grad_(False)
    for module, trainable in ((Net(), ["body"]), (frozen, [])):
        with pytest.raises(UserError, match=r"model\.personal: what 'head' matches is not trained.* leave it out of"):
            efl.train(data, module, "fedavg", trainable=trainable, personal=["head"], rounds=1, cohort=2)
