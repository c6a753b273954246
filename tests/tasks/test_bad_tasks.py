"""What is wrong with labels, losses, outputs or metrics is one line, before the first round where possible."""

import pytest
import torch
from torch import nn

import efl

x = torch.randn(80, 5)


def train(y, model=None, **settings):
    federation = efl.Federation.from_tensors(settings.pop("x", x), y, clients=4, **settings.pop("data", {}))
    settings = {"rounds": 2, "cohort": 2} | settings
    return efl.train(federation, model or nn.Linear(5, 3), **settings)


def refused(message, *args, **settings):
    with pytest.raises(efl.UserError, match=message) as error:
        train(*args, **settings)
    assert "\n" not in str(error.value)


def real(bad=None):
    y = torch.randn(80)
    if bad is not None:
        y[17] = bad
    return y


def owner(sample, y):
    federation = efl.Federation.from_tensors(x, y, clients=4)
    return next(c for c in range(4) if sample in federation.train[c] or sample in federation.test[c])


class Flat(nn.Linear):
    """One number per sample, without a dimension of its own."""

    def forward(self, x):
        return super().forward(x).squeeze(-1)


def test_labels_of_the_wrong_kind():
    refused(r"client 0 has real numbers.* say loss='mse'|client \d has real numbers", real(), loss="cross_entropy")
    refused(r"client \d has targets outside 0 … 1; bce needs a 0 or 1", torch.randint(0, 5, (80, 3)), loss="bce")
    y = real(float("nan"))
    refused(rf"client {owner(17, y)} has NaN or infinity among its targets", y, nn.Linear(5, 1))
    refused("labels must lie in 0 … classes-1, found -1", torch.randint(-1, 3, (80,)))
    y = torch.arange(80) % 3
    y[17] = 9
    message = rf"0 … 2, or be -100 for padding; found 0 … 9, first with client {owner(17, y)} \(sample 17 of all\)"
    refused(message, y, data={"classes": 3})


def test_samples_that_are_not_finite():
    samples, y = x.clone(), torch.arange(80) % 3
    samples[[17, 40]] = torch.inf
    message = rf"NaN or infinity in 2 of 80 samples, first with client {owner(17, y)} \(sample 17 of all\); clean"
    refused(message, y, x=samples)


def test_padding_is_what_ignore_index_names():
    tokens = torch.randint(1, 10, (80, 7))
    labels = (tokens % 3).masked_fill(tokens == 9, -1)
    labels[0, 0], first = -1, owner(0, labels)
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 3))
    named = {"name": "cross_entropy", "ignore_index": -1}
    found = train(labels, model, x=tokens, loss=named)
    usual = train(labels.masked_fill(labels == -1, -100), model, x=tokens)
    assert found.summary["model_sha256"] == usual.summary["model_sha256"]
    message = rf"client {first} has label -1; .* 0 … 2, or be -100 for padding, or what ignore_index names"
    refused(message, labels, model, x=tokens)
    refused(r"label -2; .* or be -1 for padding", labels.masked_fill(labels == 0, -2), model, x=tokens, loss=named)


def test_outputs_of_the_wrong_shape():
    refused(r"outputs of shape \(3,\); the data, with 9 classes, need \(9,\)", torch.arange(80) % 9)
    refused(r"outputs of shape \(3,\); the targets need one number per sample; let its last layer have 1 ", real())
    refused(r"outputs of shape \(3,\); the targets need \(2,\); let its last layer have 2 outputs", torch.randn(80, 2))
    refused(r"have shape \(1,\); pass y.squeeze\(-1\)", torch.randn(80, 1), Flat(5, 1))
    refused(r"labels have shape \(1,\); .* pass y.squeeze\(1\)", (torch.arange(80) % 3)[:, None])
    one_hot = nn.functional.one_hot(torch.arange(80) % 3)
    refused(r"the labels are one-hot; pass y.argmax\(1\)", one_hot)
    refused(r"has one-hot labels; pass y.argmax\(1\)", one_hot.float(), loss="cross_entropy")
    refused("real numbers, but next_token needs tokens", torch.randn(80, 3), loss="next_token")
    refused(r"next_token needs targets \(samples, positions\)", torch.arange(80) % 3, loss="next_token")
    weights = {"name": "cross_entropy", "class_weights": [1.0, 2.0]}
    refused("class_weights has 2 numbers, but the model has 3 classes", torch.arange(80) % 3, loss=weights)


