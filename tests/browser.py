"""A headless Chromium, spoken to through a pipe: pages as a user sees them, and what goes wrong in them."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time

import pytest

QUIET = ["--disable-gpu", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-sync"]
TROUBLE = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled", "Network.loadingFailed")


def chromium_or_skip():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine")
    return found


class Tab:
    """A page; `troubles` has every exception, message on the console and request that failed."""

    def __init__(self, to, back):
        self._to, self._back, self._buffer, self._number, self.session = to, back, b"", 0, None
        self.troubles = []

    def call(self, method, timeout=30.0, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout
        while (reply := self._next(until)).get("id") != self._number:
            # A request that is cancelled is one that the browser itself gave up, as when it leaves a page.
            if reply.get("method") in TROUBLE and not reply["params"].get("canceled"):
                self.troubles.append(reply["params"])
        assert "error" not in reply, reply
        return reply["result"]

    def _next(self, until):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._back], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            self._buffer += os.read(self._back, 2**20)
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def show(self, url, width=1400, height=900, dark=False):
        """Open a page on a screen of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def eval(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait_for(self, expression, seconds=15.0):
        """Until the expression is true; returns how long that took."""
        began = time.monotonic()
        while not self.eval(expression):
            assert time.monotonic() - began < seconds, f"not true after {seconds} s: {expression}"
            time.sleep(0.05)
        return time.monotonic() - began

    def screenshot(self, path):
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(taken["data"]))


@contextlib.contextmanager
def browser_tab(profile):
    command = [chromium_or_skip(), "--headless", *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    low = [*os.pipe(), *os.pipe()]
    pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in low]  # out of the way of 3 and 4
    for end in low:
        os.close(end)
    read_there, to, back, write_there = pipes
    # Chromium reads what it is asked at 3 and answers at 4.
    places = [(os.POSIX_SPAWN_DUP2, read_there, 3), (os.POSIX_SPAWN_DUP2, write_there, 4)]
    silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    process = os.posix_spawn(command[0], [*command, "about:blank"], os.environ, file_actions=[*places, *silent])
    try:
        tab = Tab(to, back)
        target = tab.call("Target.createTarget", url="about:blank")["targetId"]
        tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        yield tab
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        for pipe in pipes:
            os.close(pipe)
