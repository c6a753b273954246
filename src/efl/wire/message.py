"""The envelope: a small header, named payloads, and for requests the broadcasts the client has missed.

One blob: an envelope in MessagePack (version, kind, header, lengths) with a CRC-32, then the payloads, each with a
CRC-32 of its own that is checked when it is decoded. So what many clients are sent alike is encoded, and checked,
once. A CRC catches damage, not forgery. A header is a list of values whose order each kind knows, a kind is its place
in `KINDS`, and a usual part its place in `USUAL_PARTS`: names would take most of a short message. `efl.wire.protocol`
says what the headers hold.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import msgpack

from efl.errors import WireError
from efl.wire.limits import (
    LONGEST_HEADER,
    LONGEST_LENGTH,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_BROADCASTS,
    MOST_METRICS,
    MOST_PARTS,
    Limits,
)
from efl.wire.reader import CHECKSUM, Buffer, Reader, opened, sealed, varints

VERSION = 5
KINDS = ("request", "reply", "evaluate", "evaluated", "save", "restore", "state")  # by their number on the wire
USUAL_PARTS = ("update", "field", "buffers")  # by their number on the wire; others travel by name
_USUAL = dict(enumerate(USUAL_PARTS))
_NUMBER_OF_PART = {name: number for number, name in _USUAL.items()}
_KINDS_BY_NUMBER = dict(enumerate(KINDS))
_NUMBER_OF_KIND = {kind: number for number, kind in _KINDS_BY_NUMBER.items()}
PERSONAL = "personal"
"""The part of a request that is for one client alone."""
_UNLIMITED = Limits()


@dataclass
class Message:
    """``parts`` and ``log`` hold encoded payloads; not changed once made, but not frozen, which would take longer.

    >>> Message.from_bytes(Message("reply", [3, 0.5]).to_bytes(), "reply").header
    [3, 0.5]
    """

    kind: str
    header: Sequence[Any]
    parts: Mapping[str, Buffer] = field(default_factory=dict)
    log: Sequence[Buffer] = ()

    def to_bytes(self) -> bytes:
        """The blob that travels."""
        parts = {_NUMBER_OF_PART.get(name, name): len(blob) for name, blob in self.parts.items()}
        log = [len(blob) for blob in self.log]
        envelope: bytes = msgpack.packb([VERSION, _NUMBER_OF_KIND[self.kind], self.header, parts, log])
        return b"".join([varints([len(envelope)]), sealed(envelope), *self.parts.values(), *self.log])

    @classmethod
    def from_bytes(
        cls, blob: bytes, kinds: str | Collection[str], limits: Limits = _UNLIMITED, most_log: int = MOST_BROADCASTS
    ) -> Message:
        """The message in ``blob``, its payloads still encoded.

        Args:
            blob: Bytes that may be anything.
            kinds: The kind it must be of, or several.
            limits: The largest message that is taken.
            most_log: The most broadcasts it may bring.

        Returns:
            A message whose parts and log are no longer than ``limits`` say; its header is not looked into.

        Raises:
            WireError: It is damaged, of another version or kind, or too large.
        """
        kinds = (kinds,) if isinstance(kinds, str) else kinds
        reader = Reader(memoryview(blob))  # payloads are long: they stay where they are until they are decoded
        (length,) = reader.varints(1)
        most_log = min(most_log, limits.broadcasts)
        if length > LONGEST_HEADER + LONGEST_LENGTH * most_log:
            raise WireError(f"a header of {length} bytes")
        version, number, header, parts, log = _unpacked(opened(reader.bytes(length + CHECKSUM)), most_log)
        kind = _KINDS_BY_NUMBER.get(number) if type(number) is int else None
        if version != VERSION or kind is None or kind not in kinds:
            wanted = f"a {' or '.join(kinds)} of version {VERSION}"
            raise WireError(f"expected {wanted}, got {kind or _shown(number)} of version {_shown(version)}")
        if type(header) is not list or type(parts) is not dict or type(log) is not list:
            raise WireError("message of the wrong shape")
        sizes = _checked_sizes(parts, limits)
        if log:
            _check_log(log, limits, most_log)
        if sum(sizes.values()) + sum(log) != len(blob) - reader.at:
            raise WireError("the payloads are not as long as declared")
        return cls(kind, header, {name: reader.view(n) for name, n in sizes.items()}, [reader.view(n) for n in log])


def _unpacked(envelope: memoryview, most_log: int) -> list[Any]:
    """The five things in an envelope, of whatever types; MessagePack's reader itself does not recurse."""
    try:
        content = msgpack.unpackb(
            envelope,
            max_array_len=max(MOST_PARTS, most_log),
            max_map_len=MOST_METRICS,
            max_str_len=LONGEST_TEXT,
            max_bin_len=0,
            max_ext_len=0,
            strict_map_key=False,
        )
    except Exception as error:
        raise WireError(f"not a message: {error}") from None
    if not isinstance(content, list) or len(content) != 5:
        raise WireError("message of the wrong shape")
    return content


def _checked_sizes(parts: dict[Any, Any], limits: Limits) -> dict[str, int]:
    """How long each part is, by its name; each has one way to be written, and may be no longer than ``limits`` say."""
    if len(parts) > MOST_PARTS:
        raise WireError(f"a message of {len(parts)} parts")
    sizes: dict[str, int] = {}
    for key, size in parts.items():
        name = _USUAL.get(key) if type(key) is int else _own_name(key)
        if name is None or not is_size(size):
            raise WireError("message of the wrong shape")
        if limits.names is not None and name not in limits.names:
            raise WireError(f"unexpected part {name!r}")
        if size > (most := limits.part(name)):
            raise WireError(f"part {name!r} of {size} bytes; at most {most} are taken")
        sizes[name] = size
    return sizes


def _own_name(key: object) -> str | None:
    """The name of a part that is not a usual one; None if it is no name."""
    if key in _NUMBER_OF_PART:
        raise WireError("a usual part by its name instead of its number")
    return key if is_name(key) else None


def _check_log(log: list[Any], limits: Limits, most_log: int) -> None:
    if len(log) > most_log:
        raise WireError(f"a message of {len(log)} broadcasts; at most {most_log} are taken")
    if not all(map(is_size, log)):
        raise WireError("message of the wrong shape")
    if sum(log) > limits.catch_up:
        raise WireError(f"broadcasts of {sum(log)} bytes; at most {limits.catch_up} are taken")


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value is a name as parts and metrics have."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def is_size(value: object) -> bool:
    """Whether a value is a whole number ≥ 0; True and False are none."""
    return type(value) is int and value >= 0


def _shown(value: object) -> str:
    """A value of an unknown type for an error message; nested ones may be too deep to be shown."""
    return repr(value) if isinstance(value, str | int | float) else type(value).__name__