def test_an_output_nobody_understands():
    class Odd(nn.Linear):
        def forward(self, x):
            return {"hidden": super().forward(x)}

    class Worse(nn.Linear):
        def forward(self, x):
            return "three"

    refused("the model returns a dictionary with hidden; return a tensor", torch.arange(80) % 3, Odd(5, 3))
    refused("the model returns a str; return a tensor", torch.arange(80) % 3, Worse(5, 3))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, y: (outputs.squeeze(1) - y).square(), r"returns a tensor of shape \(20,\); return one number"),
        (lambda outputs, y: outputs.sum() * float("nan"), "the loss is nan on the first batch of client 0"),
        (lambda outputs, y: 3.0, "the loss returns a float; return a tensor"),
        (lambda outputs, y: y.sum(), "the loss has no gradient; compute it from the model's outputs"),
        (lambda outputs, y: (outputs - y).square().mean().detach(), "the loss has no gradient"),
        (lambda outputs, y: outputs.nothing, "the loss fails: AttributeError: .*nothing.* first batch of client 0"),
        (lambda outputs, y, more: outputs.sum(), "the loss fails: TypeError: .* missing 1 required"),
        (nn.MSELoss, r"loss: MSELoss is a class; pass an object of it, such as MSELoss\(\)"),
        (3, "loss: a int is no loss"),
        ("mze", "unknown task 'mze'; did you mean 'mse'"),
        ({"name": "huber", "delta": -1}, r"training\.loss\.delta: input should be greater than 0"),
    ],
)
def test_losses(loss, message):
    refused(message, real(), nn.Linear(5, 1), loss=loss)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_that_fails_later_names_the_client(workers):
    y, calls = real(), []

    def fails_later(outputs, targets):
        calls.append(outputs.requires_grad)
        if sum(calls) > 10:
            raise KeyError("no more")
        return (outputs.squeeze(1) - targets).square().mean()

    message = r"^fedavg, round \d+, client \d+.*: the loss fails: KeyError: 'no more'$"
    refused(message, y, nn.Linear(5, 1), loss=fails_later, algorithm="fedavg", engine={"workers": workers})


def test_a_loss_may_return_one_number_in_any_shape():
    y, model = real(), nn.Linear(5, 1)
    usual, odd = (
        train(y, model, loss=lambda o, t: (o.squeeze(1) - t).square().mean().reshape(shape)).summary["model_sha256"]  # noqa: B023
        for shape in ((), (1, 1))
    )
    assert usual == odd


def test_metrics():
    def broken(outputs, y):
        raise RuntimeError("no way\nat all")

    refused("metric 'mine' fails on client 0: no way", real(), nn.Linear(5, 1), metrics={"mine": broken})
    refused(
        "metric 'pair' fails on client 0: it returns 3 numbers",
        real(),
        nn.Linear(5, 1),
        metrics={"pair": lambda o, y: [1, 2, 3]},
    )
    refused("metric 'accuracy' fails on client 0: accuracy needs classes", real(), nn.Linear(5, 1), metrics="accuracy")
    last = efl.Federation.from_tensors(x, (y := real()), clients=4).test[3]
    one = lambda o, targets: broken(o, targets) if float(y[last[0]]) in targets else 1.0  # noqa: E731
    refused("metric 'mine' fails on client 3: no way", y, nn.Linear(5, 1), metrics={"mine": one}, rounds=10**6)
    refused("unknown metric 'acuracy'; did you mean 'accuracy'", real(), nn.Linear(5, 1), metrics=["acuracy"])
    refused("'round' cannot be the name of a metric", real(), nn.Linear(5, 1), metrics={"round": broken})
    refused(r"give a function or object its own: metrics=\{'broken': …\}", real(), nn.Linear(5, 1), metrics=[broken])
    refused(r"metrics=\{'mine': …\}", real(), nn.Linear(5, 1), metrics=[lambda o, y: 1.0])
    for value, kind in (("good", "str"), (None, "NoneType"), ([None, 1], "list")):
        message = f"metric 'mine' fails on client 0: it returns a {kind}; return a number, one per sample, or a sum"
        refused(message, real(), nn.Linear(5, 1), metrics={"mine": lambda o, y: value})  # noqa: B023
    refused("'top5' fails on client 0: of 3 classes the label is always among", torch.arange(80) % 3, metrics=["top5"])
    refused("metric 'mine' is a int; pass a function", real(), nn.Linear(5, 1), metrics={"mine": 3})


