"""What may happen to a message on its way, or to one that somebody forged: checksums are right again afterwards."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import msgpack

from efl.wire.reader import CHECKSUM, Reader, sealed, varints

FRONT = 80  # bytes in which counts and lengths are
DEEPEST = 5000  # levels
LONGEST = 2**20  # bytes that a message grows by, now and then
ODD: tuple[Any, ...] = (
    None, True, False, -1, 0, 2**31, 2**63, 2**64 - 1, -(2**63), 0.5, math.nan, math.inf, "", "x" * 300, b"x", [], {},
)  # fmt: skip


def mutated(blob: bytes, sealed_at_end: bool, random: Random) -> bytes:
    """A payload or a message with something wrong; often, but not always, sealed anew."""
    if random.random() < 0.02:
        return random.randbytes(random.randrange(400))
    if random.random() < 0.02:
        return damaged(blob, random)
    if sealed_at_end:
        return sealed(damaged(blob[:-CHECKSUM], random))
    return _forged(blob, random)


def damaged(blob: bytes, random: Random) -> bytes:
    """Some bytes changed, cut, put in, repeated or added; most of it near the front."""
    data = bytearray(blob)
    for _ in range(random.choice((1, 1, 2, 4))):
        kind = random.randrange(12)
        reach = len(data) if kind < 4 else min(len(data), FRONT)
        at = random.randrange(reach) if reach else 0
        if kind in (0, 4, 5, 6, 7) and data:
            data[at] = random.randrange(256)
        elif kind in (1, 8):
            data[at:at] = random.randbytes(random.randrange(1, 10))
        elif kind == 2:
            del data[at:]
        elif kind == 9:
            del data[at : at + random.randrange(1, 9)]
        elif kind == 10:
            data[at : at + 8] = random.choice((b"\xff" * 8, bytes(8), b"\xff" * 8 + b"\x7f", b"\x80" * 8 + b"\x01"))
        elif kind == 3:
            data[at:at] = data[: random.randrange(min(len(data), 1000) + 1)]
        else:
            data += random.randbytes(random.randrange(LONGEST if random.random() < 0.01 else 1000))
    return bytes(data)


def _forged(blob: bytes, random: Random) -> bytes:
    """A message whose envelope or one of whose payloads is damaged, and then sealed anew."""
    reader = Reader(blob)
    envelope = reader.bytes(*reader.varints(1))
    body = blob[reader.at + CHECKSUM :]
    choice = random.randrange(8)
    if choice < 2:
        return _enclosed(damaged(envelope, random), body)
    content = msgpack.unpackb(envelope, strict_map_key=False)
    if choice < 5:
        content, body = _with_payload_damaged(content, body, random)
        return _enclosed(msgpack.packb(content), body)
    if choice == 5:
        return _enclosed(_nested(content, random), body)
    _change_entry(content, random)
    return _enclosed(msgpack.packb(content), body)


def _enclosed(envelope: bytes, body: bytes) -> bytes:
    return b"".join([varints([len(envelope)]), sealed(envelope), body])


def _with_payload_damaged(content: list[Any], body: bytes, random: Random) -> tuple[list[Any], bytes]:
    """One payload damaged and sealed anew; the envelope says its new length."""
    slots = [(content[3], name) for name in content[3]] + [(content[4], place) for place in range(len(content[4]))]
    if not slots:
        return content, body + random.randbytes(random.randrange(100))
    chosen, start = random.randrange(len(slots)), 0
    for where, key in slots[:chosen]:
        start += where[key]
    where, key = slots[chosen]
    stop = start + where[key]
    payload = sealed(damaged(body[start : stop - CHECKSUM], random))
    where[key] = len(payload)
    return content, b"".join([body[:start], payload, body[stop:]])


def _change_entry(content: list[Any], random: Random) -> None:
    """One value of the envelope, anywhere in it, becomes something odd."""
    header, parts, log = content[2], content[3], content[4]
    choice = random.randrange(7)
    if choice == 0:
        content[random.randrange(5)] = random.choice(ODD)
    elif choice in (1, 2, 3):
        place = random.randrange(len(header) + 1)
        header[place : place + 1] = [random.choice(ODD)]
    elif choice == 4:
        header.pop(random.randrange(len(header)))
    elif choice == 5 and parts:
        parts[random.choice([*parts, "", "x" * 300])] = random.choice(ODD)
        parts |= {f"more {i}": 0 for i in range(random.randrange(40))}
    elif log:
        log[random.randrange(len(log))] = random.choice(ODD)
    else:
        log += [0] * random.randrange(20_000)


def _nested(content: list[Any], random: Random) -> bytes:
    """A value that is a list of lists, or a map of maps, of some depth, in place of one of the five."""
    depth = random.choice((3, 10, 500, 1000, DEEPEST))
    deep = random.choice((b"\x91", b"\x81\xa1a", b"\x92\x01")) * depth + b"\x01"
    place = random.randrange(6)
    pieces = [msgpack.packb(value) for value in content]
    if place == 5:
        pieces[2] = b"\x91" + deep
    else:
        pieces[place] = deep
    return b"\x95" + b"".join(pieces)
