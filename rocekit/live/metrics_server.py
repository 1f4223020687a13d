"""Serves the metrics of a trace over HTTP, so that no client can hold it up.

A trace may run for weeks beside whatever connects to its port: a client has seconds to ask and to take its
answer, and only so many are served at once. More are turned away until one is done.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from rocekit.errors import RocekitError, needs_extra

if TYPE_CHECKING:
    from rocekit.live.metrics import Metrics

LOOPBACK: Final = "127.0.0.1"
#: Clients that are served at once; Prometheus needs one.
CLIENTS: Final = 16
#: How long a client may take, from connecting to the end of its answer.
CLIENT_S: Final = 10.0


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S  # of each read and write

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def get_stderr(self) -> Any:
        """What the application would print of an error; a client that has gone is none."""
        import io

        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client, of which there are at most ``CLIENTS``."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(CLIENTS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A client that sends a byte now and then never meets the time limit of one read.
        late = threading.Timer(CLIENT_S, _hang_up, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or took too long, is no error of ours."""


def _hang_up(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is done
        pass


class MetricsServer:
    """Answers scrapes over HTTP from `serve`, which gives it metrics, to `close`; a context manager.

    Args:
        address: ``:9464``, ``127.0.0.1:9464``, ``[::1]:9464`` or a port; without a host, 127.0.0.1.

    Attributes:
        port: the port that it listens on; the system chooses one for port 0.

    Raises:
        RocekitError: no prometheus-client, no such address, or its port is taken.
        ValueError: not an address.
    """

    def __init__(self, address: str) -> None:
        host, port = parse_address(address)
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError:
            raise needs_extra("metrics need", "prometheus-client", "metrics") from None
        self._registry = CollectorRegistry()
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, place = found[0]
            self._server = _Server((str(place[0]), int(place[1])), family)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RocekitError(
                f"no metrics at {address}: {reason}; name another, such as --metrics :{port + 1}"
            ) from None
        application: Callable[..., Any] = make_wsgi_app(self._registry)
        self._server.set_app(application)
        self.port: int = self._server.server_port
        self._thread: threading.Thread | None = None

    def serve(self, metrics: Metrics) -> None:
        """Answer with these metrics, by a thread with the caller's rights; who asked before is answered."""
        self._registry.register(metrics)
        self.start()

    def start(self) -> None:
        """Answer, also without metrics."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``:9464``, ``host:9464``, ``[::1]:9464`` or ``9464``.

    Raises:
        ValueError: not an address.
    """
    host, _, port = address.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{address!r} is not an address: use :9464 or 0.0.0.0:9464")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)