def test_a_metric_that_fails_later_loses_nothing(tmp_path):
    """It names the client; with the metric mended, the run goes on and ends as if nothing had happened."""
    federation = efl.Federation.from_tensors(x, real(), clients=4)
    calls = []

    def fails_in_the_end(outputs, y):
        calls.append(len(y))
        if len(calls) > 12:
            raise RuntimeError("no more")
        return (outputs.squeeze(1) - y).abs()

    def mended(outputs, y):
        return (outputs.squeeze(1) - y).abs()

    given = {"rounds": 20, "cohort": 2, "evaluate_every": 5, "evaluate_personalised_every": "never"}
    model, run = nn.Linear(5, 1), tmp_path / "run"
    with pytest.raises(efl.UserError, match=r"metric 'gap' fails on client \d: no more"):
        efl.train(federation, model, metrics={"gap": fails_in_the_end}, out=run, **given)
    resumed = efl.resume(run, federation=federation, model=model, metrics={"gap": mended})
    whole = efl.train(federation, model, metrics={"gap": mended}, **given)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    gaps = [[record["gap"] for record in one.history if "gap" in record] for one in (resumed, whole)]
    assert gaps[0] == gaps[1]
    assert len(gaps[0]) == 4


def test_a_metric_that_is_unknown_of_a_client_is_left_out():
    y = torch.arange(80) % 2
    metrics = {"accuracy": "accuracy", "odd": lambda o, y: float("nan") if len(y) % 2 else 1.0}
    result = train(y, nn.Linear(5, 2), metrics=metrics, data={"partition": "dirichlet:0.5"})
    assert result.summary["final_metrics"]["odd"] in (1.0, None)
    assert result.summary["final_mean_accuracy"] is not None


def test_true_fisher_needs_a_likelihood():
    algorithm = efl.EFL(fisher="true")
    refused(
        r"algorithm\.fisher = 'true' draws targets",
        real(),
        nn.Linear(5, 1),
        loss=lambda o, y: o.sum(),
        algorithm=algorithm,
    )


def test_algorithms():
    class Short(efl.FedAvg):
        def weights(self, updates, settings):
            return [1.0]

    y = torch.arange(80) % 3
    refused("Short.weights gives 1 weights for 2 updates; return one for each", y, algorithm=Short())
    refused(r"algorithm: FedAvg is a class; pass an object of it, such as FedAvg\(\)", y, algorithm=efl.FedAvg)
    refused("algorithm: a dict is none; write a name", y, algorithm={"name": "efl"})
    with pytest.raises(efl.UserError, match=r"^EFL: unknown key elastic; did you mean elasticity\?$"):
        efl.EFL(elastic=1)
    with pytest.raises(efl.UserError, match=r"^SGD: unknown key momentun; did you mean momentum\?$"):
        efl.SGD(momentun=0.9)


def test_partitions_by_class_need_classes():
    refused("needs one label per sample", real(), nn.Linear(5, 1), data={"partition": "classes:2"})


def test_dictionaries_of_samples_must_be_as_long():
    refused("must have as many entries each", torch.arange(80) % 3, x={"a": x, "b": x[:3]})
