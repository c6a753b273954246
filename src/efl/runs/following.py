"""Reading a run while it goes on: the rounds that were added to metrics.jsonl since one last looked."""

from __future__ import annotations

import os

from efl.errors import UserError
from efl.reading import DamagedError, opened, readable
from efl.runs.directory import LARGEST_METRICS, Record, RunDirectory, parse_record

AT_ONCE = 2**24  # bytes read at a time, so that a long history shows from its beginning


class Following:
    """The rounds of a run as they come; what was read is not read again.

    A run that is resumed replaces the file by one that ends at its checkpoint. It is then read from its beginning.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._start_over()

    def _start_over(self) -> None:
        self.rounds = 0  # read so far
        self._offset = 0
        self._file: tuple[int, int] | None = None  # device and inode

    def read(self) -> tuple[bool, list[Record]]:
        """The rounds added since the last call.

        Returns:
            Whether the file is another than last time, so that what was read before no longer counts; and the rounds.

        Raises:
            UserError: A line is damaged. One without an end is still being written.
        """
        path = self.directory.metrics
        try:
            found = os.stat(path)
        except FileNotFoundError:
            lost = self.rounds > 0
            self._start_over()
            return lost, []
        anew = self._file is not None and (self._file != (found.st_dev, found.st_ino) or found.st_size < self._offset)
        if anew:
            self._start_over()
        self._file = found.st_dev, found.st_ino
        return anew, self._read_on() if found.st_size > self._offset else []

    def _read_on(self) -> list[Record]:
        with readable(self.directory.metrics), opened(self.directory.metrics, LARGEST_METRICS) as file:
            file.seek(self._offset)
            data = file.read(AT_ONCE)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == AT_ONCE:
            raise UserError(f"{self.directory.metrics}:{self.rounds + 1}: damaged (a line without an end)")
        records: list[Record] = []
        for line in data[:end].splitlines():
            try:
                records.append(parse_record(line, self.rounds + len(records)))
            except DamagedError as error:
                where = f"{self.directory.metrics}:{self.rounds + len(records) + 1}"
                raise UserError(f"{where}: damaged ({error})") from None
        self._offset += end
        self.rounds += len(records)
        return records
