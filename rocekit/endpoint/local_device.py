"""What a connection needs of the endpoint that made it."""

from __future__ import annotations

from typing import Any, Protocol

from rocekit.endpoint.tcp_introduction import TcpIntroduction
from rocekit.endpoint.work import Completion


class Introducible(Protocol):
    """A connection whose peer may have been introduced over TCP."""

    introduction: TcpIntroduction | None
    disconnected: bool

    def look_for_goodbye(self) -> None:
        """Notice that the peer said goodbye or hung up."""


class LocalDevice(Protocol):
    """The endpoint, as its connections and shared receive queues know it."""

    @property
    def device(self) -> str: ...

    @property
    def ip(self) -> str: ...

    @property
    def leaves_machine(self) -> bool:
        """Whether what it sends may reach other machines."""

    @property
    def allow_remote(self) -> tuple[str, ...]:
        """Other machines' addresses that the user lets it send to."""

    def now(self) -> int:
        """Nanoseconds since the epoch."""

    def log(self, event: str, qp: tuple[str, int] | None = None, **fields: Any) -> None:
        """Write an event to the journal, if there is one."""

    def poll(self, most: int = 32) -> list[Completion]:
        """The completions that are there now, at most ``most``."""

    def draw_psn(self) -> int:
        """A starting PSN."""

    def watch(self, connection: Introducible) -> None:
        """Notice from now on when a peer introduced over TCP says goodbye or hangs up."""
