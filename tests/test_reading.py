"""The one reader of files: limits before anything is parsed."""

import os

import pytest

from efl import UserError
from efl.reading import DEPTH, DamagedError, parse_json, parse_msgpack, parse_toml, read_bytes, read_text, readable


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), "nested too deeply"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is there twice"),
        ("[1e400]", "a number is out of range"),
        ("[-1e400]", "a number is out of range"),
        (f"[{10**21}]", "a number is out of range"),
        ("[1", "line 1: not valid JSON"),
        ('{\n"a": 1,\n}', "line 3: not valid JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
    ],
)
def test_json_that_is_refused(text, why):
    with pytest.raises(DamagedError, match=why):
        parse_json(text)


def test_json_that_is_read():
    assert parse_json("[" * DEPTH + "]" * DEPTH) is not None
    assert parse_json('["' + "[" * 1000 + '\\"' + "{" * 1000 + '"]' + " " * 100) == ["[" * 1000 + '"' + "{" * 1000]
    assert parse_json(b"\xef\xbb\xbf[1e99, -0.5, 18446744073709551615]") == [1e99, -0.5, 2**64 - 1]
    assert parse_json("[Infinity]") == [float("inf")]
    with pytest.raises(DamagedError, match="Infinity is no number"):
        parse_json("[Infinity]", finite=True)


@pytest.mark.parametrize("text", ["a = 1e400", f"a = {10**30}", "a = " + "[" * 99 + "]" * 99, "a = 1\na = 2", "a"])
def test_toml_that_is_refused(text):
    with pytest.raises(DamagedError):
        parse_toml(text)


def test_toml_may_say_that_there_is_no_limit():
    assert parse_toml("a = inf\nb = -inf\nc = [1, 2]\r\n") == {"a": float("inf"), "b": float("-inf"), "c": [1, 2]}


@pytest.mark.parametrize(
    "data", [b"", b"\x91" * 2000 + b"\x01", b"\x82\x01\x02\x01\x03", b"\xc1", b"\xdf\xff\xff\xff\xff"]
)
def test_msgpack_that_is_refused(data):
    with pytest.raises(DamagedError):
        parse_msgpack(data)


def test_only_regular_files_of_a_limited_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(DamagedError, match="not a regular file"):
            read_bytes(path)
    with pytest.raises(DamagedError, match="5 bytes, more than the 4 it may have"):
        read_bytes(tmp_path / "file", most=4)
    assert read_text(tmp_path / "file", most=5) == "12345"


def test_what_is_wrong_with_a_file_is_one_line_that_says_what_to_do(tmp_path):
    def message(error):
        with pytest.raises(UserError) as raised, readable("book", "delete it"):
            raise error
        return str(raised.value)

    assert message(FileNotFoundError()) == "book: no such file; delete it"
    assert message(PermissionError(13, "Permission denied")) == "book: cannot be read (Permission denied); delete it"
    assert message(DamagedError("two\nlines")) == "book: damaged (two lines); delete it"
    assert message(KeyError("a")) == "book: damaged (KeyError: 'a'); delete it"
    assert message(UserError("as it is")) == "as it is"
