"""A model is one flat vector.

`FlatModel` wraps any `nn.Module`: its trainable parameters become one float32 vector ``w`` (n,), frozen
ones stay in the module. Float buffers (BatchNorm statistics) are a second vector that is averaged over
clients and never compressed or pulled; integer buffers are not exchanged.

Vectors travel on the CPU; rows in training and the module itself live on the model's ``device``.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from efl.errors import UserError
from efl.models.outputs import answer, tensor_of
from efl.models.vectors import flatten, lay_out, split


class FlatModel:
    """Any network as a flat vector.

    >>> model = FlatModel(nn.Linear(3, 2))
    >>> model.n, model.layout.names
    (8, ('weight', 'bias'))
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
        self.layout = lay_out(parameters)
        self.buffer_layout = lay_out(buffers)
        self.w = flatten(p for _, p in parameters).cpu()
        self.buffers = flatten(b for _, b in buffers).float().cpu()
        if not bool(torch.isfinite(self.w).all()) or not bool(torch.isfinite(self.buffers).all()):
            raise UserError("the model's initial parameters or float buffers have NaN or infinity")
        self.n = len(self.w)
        self.parameters = [p for _, p in parameters]
        owners = dict(self.module.named_modules())
        places = [name.rpartition(".") for name, _ in self.module.named_buffers()]
        self._places = {path + dot + leaf: (owners[path], leaf) for path, dot, leaf in places}
        self._untold = {name: b.clone() for name, b in self.module.named_buffers() if not b.is_floating_point()}
        self.bound: tuple[int, int] | None = None  # whose tensors the module computes on: rows, and a row of them

    def place(self, parameters: list[Tensor], buffers: list[Tensor]) -> None:
        """Let the module compute on these tensors, without copying them; other buffers start anew."""
        self.bound = None
        for parameter, view in zip(self.parameters, parameters, strict=True):
            parameter.data = view
        for spec, view in zip(self.buffer_layout.specs, buffers, strict=True):
            self._set_buffer(spec.name, view)
        for name, value in self._untold.items():
            self._set_buffer(name, value.clone())

    def _set_buffer(self, name: str, value: Tensor) -> None:
        owner, leaf = self._places[name]
        owner._buffers[leaf] = value

    def collect_buffers(self, views: list[Tensor]) -> None:
        """Bring home the values of buffers that the module replaced instead of changing them in place."""
        for spec, view in zip(self.buffer_layout.specs, views, strict=True):
            owner, leaf = self._places[spec.name]
            if (found := owner._buffers[leaf]) is not None and found is not view:
                view.copy_(found)
                owner._buffers[leaf] = view

    def answers(self, w: Tensor, buffers: Tensor, x: Any) -> Any:
        """What the model at ``w`` returns for ``x``, in evaluation mode: a tensor or several, on the CPU."""
        w, buffers = w.to(self.device), buffers.to(self.device)
        self.place(split(w, self.layout), split(buffers, self.buffer_layout))
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
        w, buffers = (vector.to(self.device, copy=True) for vector in (w, buffers))
        self.place(split(w, self.layout), split(buffers, self.buffer_layout))
