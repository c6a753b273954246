"""The server of the live page: the page itself, and what is new, as server-sent events.

It answers to this machine alone, unless it is asked to listen to others; they need the token that is in its address.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from efl.errors import UserError
from efl.track.live.feed import Cursor, Event, Feed

LOOPBACK = "127.0.0.1"
PORT = 8642
POLL = 0.5  # seconds between two reads of the runs while somebody watches
IDLE = 2.0  # while nobody does
HEARTBEAT = 10.0  # after so long without news, a line that finds out who is no longer there
FAREWELL = 1.0  # for viewers to be sent the last news
MOST_VIEWERS = 64
PAGE = Path(__file__).with_name("page")
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/watch.css": ("watch.css", "text/css; charset=utf-8"),
    "/watch.js": ("watch.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
}
POLICY = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class WatchServer(ThreadingHTTPServer):
    """Serves the page of a feed.

    Args:
        feed: What to show.
        host: The address to listen at.
        port: The port; 0 is any that is free, None the usual one, or any if that is taken.

    Raises:
        UserError: If the port is in use, or there is no such address.
    """

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there it would share the port with another process

    def __init__(self, feed: Feed, host: str = LOOPBACK, port: int | None = None) -> None:
        self.feed = feed
        self.local = is_loopback(host)
        self.token = None if self.local else secrets.token_urlsafe(24)
        self.viewers = 0
        self.came = threading.Event()  # somebody who has not been sent anything yet
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        wanted = (PORT, 0) if port is None else (port,)
        for one in wanted:
            try:
                super().__init__((host, one), Handler)
                return
            except (OSError, OverflowError) as error:
                why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot listen at {host}, port {wanted[-1]}: {why}; choose another --port")

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}/" + (f"?token={self.token}" if self.token else "")

    def server_bind(self) -> None:
        """Without looking up the name of this machine, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A viewer that went away is no error; nothing is printed."""

    def watch(self, seconds: float | None = None) -> None:
        """Serve until Ctrl-C, or for so long; `UserError` if what is watched is deleted."""
        until = None if seconds is None else time.monotonic() + seconds
        while until is None or time.monotonic() < until:
            self.feed.poll()
            self.came.wait(POLL if self.viewers else IDLE)
            self.came.clear()

    def close(self) -> None:
        """Send viewers away, with the last news."""
        with suppress(UserError):
            self.feed.poll(thoroughly=True)
        self.feed.close()
        until = time.monotonic() + FAREWELL
        while self.viewers and time.monotonic() < until:
            time.sleep(0.01)
        self.shutdown()
        self.server_close()


@contextmanager
def serving(feed: Feed, host: str = LOOPBACK, port: int | None = None) -> Iterator[WatchServer]:
    """Within, the page is served from another thread; `WatchServer.watch` reads what is new."""
    server = WatchServer(feed, host, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: WatchServer
    timeout = 30  # seconds for a request to be written

    def do_GET(self) -> None:
        """The page, its parts, or the events."""
        parts = urlsplit(self.path)
        if not self._may_ask(parts.query, parts.path):
            self._answer(HTTPStatus.FORBIDDEN, b"open the address that efl watch printed, with its token\n")
        elif parts.path == "/events":
            self._events()
        elif parts.path in FILES:
            name, kind = FILES[parts.path]
            self._answer(HTTPStatus.OK, (PAGE / name).read_bytes(), kind)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"no such page\n")

    def _may_ask(self, query: str, path: str) -> bool:
        """Whether this viewer has the token; locally, whether no other site's name leads here (DNS rebinding).

        Scripts and styles are those of the package and no secret.
        """
        if self.server.token is not None:
            given = parse_qs(query).get("token", [""])[0]
            return path in ("/watch.css", "/watch.js", "/charts.js") or hmac.compare_digest(
                given.encode(), self.server.token.encode()
            )
        host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        return is_loopback(host)

    def _answer(self, status: HTTPStatus, content: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self._headers(kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", kind)
        for name, value in POLICY.items():
            self.send_header(name, value)

    def _events(self) -> None:
        """What is new, until the viewer leaves."""
        server = self.server
        if server.viewers >= MOST_VIEWERS:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"too many viewers\n")
            return
        self.send_response(HTTPStatus.OK)
        self._headers("text/event-stream")
        self.end_headers()
        server.viewers += 1
        try:
            self._send_news()
        except OSError:
            pass
        finally:
            server.viewers -= 1

    def _send_news(self) -> None:
        cursor, server = Cursor(), self.server
        server.came.set()
        while not server.feed.closed:
            events = server.feed.news(cursor, HEARTBEAT)
            self.wfile.write(b"".join(map(as_bytes, events)) or b":\n\n")

    def log_message(self, *_: Any) -> None:
        """Not a word on the terminal, where progress is shown."""


def as_bytes(event: Event) -> bytes:
    """An event as it is sent."""
    name, data = event
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
