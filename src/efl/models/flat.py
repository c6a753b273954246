"""A model is one flat vector; a cohort of models is a matrix.

`FlatModel` wraps any `nn.Module`: its trainable parameters become one float32 vector ``w`` (n,), frozen
ones stay in the module. Float buffers (BatchNorm statistics) are a second vector that is averaged over
clients and never compressed or pulled; integer buffers are not exchanged.

Weights of convolutions lie in it channels last, which is the order that convolutions on a CPU compute in. Vectors
travel on the CPU; `Rows` and the module itself live on the model's ``device``.

`Rows` is C copies trained side by side: algorithms work on ``W`` (C, n) and the gradient ``G`` (C, n), the
network on views of the same memory.
"""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efl.errors import UserError
from efl.models.chain import Chain, LinearPass
from efl.models.gradients import Gradients

Named = dict[str, Tensor]
CONVOLUTION = 4  # dimensions of its weight


@dataclass(frozen=True)
class TensorSpec:
    """Where a tensor lies in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def _lay_out(tensors: Iterable[tuple[str, Tensor]]) -> tuple[TensorSpec, ...]:
    specs: list[TensorSpec] = []
    position = 0
    for name, tensor in tensors:
        specs.append(TensorSpec(name, tuple(tensor.shape), position, position + tensor.numel()))
        position += tensor.numel()
    return tuple(specs)


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors as one vector, in the order in which the weights of convolutions lie there."""
    pieces = [_channels_last(tensor.detach()).reshape(-1) for tensor in tensors]
    return torch.cat(pieces) if pieces else torch.zeros(0)


