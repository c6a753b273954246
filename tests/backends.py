"""Every backend by its name, for tests that compare them."""

from efl.models import FlatModel
from efl.native import NotCompiledError, loops
from efl.training.backends.chain import Chain
from efl.training.backends.native import CompiledChain
from efl.training.backends.rows import Rows
from efl.training.backends.selection import Backend, Batched, Eager, Native

NAMES = ["eager", "batched"]
try:
    loops()
    NAMES.append("native")
except NotCompiledError:  # then there are only two
    pass


def backend(name: str, model: FlatModel) -> Backend:
    """``eager``, ``batched`` or ``native``; the latter two only for chains."""
    if name == "eager":
        return Eager(model)
    chain = Chain.of(model.module)
    assert chain is not None
    if name == "batched":
        return Batched(model, chain)
    assert name == "native"
    compiled = CompiledChain.of(chain, model)
    assert compiled is not None
    return Native(model, chain, compiled)


def rows_of(name: str, model: FlatModel, count: int, w=None) -> Rows:
    """``count`` rows of that backend, at ``w`` or where the model starts."""
    return backend(name, model).rows(model.w if w is None else w, count)
