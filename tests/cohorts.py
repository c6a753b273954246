"""Four clients with a chain, what they do by every backend and by hand in float64, and every form of a step."""

import dataclasses
import itertools

import torch
import torch.nn.functional as F
from backends import NAMES, backend
from torch import nn
from torch.func import functional_call

from efl import Federation
from efl.models import FlatModel
from efl.models.vectors import flatten, split
from efl.rng import Purpose, stream
from efl.training.backends.native import NativeWork
from efl.training.batches import batch_indices
from efl.training.local_work import Assignment, RoundSettings
from efl.training.observers import SquaredGradients
from efl.training.step import Step
from efl.training.trainer import Trainer

SEED, ROUND, ETA, CLIENTS, CLASSES = 3, 7, 0.2, 4, 3
STEPS = (6, 4, 4, 1)
# Native with samples that only PyTorch can fetch takes its steps one by one.
WAYS = [*NAMES, "native, fetched by PyTorch"] if "native" in NAMES else NAMES


class Cohort:
    """A federation of four clients and a chain; what some of them do, by a backend or by hand."""

    def __init__(self, features=6, hidden=(5,), slope=0.0, bias=True, batch=5, steps=STEPS, outputs=CLASSES):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(60, features, generator=generator)
        y = torch.randint(0, CLASSES, (60,), generator=generator)
        self.federation = Federation.from_tensors(x, y, CLIENTS, "iid", classes=CLASSES)
        layers, inputs = [], features
        for width in hidden:
            layers += [nn.Linear(inputs, width, bias), nn.LeakyReLU(slope) if slope else nn.ReLU()]
            inputs = width
        self.model = FlatModel(nn.Sequential(*layers, nn.Linear(inputs, outputs, bias)))
        self.steps = steps
        self.settings = RoundSettings(ROUND, ETA, max(steps), batch, self.model.layout)

    def work(self, way, clients=range(CLIENTS), **more):
        """Local work of these clients, who have most to do first."""
        name, _, by_pytorch = way.partition(", ")
        federation = self.federation
        if by_pytorch:
            federation = dataclasses.replace(federation, inputs=lambda x: x.clone())
        trainer = Trainer(backend(name, self.model), federation, SEED, **more)
        assignments = [Assignment(client, self.steps[client]) for client in clients]
        work = trainer.work(assignments, self.model.w, self.settings, {}, {})
        assert isinstance(work, NativeWork) == (way == "native")
        return work

    def batches(self, client):
        """The mini-batches of a client, one after the other."""
        rng = stream(SEED, Purpose.BATCHES, ROUND, client)
        chosen = batch_indices(self.federation.train[client], self.steps[client], self.settings.batch_size, rng)
        return [self.federation.batch(torch.from_numpy(some)) for some in chosen]

    def gradient(self, w, x, y):
        """Loss and gradient at ``w`` (n,), in float64."""
        parameters = [part.clone().requires_grad_() for part in split(w.double(), self.model.layout)]
        named = dict(zip(self.model.layout.names, parameters, strict=True))
        loss = F.cross_entropy(functional_call(self.model.module, named, (x.double(),)), y)
        return loss.item(), flatten(torch.autograd.grad(loss, parameters))

    def by_hand(self, step):
        """The models, running Fisher diagonals and mean losses after all steps, client by client."""
        models, fishers, losses = [], [], []
        for client in range(CLIENTS):
            w, drift, keep, shift = self.model.w.double(), *everywhere(step, client, self.model.n)
            watched, heard = [], []
            for number, (x, y) in enumerate(self.batches(client)):
                loss, gradient = self.gradient(w, x, y)
                heard.append(loss)
                if number % SquaredGradients.EVERY == 0:
                    watched.append(gradient**2)
                if step.explicit:
                    w = keep * w + shift - ETA * (gradient + drift)
                else:
                    w = keep * (w - ETA * (gradient + drift)) + shift
            models.append(w)
            fishers.append(self.settings.batch_size * torch.stack(watched).mean(0))
            losses.append(sum(heard) / len(heard))
        return torch.stack(models), torch.stack(fishers), torch.tensor(losses)


def everywhere(step, client, n):
    """Drift, factors and shifts (n,) of one client, in float64, whatever the step leaves out."""

    def own(tensor, otherwise):
        if tensor is None:
            return torch.full((n,), otherwise, dtype=torch.float64)
        return (tensor[client] if tensor.dim() == 2 else tensor).double()

    drift, keep, shift = own(step.drift, 0.0), own(step.keep, 1.0), own(step.shift, 0.0)
    if step.index is None:
        return drift, keep, shift
    every, none = torch.ones(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    every[step.index], none[step.index] = keep, shift
    return drift, every, none


@dataclasses.dataclass(frozen=True)
class Form:
    """What a step is made of: which of its tensors there are, and whether clients have their own."""

    drift: str
    keep: str
    shift: str
    index: bool
    explicit: bool

    def __str__(self):
        said = [f"{name}-{value}" for name, value in vars(self).items() if value not in ("no", False)]
        return " ".join(said).replace("-True", "") or "plain"

    def step(self, n, clients=CLIENTS):
        generator = torch.Generator().manual_seed(n)
        index = torch.randperm(n, generator=generator)[: n // 3] if self.index else None

        def tensor(kind, width):
            shape = {"shared": (width,), "own": (clients, width)}.get(kind)
            return None if shape is None else torch.rand(shape, generator=generator) - 0.5

        pulled = n if index is None else len(index)
        drift, keep, shift = tensor(self.drift, n), tensor(self.keep, pulled), tensor(self.shift, pulled)
        return Step(drift, None if keep is None else keep + 0.5, shift, index, self.explicit)


KINDS = ("no", "shared", "own")
FORMS = [
    Form(drift, keep, shift, index, explicit)
    for drift, keep, shift, index, explicit in itertools.product(KINDS, KINDS, KINDS, (False, True), (False, True))
    if (keep == "no") == (shift == "no") and not (index and keep == "no")
]


def of_clients(step, clients):
    """The step of some of the clients."""
    drift, keep, shift = (
        tensor[list(clients)] if tensor is not None and tensor.dim() == 2 else tensor
        for tensor in (step.drift, step.keep, step.shift)
    )
    return Step(drift, keep, shift, step.index, step.explicit)


def train(work, step, watched):
    """The models, running Fisher diagonals (if watched) and mean losses after all steps."""
    observer = SquaredGradients(work.W, work.settings.batch_size) if watched else None
    work.train(step, observer)
    return work.W, observer.mean(work.steps_done) if observer else None, work.losses
