"""The named payloads of a message, decoded, and what increments are coded by in a round."""

from __future__ import annotations

from collections.abc import Mapping

from efl.wire.context import Context
from efl.wire.limits import BUFFERS
from efl.wire.payloads import Field, Payload, decode
from efl.wire.reader import Buffer

CODED_BY = "coded_by"
"""Among the parts of an upload that its sender keeps: the field they are coded by."""


def decode_parts(blobs: Mapping[str, Buffer], context: Context, buffers: int) -> dict[str, Payload]:
    """The payloads of a message; each is as long as the model, but for its ``buffers`` float buffers."""
    return {name: decode(blob, Context.flat(buffers) if name == BUFFERS else context) for name, blob in blobs.items()}


def coding_context(shared: Mapping[str, Payload], plain: Context) -> Context:
    """What increments are coded by in a round: the factored field that all clients received, if there was one."""
    field = shared.get(coding_part(shared) or "")
    return Context(plain.layout, field.factored_fisher) if isinstance(field, Field) else plain


def coding_part(shared: Mapping[str, Payload]) -> str | None:
    """The name of the part that has that field."""
    fields = ((name, part) for name, part in shared.items() if isinstance(part, Field))
    return next((name for name, field in fields if field.factored_fisher is not None), None)


def decode_kept(blobs: Mapping[str, bytes], plain: Context, buffers: int) -> dict[str, Payload]:
    """The payloads of an upload that its sender kept, together with the field they are coded by, as `CODED_BY`."""
    field = {name: decode(blob, plain) for name, blob in blobs.items() if name == CODED_BY}
    parts = {name: blob for name, blob in blobs.items() if name != CODED_BY}
    return decode_parts(parts, coding_context(field, plain), buffers)
