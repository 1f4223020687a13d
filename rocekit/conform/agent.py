"""The agent: a device's program that does a drill's calls for a packet side elsewhere.

Calls and results are JSON, one line each, over TCP.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any, Final

from rocekit.conform.device import CALLS, ConformDevice, RefusedError, UnfitError
from rocekit.errors import RocekitError, VerbsError

PORT: Final = 18_520
_MOST_BYTES: Final = 1 << 22
_PATIENCE_S: Final = 30.0


def serve(
    device: ConformDevice,
    bind: str = "127.0.0.1",
    port: int = PORT,
    *,
    ready: Callable[[str, int], None] = lambda host, port: None,
    once: bool = False,
) -> None:
    """Do calls for one peer after the other, until interrupted.

    Args:
        ready: called with the address and port when peers may connect.
        once: end when the first peer has gone.

    Raises:
        VerbsError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((bind, port))
        except OSError as error:
            raise VerbsError(f"no agent at {bind} port {port}: {error.strerror}", errno=error.errno) from None
        listener.listen(1)
        ready(*listener.getsockname()[:2])
        while True:
            connection, _ = listener.accept()
            with connection:
                try:
                    _converse(device, connection)
                except (OSError, ValueError):
                    pass  # the peer went away, or speaks something else: the next one
                finally:
                    device.close()
            if once:
                return


def _converse(device: ConformDevice, connection: socket.socket) -> None:
    with connection.makefile("rwb") as stream:
        _put(stream, {"name": device.name, "ip": device.ip, "features": sorted(device.features)})
        while line := stream.readline(_MOST_BYTES):
            asked = json.loads(line)
            if not isinstance(asked, dict) or asked.get("call") not in CALLS:
                raise ValueError("no call")
            try:
                arguments = asked.get("arguments", {})
                result = getattr(device, asked["call"])(**arguments)
                _put(stream, {"result": result})
            except RefusedError as refused:
                unfit = isinstance(refused, UnfitError)
                _put(stream, {"refused": str(refused), "errno": refused.errno, "unfit": unfit})
            except (RocekitError, TypeError, KeyError, ValueError) as error:
                _put(stream, {"error": f"{type(error).__name__}: {error}"})


def _put(stream: Any, document: dict[str, Any]) -> None:
    stream.write(json.dumps(document).encode() + b"\n")
    stream.flush()


class RemoteDevice(ConformDevice):
    """A device whose calls an agent does.

    Raises:
        VerbsError: no agent answers, or it went away (also from every call).
    """

    def __init__(self, host: str, port: int = PORT) -> None:
        self._where = f"the agent at {host} port {port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=_PATIENCE_S)
        except OSError as error:
            raise VerbsError(
                f"{self._where} does not answer ({error.strerror or error}): `rocekit conform-agent` is it",
                errno=error.errno,
            ) from None
        self._stream = self._socket.makefile("rwb")
        hello = self._line()
        try:
            self.name, self.ip = str(hello["name"]), str(hello["ip"])
            self.features = frozenset(map(str, hello["features"]))
        except (KeyError, TypeError):
            raise VerbsError(f"{self._where} is no agent of rocekit") from None

    def _line(self) -> dict[str, Any]:
        try:
            line = self._stream.readline(_MOST_BYTES)
            document = json.loads(line) if line else None
        except (OSError, ValueError) as error:
            raise VerbsError(f"{self._where} went away: {error}") from None
        if not isinstance(document, dict):
            raise VerbsError(f"{self._where} went away")
        return document

    def _call(self, call: str, **arguments: Any) -> Any:
        try:
            _put(self._stream, {"call": call, "arguments": arguments})
        except OSError as error:
            raise VerbsError(f"{self._where} went away: {error.strerror or error}") from None
        document = self._line()
        if "refused" in document:
            kind = UnfitError if document.get("unfit") else RefusedError
            raise kind(str(document["refused"]), errno=document.get("errno"))
        if "error" in document:
            raise VerbsError(f"{self._where}: {document['error']}")
        return document.get("result")

    def open(self, setup: dict[str, Any], peer_ip: str) -> dict[str, int]:
        return dict(self._call("open", setup=setup, peer_ip=peer_ip))

    def post(self, **wr: Any) -> None:
        self._call("post", **wr)

    def recv(self, **wr: Any) -> None:
        self._call("recv", **wr)

    def modify(self, **attributes: Any) -> None:
        self._call("modify", **attributes)

    def poll(self) -> list[dict[str, Any]]:
        return list(self._call("poll"))

    def read(self, region: str, offset: int, length: int) -> str:
        return str(self._call("read", region=region, offset=offset, length=length))

    def fill(self, region: str, offset: int, content: str) -> None:
        self._call("fill", region=region, offset=offset, content=content)

    def state(self) -> str:
        return str(self._call("state"))

    def counters(self) -> dict[str, int]:
        return dict(self._call("counters"))

    def bind(self, region: str, offset: int, length: int, access: list[str]) -> int:
        return int(self._call("bind", region=region, offset=offset, length=length, access=access))

    def deregister(self, region: str) -> None:
        self._call("deregister", region=region)

    def listen(self, port: int) -> None:
        self._call("listen", port=port)

    def accept(self, **param: Any) -> None:
        self._call("accept", **param)

    def reject(self) -> None:
        self._call("reject")

    def connect(self, port: int) -> None:
        self._call("connect", port=port)

    def disconnect(self) -> None:
        self._call("disconnect")

    def arm(self, *, solicited: bool = False) -> None:
        self._call("arm", solicited=solicited)

    def events(self) -> list[dict[str, Any]]:
        return list(self._call("events"))

    def close(self) -> None:
        self._call("close")

    def shut(self) -> None:
        """Let the agent go."""
        self._stream.close()
        self._socket.close()
