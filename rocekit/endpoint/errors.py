"""Errors that every backend reports in the same words."""

from __future__ import annotations

import errno
import os

from rocekit.errors import VerbsError
from rocekit.wire.cm import REJ_REASONS


class Disconnected(VerbsError):
    """The peer ended the connection before this side was done."""

    def __init__(self, qpn: int) -> None:
        super().__init__(f"the peer of QP {qpn:#x} disconnected (ECONNRESET)", errno=errno.ECONNRESET)


class RefusedPost(VerbsError):
    """A work request that the device refused.

    Attributes:
        place: its index in the list; the WRs before it were posted, those after it were not.
    """

    def __init__(self, place: int, message: str, code: int) -> None:
        super().__init__(message, errno=code)
        self.place = place


def errno_text(code: int) -> str:
    """``EINVAL (Invalid argument)``."""
    return f"{errno.errorcode.get(code, str(code))} ({os.strerror(code)})"


def cm_error(kind: str, status: int, private_data: bytes, there: str) -> VerbsError:
    """What a connection event that ends a handshake means.

    Args:
        kind: a name of ``wire.CM_EVENTS``.
        status: 0, a negative errno, or the reason in the peer's REJ if it is REJECTED.
        there: the peer, in words.
    """
    if kind == "REJECTED":
        said = private_data.rstrip(b"\0").decode("utf-8", "replace")
        if said and said.isprintable():
            return VerbsError(f"{there} rejected the connection: {said}", errno=errno.ECONNREFUSED)
        reason = REJ_REASONS.get(status, f"reason {status}")
        hint = "; is its server running?" if status == 8 else ""
        return VerbsError(f"{there} rejected the connection: {reason}{hint}", errno=errno.ECONNREFUSED)
    code = -status if status < 0 else None
    why = "" if code is None else f": {errno_text(code)}"
    return VerbsError(f"{kind} on the way to {there}{why}", errno=code)


def port_taken(ip: str, port: int) -> VerbsError:
    """The error of a server whose port another program has."""
    return VerbsError(
        f"port {port} of {ip} is taken; another server? choose another with -p", errno=errno.EADDRINUSE
    )


def check_version(device: str, ip: str, host: str) -> None:
    """Raises VerbsError if the device's address and the peer's are not of the same IP version."""
    if (":" in host) != (":" in ip):
        raise VerbsError(
            f"{host} and {ip} of {device} are not of the same IP version: "
            "choose another address of this side with --bind or -x",
            errno=errno.EAFNOSUPPORT,
        )
