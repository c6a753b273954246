"""Vectors on their way, and their bytes: one small file for each kind of payload.

`Dense` is a vector's new value in full. `Ternary` is an increment from {-μ, 0, μ} (Algorithm 2), `Lattice` one of whole
multiples of a step, `Signs` one from {-μ, μ}, a bit for each parameter, `Quantised` one rounded to a byte for each
parameter, `OnSupport` one at positions that both sides know. `Field` is a Fisher diagonal with the anchor it pulls to.
`encode` and `decode` are exact inverses, but for what a short `Field` rounds.

docs/wire.md has the format byte by byte; `register` adds a kind.
"""

from efl.wire.payloads.dense import Dense
from efl.wire.payloads.field import Field
from efl.wire.payloads.lattice import Lattice
from efl.wire.payloads.quantised import Quantised
from efl.wire.payloads.registry import Payload, decode, encode, kind_of, largest_payload, register
from efl.wire.payloads.signs import Signs
from efl.wire.payloads.support import OnSupport
from efl.wire.payloads.ternary import Ternary

__all__ = [
    "Dense",
    "Field",
    "Lattice",
    "OnSupport",
    "Payload",
    "Quantised",
    "Signs",
    "Ternary",
    "decode",
    "encode",
    "kind_of",
    "largest_payload",
    "register",
]
