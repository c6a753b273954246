"""The commands of a page's section, executed as they stand there, each machine a folder.

A comment before a block says where it runs: ``on the server`` or ``on every client``, and whether ``the last command
stays``, that is, runs until it is stopped. Blocks without one say which variables there are.
"""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from efl.processes import end_with_parent

BLOCK = re.compile(r"^( *)```sh\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NOTE = re.compile(r"<!-- not run: (.+) -->\n *$")
VARIABLE = re.compile(r"\b([A-Z]+)=\S+")
# Between machines that are folders: HOST:PATH is in the folder of that machine, which is the server.
SCP = """#!/bin/sh
place() { case "$1" in *:*) echo "$MACHINES/server/${1#*:}";; *) echo "$1";; esac; }
exec cp "$(place "$1")" "$(place "$2")"
"""


class WalkThrough:
    """Executes a section's blocks in turn.

    ``machines`` is where the folders are, ``values`` are the variables, but for the client's number.
    """

    def __init__(self, page, heading, machines, values, clients):
        text = page.read_text()
        level = heading.split()[0]
        start = text.index(f"{heading}\n")
        end = re.search(rf"^#{{1,{len(level)}}} ", text[start + len(heading) :], re.MULTILINE)
        self.section = text[start : start + len(heading) + end.start()] if end else text[start:]
        self.machines, self.values, self.clients = machines, values, clients
        self.staying = {}  # by machine
        commands = machines / "commands"
        commands.mkdir(parents=True)
        (commands / "scp").write_text(SCP)
        (commands / "scp").chmod(0o755)
        for name in ("server", *(f"client-{client}" for client in range(clients))):
            (machines / name).mkdir()
        path = f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **values, "PATH": path, "MACHINES": str(machines)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self.staying.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in self.staying.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(20)

    @property
    def variables(self):
        """Those that blocks without a comment set."""
        return {name for note, text in self.blocks() if not note for name in VARIABLE.findall(text)}

    def blocks(self):
        """What the comment before each block says, and its text."""
        for match in BLOCK.finditer(self.section):
            note = NOTE.search(self.section[: match.start()])
            indent, text = match.groups()
            lines = (line.removeprefix(indent) for line in text.replace("\\\n", " ").splitlines())
            yield note.group(1) if note else "", "\n".join(lines)

    def run(self, note, text):
        """A block, on the machines that its comment names; what it printed."""
        machines = ["server"] if "on the server" in note else [f"client-{client}" for client in range(self.clients)]
        assert "on the server" in note or "on every client" in note, note
        commands = [line for line in text.splitlines() if line.strip()]
        last = [commands.pop()] if "the last command stays" in note else []
        said = "".join(self._execute(machine, "\n".join(commands)) for machine in machines if commands)
        for machine in machines:
            self._shorten(machine)
            for command in last:
                self._stay(machine, command)
        return said

    def _shorten(self, machine):
        """Of an app that was just made: one round."""
        project = self.machines / machine / "app" / "pyproject.toml"
        if project.exists():
            project.write_text(re.sub(r"^(rounds|evaluate_every) = \d+", r"\1 = 1", project.read_text(), flags=re.M))

    def _execute(self, machine, commands):
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=self.machines / machine,
            env=self._environment(machine),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{machine}: {commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _stay(self, machine, command):
        with (self.machines / machine / "log").open("ab") as log:
            self.staying[machine] = subprocess.Popen(
                ["bash", "-ec", f"exec {command}"],
                cwd=self.machines / machine,
                env=self._environment(machine),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def _environment(self, machine):
        return {**self.environment, "CLIENT": machine.removeprefix("client-")}

    def log(self, machine):
        return (self.machines / machine / "log").read_text()

    def wait_for(self, happened, seconds=120):
        """Until something is so; what stays must not have ended."""
        end = time.monotonic() + seconds
        while not happened():
            ended = [name for name, process in self.staying.items() if process.poll() not in (None, 0)]
            assert not ended, f"{ended[0]} ended:\n{self.log(ended[0])}"
            assert time.monotonic() < end, "\n".join(f"{name}:\n{self.log(name)}" for name in self.staying)
            time.sleep(0.2)
