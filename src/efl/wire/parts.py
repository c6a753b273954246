"""The named payloads of a message, decoded, and what increments are coded by in a round."""

from __future__ import annotations

from collections.abc import Mapping

from efl.wire.context import Context
from efl.wire.limits import BUFFERS
from efl.wire.payloads import Field, Payload, decode


def decode_parts(blobs: Mapping[str, bytes], context: Context, buffers: int) -> dict[str, Payload]:
    """The payloads of a message; each is as long as the model, but for its ``buffers`` float buffers."""
    flat = Context.flat(buffers)
    return {name: decode(blob, flat if name == BUFFERS else context) for name, blob in blobs.items()}


def coding_context(shared: Mapping[str, Payload], plain: Context) -> Context:
    """What increments are coded by in a round: the factored field that all clients received, if there was one."""
    found = (part.factored_fisher for part in shared.values() if isinstance(part, Field))
    factored = next((one for one in found if one is not None), None)
    return plain if factored is None else Context(plain.layout, factored)
