"""Files written whole or not at all."""

import os
import subprocess
import sys

from efl.storage import write_atomically


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = [f"file.{ended.pid}.part", f"file.{os.getppid()}.part", f"other.{ended.pid}.part", "file.mine.part"]
    for name in names:
        (tmp_path / name).write_text("half of")
    write_atomically(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert {path.name for path in tmp_path.iterdir()} == {"file", *names[1:]}
