"""Reading bytes that may be anything, and writing whole numbers shortly."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zlib_ng.zlib_ng import crc32

from efl.errors import WireError

Buffer = bytes | memoryview
LONGEST_VARINT = 9
_FLOAT = struct.Struct("<f")
CHECKSUM = 4  # bytes


class Reader:
    """Takes a message apart from front to back; asking for more than there is is a `WireError`."""

    def __init__(self, data: Buffer) -> None:
        self.data, self.at = data, 0

    def bytes(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        return bytes(self.view(count))

    def array(self, count: int, dtype: str = "u1") -> NDArray[Any]:
        """The next ``count`` numbers as an array, read-only and without a copy."""
        return np.frombuffer(self.view(count * np.dtype(dtype).itemsize), dtype=dtype)

    def view(self, count: int) -> Buffer:
        """The next ``count`` bytes; of a memoryview where they lie, without a copy."""
        if not 0 <= count <= len(self.data) - self.at:
            raise WireError("the payload ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self) -> NDArray[np.uint8]:
        """All bytes that are left, which stay to be read."""
        return np.frombuffer(self.data, dtype=np.uint8)[self.at :]

    def floats(self, count: int) -> NDArray[np.float32]:
        """The next ``count`` float32, little end first, all finite."""
        values = self.array(count, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise WireError("a value is not finite")
        return values

    def scales(self, count: int) -> NDArray[np.float32]:
        """The next ``count`` float32, none of them negative."""
        if count == 1:  # most increments have one: NumPy's checks would take longer than the rest of reading it
            (scale,) = _FLOAT.unpack(self.view(_FLOAT.size))
            if not 0 <= scale < math.inf:
                raise WireError("a scale is negative or not finite")
            return np.array([scale], dtype=np.float32)
        scales = self.floats(count)
        if not (scales >= 0).all():
            raise WireError("a scale is negative")
        return scales

    def byte(self) -> int:
        """The next byte."""
        return self.view(1)[0]

    def varints(self, count: int) -> list[int]:
        """The next ``count`` whole numbers: seven bits a byte, low ones first, the eighth says that more follow."""
        numbers: list[int] = []
        data, at, end = self.data, self.at, len(self.data)
        for _ in range(count):
            number = shift = 0
            while True:
                if at == end:
                    raise WireError("the payload ends too early")
                byte = data[at]
                at += 1
                number |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
                if shift == 7 * LONGEST_VARINT:
                    raise WireError("a whole number is too long")
            numbers.append(number)
        self.at = at
        return numbers

    def inflated(self, length: int, expected: int) -> NDArray[np.uint8]:
        """What zlib compressed into the next ``length`` bytes; it must be, and never makes more than, ``expected``."""
        machine = zlib.decompressobj()
        data = machine.decompress(self.bytes(length), expected + 1)
        if len(data) != expected or not machine.eof or machine.unused_data:
            raise WireError("compressed codes have the wrong length")
        return np.frombuffer(data, dtype=np.uint8)

    def end(self) -> None:
        """Nothing may follow."""
        if self.at != len(self.data):
            raise WireError(f"{len(self.data) - self.at} bytes too many")


def deflated_bytes(count: int) -> int:
    """The most bytes that zlib makes of so many."""
    return count + count // 1000 + 64


def sealed(body: bytes) -> bytes:
    """With a CRC-32 at the end, by which `opened` tells damage."""
    return body + crc32(body).to_bytes(CHECKSUM, "little")


def opened(blob: Buffer) -> memoryview:
    """What was sealed."""
    body, tail = memoryview(blob)[:-CHECKSUM], blob[-CHECKSUM:]
    if len(tail) < CHECKSUM or crc32(body) != int.from_bytes(tail, "little"):
        raise WireError("damaged: checksum does not match")
    return body


def varints(numbers: Iterable[int]) -> bytes:
    """Whole numbers ≥ 0 as `Reader.varints` reads them.

    >>> varints([5, 300]).hex()
    '05ac02'
    """
    out = bytearray()
    for number in numbers:
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
    return bytes(out)
