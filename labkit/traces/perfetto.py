"""A trace in Perfetto: its page may fetch a file from one local address, which we serve."""

from __future__ import annotations

import secrets
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

PAGE = "https://ui.perfetto.dev"
PORT = 9001  # of 127.0.0.1: the only one that the page's security policy allows for `?url=`
_servers: list[TraceServer] = []  # the one of the last call


class Link(str):
    """An address, which a notebook shows as a link."""

    def _repr_html_(self) -> str:
        return f'<a href="{self}" target="_blank">open the trace in Perfetto</a>'


class _OneFile(BaseHTTPRequestHandler):
    server: TraceServer  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        """Send the trace to whoever knows its name."""
        if self.path != f"/{self.server.name}":
            self.send_error(404)
            return
        with open(self.server.trace, "rb") as trace:
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", PAGE)
            self.send_header("Cache-Control", "no-cache")
            self.end_headers()
            shutil.copyfileobj(trace, self.wfile)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing in a notebook's cell."""


class TraceServer(ThreadingHTTPServer):
    """Serves one file on the loopback address, under a name that nobody guesses."""

    daemon_threads = True

    def __init__(self, trace: Path) -> None:
        self.trace = trace
        self.name = f"{secrets.token_hex(8)}/{quote(trace.name)}"
        super().__init__(("127.0.0.1", PORT), _OneFile)
        threading.Thread(target=self.serve_forever, name="labkit-perfetto", daemon=True).start()


def serve(trace: Path) -> Link:
    """Serve a trace until the next call, or until this process ends; return Perfetto's address.

    Raises RuntimeError where another program has the port.
    """
    while _servers:
        server = _servers.pop()
        server.shutdown()
        server.server_close()
    try:
        _servers.append(TraceServer(trace))
    except OSError as error:
        raise RuntimeError(
            f"port {PORT} of this machine, the only one that Perfetto reads, cannot be used "
            f"({error.strerror}): drag {trace} into {PAGE}, or end the program that has the port."
        ) from None
    return Link(f"{PAGE}/#!/?url=http://127.0.0.1:{PORT}/{_servers[0].name}")