class FlatModel:
    """Any network as a flat vector.

    >>> model = FlatModel(nn.Linear(3, 2))
    >>> model.n, [spec.name for spec in model.layout]
    (8, ['weight', 'bias'])
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.module = copy.deepcopy(module).to(self.device)
        parameters = [(name, p) for name, p in self.module.named_parameters() if p.requires_grad]
        if not parameters:
            raise UserError("the model has no trainable parameters")
        odd = next((f"{name} is {p.dtype}" for name, p in parameters if p.dtype != torch.float32), None)
        if odd:
            raise UserError(f"the model must have float32 parameters, but {odd}; call .float() on it")
        buffers = [(name, b) for name, b in self.module.named_buffers() if b.is_floating_point()]
        self.layout = _lay_out(parameters)
        self.buffer_layout = _lay_out(buffers)
        self.w = flatten(p for _, p in parameters).cpu()
        self.buffers = flatten(b for _, b in buffers).float().cpu()
        if not bool(torch.isfinite(self.w).all()) or not bool(torch.isfinite(self.buffers).all()):
            raise UserError("the model's initial parameters or float buffers have NaN or infinity")
        self.n = len(self.w)
        self.chain = Chain.of(self.module)
        self.parameters = [p for _, p in parameters]
        owners = dict(self.module.named_modules())
        places = [name.rpartition(".") for name, _ in self.module.named_buffers()]
        self._places = {path + dot + leaf: (owners[path], leaf) for path, dot, leaf in places}
        self._untold = {name: b.clone() for name, b in self.module.named_buffers() if not b.is_floating_point()}
        self._bound: tuple[int, int] | None = None

    def rows(self, w: Tensor, count: int, buffers: Tensor | None = None, *, batched: bool = False) -> "Rows":
        """``count`` copies of the model at ``w``; ``batched`` runs them as one where the network allows it."""
        return Rows(self, w, self.buffers if buffers is None else buffers, count, batched=batched)

    def place(self, parameters: list[Tensor], buffers: list[Tensor]) -> None:
        """Let the module compute on these tensors, without copying them; other buffers start anew."""
        self._bound = None
        for parameter, view in zip(self.parameters, parameters, strict=True):
            parameter.data = view
        for spec, view in zip(self.buffer_layout, buffers, strict=True):
            self._set_buffer(spec.name, view)
        for name, value in self._untold.items():
            self._set_buffer(name, value.clone())

    def _set_buffer(self, name: str, value: Tensor) -> None:
        owner, leaf = self._places[name]
        owner._buffers[leaf] = value

    def collect_buffers(self, views: list[Tensor]) -> None:
        """Bring home the values of buffers that the module replaced instead of changing them in place."""
        for spec, view in zip(self.buffer_layout, views, strict=True):
            owner, leaf = self._places[spec.name]
            if (found := owner._buffers[leaf]) is not None and found is not view:
                view.copy_(found)
                owner._buffers[leaf] = view

    def outputs(self, w: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
        """What the model at ``w`` answers to ``x``, in evaluation mode."""
        w, buffers, x = (tensor.to(self.device) for tensor in (w, buffers, x))
        self.place(split(w, self.layout), split(buffers, self.buffer_layout))
        self.module.eval()
        with torch.no_grad():
            result: Tensor = self.module(x)
        return result.cpu()

    def module_at(self, w: Tensor, buffers: Tensor) -> nn.Module:
        """An independent module with these weights, for the user to keep, on the CPU."""
        self._hold(w, buffers)
        module = copy.deepcopy(self.module).cpu().eval()
        self._hold(self.w, self.buffers)
        return module

    def _hold(self, w: Tensor, buffers: Tensor) -> None:
        w, buffers = (vector.to(self.device, copy=True) for vector in (w, buffers))
        self.place(split(w, self.layout), split(buffers, self.buffer_layout))


def split(vector: Tensor, layout: tuple[TensorSpec, ...]) -> list[Tensor]:
    """Views of ``vector`` (…, n) as the tensors of ``layout``, leading dimensions kept."""
    return [_view(vector[..., spec.start : spec.stop], spec.shape) for spec in layout]


def _view(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    leading = piece.shape[:-1]
    if len(shape) != CONVOLUTION:
        return piece.view(*leading, *shape)
    outputs, inputs, height, width = shape
    return piece.view(*leading, outputs, height, width, inputs).movedim(-1, -3)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.movedim(1, -1) if tensor.dim() == CONVOLUTION else tensor


_identities = itertools.count()


class Rows:
    """C models as a matrix: ``W`` and ``G`` (C, n), ``buffers`` (C, b)."""

    def __init__(self, model: FlatModel, w: Tensor, buffers: Tensor, count: int, *, batched: bool) -> None:
        self.model = model
        self.W = w.to(model.device).expand(count, -1).clone()
        self.buffers = buffers.to(model.device).expand(count, -1).clone()
        self.batched = batched and model.chain is not None
        self._parameters: dict[int, Named] = {}
        self._gradients: dict[int, Named] = {}
        self._identity = next(_identities)
        if not self.batched:
            self._row_views = [split(row, model.layout) for row in self.W]
            self._buffer_views = [split(row, model.buffer_layout) for row in self.buffers]

    @cached_property
    def G(self) -> Tensor:
        """Where gradients go, if anybody asks for them."""
        return torch.zeros_like(self.W)

    @cached_property
    def _gradient_views(self) -> list[list[Tensor]]:
        return [split(row, self.model.layout) for row in self.G]

    def targets(self, y: Tensor) -> Tensor:
        """Labels (…, C, B) of many steps in the form that `gradient` takes them quickest."""
        return _chosen(y, self.model.chain.outputs, 1 / y.shape[-1]) if self.batched and self.model.chain else y

    def gradient(self, active: int, x: Tensor, y: Tensor) -> Tensor:
        """Fill ``G`` for the first ``active`` rows with the gradient on x (active, B, …); return their losses."""
        if self.batched:
            return self._chain_gradient(active, x, y)
        return torch.stack([self._row_gradients(row, x[row], y[row], self._into_g) for row in range(active)])

    def descend(self, active: int, x: Tensor, y: Tensor, eta: float) -> Tensor:
        """Move the first ``active`` rows of ``W`` by −η times that gradient; return their losses.

        Weights of linear layers take it up as it is multiplied out, so for them ``G`` is neither written nor read,
        which saves a third of a step where it does not fit into the cache. Last bits differ from those of `gradient`
        and a subtraction.
        """
        if self.batched:
            return self._chain_descend(active, x, y, eta)
        move = partial(self._onto_w, eta=eta)
        return torch.stack([self._row_gradients(row, x[row], y[row], move) for row in range(active)])

    def use(self, row: int, *, training: bool) -> nn.Module:
        """The module, computing on this row."""
        model, address = self.model, (self._identity, row)
        if model._bound != address:
            model.place(self._row_views[row], self._buffer_views[row])
            model._bound = address
        if model.module.training != training:
            model.module.train(training)
        return model.module

    def parameters(self, active: int) -> Named:
        """The first ``active`` rows of ``W`` as tensors (active, …), by name."""
        if active not in self._parameters:
            self._parameters[active] = self._named(self.W[:active])
        return self._parameters[active]

    def gradients(self, active: int) -> Named:
        """The first ``active`` rows of ``G`` as tensors (active, …), by name."""
        if active not in self._gradients:
            self._gradients[active] = self._named(self.G[:active])
        return self._gradients[active]

    def _named(self, matrix: Tensor) -> Named:
        layout = self.model.layout
        return dict(zip((spec.name for spec in layout), split(matrix, layout), strict=True))

    def through_chain(self, x: Tensor, y: Tensor, share: float) -> tuple[Tensor, Iterator[LinearPass]]:
        """Run the first rows as one: ``share`` × the sum of each row's losses (C,), and the linear layers, last first.

        Derivatives are those of these sums. ``y`` are labels, or what `targets` made of them for the same share.
        """
        assert self.model.chain is not None
        parameters = self.parameters(len(x))
        passed = self.model.chain.forward(parameters, x)
        logarithms = passed[-1].log_softmax(1)
        chosen = y if y.is_floating_point() else _chosen(y, logarithms.shape[1], share)
        delta = torch.ops.aten._log_softmax_backward_data(chosen, logarithms, 1, torch.float32)
        losses = (logarithms * chosen).sum((1, 2))
        return losses, self.model.chain.backward(parameters, passed, delta)

    def _row_gradients(self, row: int, x: Tensor, y: Tensor, use: Callable[[int, Gradients], None]) -> Tensor:
        module = self.use(row, training=True)
        with Gradients(self.model.parameters) as gradients:
            outputs = module(x)
        loss = sample_losses(outputs, y).mean()
        gradients.backward(loss)
        use(row, gradients)
        self.model.collect_buffers(self._buffer_views[row])
        return loss.detach()

    def _into_g(self, row: int, gradients: Gradients) -> None:
        gradients.into(self._gradient_views[row])

    def _onto_w(self, row: int, gradients: Gradients, eta: float) -> None:
        gradients.onto(self._row_views[row], eta)

    def _chain_gradient(self, active: int, x: Tensor, y: Tensor) -> Tensor:
        gradients = self.gradients(active)
        losses, layers = self.through_chain(x, y, 1 / x.shape[1])
        for layer in layers:
            torch.bmm(layer.delta.mT, layer.inputs, out=gradients[layer.weight])
            if layer.bias is not None:
                torch.sum(layer.delta, 1, out=gradients[layer.bias])
        return losses

    def _chain_descend(self, active: int, x: Tensor, y: Tensor, eta: float) -> Tensor:
        parameters = self.parameters(active)
        losses, layers = self.through_chain(x, y, 1 / x.shape[1])
        for layer in layers:
            parameters[layer.weight].baddbmm_(layer.delta.mT, layer.inputs, alpha=-eta)
            if layer.bias is not None:
                parameters[layer.bias].sub_(layer.delta.sum(1), alpha=eta)
        return losses


def _chosen(y: Tensor, classes: int, share: float) -> Tensor:
    """−share at the label, zero elsewhere (…, classes, B): the loss's derivative by logarithms of probabilities."""
    chosen = torch.zeros(*y.shape[:-1], classes, y.shape[-1], device=y.device)
    return chosen.scatter_(-2, y.unsqueeze(-2), -share)


def sample_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every sample, f_k before the mean; of a sequence, the mean over its positions."""
    if y.dim() == 1:
        return F.cross_entropy(outputs, y, reduction="none")
    return F.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
