"""Every module can be imported on Windows and macOS, which lack some of what Linux has; what needs Linux says so."""

import os
import subprocess
import sys

import pytest

from efl.bench import kills
from efl.deploy.superlink import Server
from efl.errors import UserError

# Everything is imported once as it is, so that other packages are there; then anew without what Windows lacks.
SCRIPT = """
import importlib, os, pkgutil, signal, sys
import efl

def import_all():
    for module in pkgutil.walk_packages(importlib.import_module("efl").__path__, "efl."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

import_all()
before = {name for name in sys.modules if name == "efl" or name.startswith("efl.")}
for name in before:
    del sys.modules[name]
for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "getpgid", "getuid", "killpg", "register_at_fork", "sched_getaffinity", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGSTOP", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGCHLD", "SIGALRM", "SIGCONT"):
    delattr(signal, name)
sys.platform = "win32"
import_all()
assert {name for name in sys.modules if name == "efl" or name.startswith("efl.")} >= before
print("imported", len(before))
"""


@pytest.mark.slow
def test_every_module_is_imported_without_what_windows_lacks():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 200


def test_what_needs_linux_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="efl bench kills needs Linux"):
        kills.kill_runs(1)


def test_what_needs_process_groups_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "name", "nt")
    with pytest.raises(UserError, match="on Linux and macOS only"):
        Server(tmp_path, None, 1)
