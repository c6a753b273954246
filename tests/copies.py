"""What is to leave no traces runs in a copy of this process: imports are made already, which takes seconds anew."""

import importlib
import multiprocessing
import sys
import traceback
from contextlib import redirect_stdout
from io import StringIO

import pytest

from efl.cli import main


def in_a_copy(function, *arguments):
    """What it returns, or an `AssertionError` that says how it failed."""
    for slow in ("efl.api", "efl.track.figures", "efl.track.report"):
        importlib.import_module(slow)
    forking = multiprocessing.get_context("fork")
    ours, theirs = forking.Pipe()
    child = forking.Process(target=_answer, args=(theirs, function, arguments))
    child.start()
    theirs.close()
    try:
        failure, result = ours.recv()
    except EOFError:
        failure, result = "the process died", None
    child.join()
    assert not failure, failure
    return result


def _answer(pipe, function, arguments):
    try:
        pipe.send(("", function(*arguments)))
    except (Exception, SystemExit):
        pipe.send((traceback.format_exc(), None))


def efl_command(*arguments):
    """`efl` with these arguments, in a copy of this process; what it prints."""
    return in_a_copy(_printed, list(map(str, arguments)))


def _printed(arguments):
    sys.argv = ["efl", *arguments]
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code, f"exit code {stop.value.code}"
    return printed.getvalue()
