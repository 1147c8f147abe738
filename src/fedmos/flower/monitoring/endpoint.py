"""The HTTP endpoint of a server app: `/metrics` for Prometheus and `/health`."""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from threading import Thread
from typing import Any

from .exposition import CONTENT_TYPE, exposition
from .monitor import Monitor

_log = logging.getLogger("fedmos")

_TIMEOUT = 10.0
"""Seconds that a request can take."""


@contextmanager
def metrics_endpoint(address: str | None, monitor: Monitor) -> Iterator[None]:
    """Serve the metrics of a monitor during the block.

    Args:
        address: "HOST:PORT"; None for no endpoint.
        monitor: What is served.

    Raises:
        ValueError: If the address cannot be used.
    """
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        server = _Server(host, int(port), monitor)
    except OSError as error:
        raise ValueError(
            f"Cannot serve [deploy] metrics = '{address}' because {error.strerror or error}; use another port, or "
            "leave it out"
        ) from None
    if not _is_loopback(host):
        _log.warning(
            "Everyone who reaches %s can read the metrics, without authentication; use 127.0.0.1 unless a firewall "
            "is in front",
            address,
        )
    thread = Thread(target=server.serve_forever, name="fedmos-metrics", daemon=True)
    thread.start()
    _log.info("Metrics: http://%s/metrics", address)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def health(monitor: Monitor) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the content of `/health`: 503 while the server waits for clients, else 200."""
    status = monitor.snapshot()
    content: dict[str, Any] = {"state": status.state, "round": status.completed, "rounds": status.rounds}
    if status.waiting is not None:
        content |= {"waits_for": status.waiting.missing, "since": status.waiting.since}
    return (503 if status.waiting is not None else 200), content


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, monitor: Monitor) -> None:
        self.monitor = monitor
        if ":" in host:
            self.address_family = AF_INET6
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT
    server_version, sys_version = "fedmos", ""

    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send(200, CONTENT_TYPE, exposition(self.server.monitor.snapshot()))
        elif path == "/health":
            code, content = health(self.server.monitor)
            self._send(code, "application/json", json.dumps(content))
        else:
            self._send(404, "text/plain", "Use /metrics or /health.\n")

    def _send(self, code: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for every request."""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
