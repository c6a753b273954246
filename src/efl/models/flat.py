"""A model is one flat vector.

`FlatModel` wraps any `nn.Module`: the parameters that clients train together become one float32 vector ``w`` (n,),
frozen ones stay in the module. Float buffers (BatchNorm statistics) are a second vector that is averaged over clients
and never compressed or pulled. Parameters and float buffers that stay with each client are a third, ``personal``, which
never travels; it may follow ``w`` in a vector that stands for one client's whole model. What else there are of buffers
is not exchanged.

Vectors travel on the CPU; rows in training and the module itself live on the model's ``device``.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from efl.errors import UserError
from efl.models.outputs import answer, tensor_of
from efl.models.selection import Names, Selection
from efl.models.vectors import flatten, lay_out, split


class FlatModel:
    """Any network as a flat vector.

    Args:
        module: The network; it is copied.
        device: Where it computes.
        trainable: Patterns of the parameters to train (`efl.models.selection`); by default those that require a
            gradient.
        personal: Patterns of what stays with each client.

    >>> model = FlatModel(nn.Linear(3, 2))
    >>> model.n, model.layout.names
    (8, ('weight', 'bias'))
    >>> FlatModel(nn.Linear(3, 2), personal=["bias"]).layout.names
    ('weight',)
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        trainable: Sequence[str] = (),
        personal: Sequence[str] = (),
    ) -> None:
        self.device = torch.device(device)
        self.module = copy.deepcopy(module).to(self.device)
        chosen = Selection.of(self.module, trainable, personal)
        parameters = [*chosen.shared, *chosen.personal]
        buffers = [*chosen.buffers, *chosen.personal_buffers]
        _check(chosen)
        self.layout, self.buffer_layout = lay_out(chosen.shared), lay_out(chosen.buffers)
        self.trained_layout, self._all_buffers = lay_out(parameters), lay_out(buffers)
        self.personal_parameters, self._personal_buffers = lay_out(chosen.personal), lay_out(chosen.personal_buffers)
        self.w = flatten(p for _, p in chosen.shared).cpu()
        self.buffers = flatten(b for _, b in chosen.buffers).float().cpu()
        self.personal = flatten(t for _, t in [*chosen.personal, *chosen.personal_buffers]).float().cpu()
        if not all(bool(torch.isfinite(vector).all()) for vector in (self.w, self.buffers, self.personal)):
            raise UserError("the model's initial parameters or float buffers have NaN or infinity")
        self.n = len(self.w)
        self.parameters = [p for _, p in parameters]
        names = Names(self.module)
        self._places = {name: names.places(name) for name, _ in self.module.named_buffers()}
        self._constant = {name: b.clone() for name, b in chosen.constant}
        self._frozen = chosen.frozen
        self.bound: tuple[int, int] | None = None  # whose tensors the module computes on: rows, and a row of them

    def whole(self, w: Tensor) -> Tensor:
        """``w`` (n,) followed by the personal vector training starts from, if there is one."""
        if not len(self.personal) or len(w) > self.n:
            return w
        return torch.cat([w, self.personal.to(w.device)])

    @property
    def personal_names(self) -> tuple[str, ...]:
        """The parameters and buffers that stay with each client."""
        return (*self.personal_parameters.names, *self._personal_buffers.names)

    def views(self, whole: Tensor, buffers: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Views of a whole model and of its buffers as the tensors that `place` takes."""
        trained = self.trained_layout.n
        parameters = split(whole[:trained], self.trained_layout)
        return parameters, [*split(buffers, self.buffer_layout), *split(whole[trained:], self._personal_buffers)]

    def place(self, parameters: list[Tensor], buffers: list[Tensor]) -> None:
        """Let the module compute on these tensors, without copying them; other buffers start anew."""
        self.bound = None
        for parameter, view in zip(self.parameters, parameters, strict=True):
            parameter.data = view
        for name, view in zip(self._all_buffers.names, buffers, strict=True):
            self._set_buffer(name, view)
        for name, value in self._constant.items():
            self._set_buffer(name, value.clone())

    def _set_buffer(self, name: str, value: Tensor) -> None:
        for owner, leaf in self._places[name]:
            owner._buffers[leaf] = value

    def train(self, training: bool = True) -> None:
        """Put the module into training or evaluation mode, but for frozen layers."""
        self.module.train(training)
        for layer in self._frozen:
            layer.training = False

    def collect_buffers(self, views: list[Tensor]) -> None:
        """Bring home the values of buffers that the module replaced instead of changing them in place."""
        for name, view in zip(self._all_buffers.names, views, strict=True):
            for owner, leaf in self._places[name]:
                if (found := owner._buffers[leaf]) is not None and found is not view:
                    view.copy_(found)
                    owner._buffers[leaf] = view

    def answers(self, w: Tensor, buffers: Tensor, x: Any) -> Any:
        """What the model at ``w``, or at a whole one, returns for ``x``, in evaluation mode, on the CPU."""
        w, buffers = self.whole(w).to(self.device), buffers.to(self.device)
        self.place(*self.views(w, buffers))
        self.module.eval()
        with torch.no_grad():
            found = answer(self.module, tree_map_only(Tensor, lambda tensor: tensor.to(self.device), x))
        return tree_map_only(Tensor, lambda tensor: tensor.cpu(), found)

    def outputs(self, w: Tensor, buffers: Tensor, x: Any) -> Tensor:
        """The tensor among these that a loss takes."""
        return tensor_of(self.answers(w, buffers, x))

    def module_at(self, w: Tensor, buffers: Tensor) -> nn.Module:
        """An independent module with these weights, for the user to keep, on the CPU."""
        self._hold(w, buffers)
        module = copy.deepcopy(self.module).cpu().eval()
        self._hold(self.w, self.buffers)
        return module

    def _hold(self, w: Tensor, buffers: Tensor) -> None:
        whole = self.whole(w).to(self.device, copy=True)
        parameters, views = self.views(whole, buffers.to(self.device))
        self.place(parameters, [view.clone() for view in views])  # files take no tensors that share memory


def _check(chosen: Selection) -> None:
    """Raise `UserError` if there is nothing to train, or not in float32."""
    if not chosen.shared and not chosen.personal:
        raise UserError("the model has no trainable parameters")
    if not chosen.shared:
        raise UserError("all parameters that are trained stay with the clients; leave some to be trained together")
    parameters = [*chosen.shared, *chosen.personal]
    odd = next((f"{name} is {p.dtype}" for name, p in parameters if p.dtype != torch.float32), None)
    if odd:
        raise UserError(f"the model must have float32 parameters, but {odd}; call .float() on it")
