"""The path MTUs of a connection: agreed, and used by its packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rocekit import wire
from rocekit.findings.stories import is_nak
from rocekit.track.transfers import ACKED

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.track.connections import Connection
    from rocekit.track.events import Event


class Mtus(NamedTuple):
    """Path MTUs in bytes.

    Attributes:
        said: of each side's QP as its journal has it, else what the REQ says; None if unknown.
        sent: by side, the payloads of full packets (those that do not end a message).
        frames: the first frame with each payload.
        of_qps: whether ``said`` is what the QPs were set to. A REQ does not say that: a program may set its
            QP to another path MTU.
    """

    said: tuple[int | None, int | None]
    sent: tuple[tuple[int, ...], tuple[int, ...]]
    frames: tuple[int, ...]
    of_qps: bool

    def expected_of(self, side: int) -> int | None:
        """The path MTU of the peer of ``side``: what it sends itself, else what journal or REQ say."""
        there = self.said[1 - side]
        own = [size for size in self.sent[1 - side] if size in wire.PATH_MTU_CODES]
        return own[0] if own else there

    @property
    def differ(self) -> bool:
        """Whether the two ends are known to have different path MTUs."""
        a, b = self.said
        if a is not None and b is not None and a != b:
            return True
        first, second = set(self.sent[0]), set(self.sent[1])
        return bool(first and second and first != second)

    @property
    def unlike_said(self) -> bool:
        """Whether all full packets have one size, and it is not what journals or the REQ say."""
        used = {*self.sent[0], *self.sent[1]}
        said = {m for m in self.said if m is not None}
        return len(used) == len(said) == 1 and used != said and used <= set(wire.PATH_MTU_CODES)

    def words(self, connection: Connection) -> str:
        """What journals or the REQ say, and what is sent, in words."""
        known = {s: m for s, m in enumerate(self.said) if m is not None}
        said = [f"{connection.named(s)} is set to {m:,}" for s, m in known.items()]
        if known and not self.of_qps:
            said = [f"the REQ says {', '.join(f'{m:,}' for m in dict.fromkeys(known.values()))}"]
        sent = [
            f"{connection.named(s)} sends full packets of {', '.join(f'{n:,}' for n in sizes)}"
            for s, sizes in enumerate(self.sent)
            if sizes
        ]
        return "; ".join([*said, *sent])

    def to_dict(self) -> dict[str, Any]:
        """The path MTUs as evidence: of the QPs by their journals, and in the REQ."""
        a, b = self.said if self.of_qps else (None, None)
        return {
            "path_mtu_a": a,
            "path_mtu_b": b,
            "req_path_mtu": None if self.of_qps else self.said[0],
            "full_packets_a_bytes": list(self.sent[0]),
            "full_packets_b_bytes": list(self.sent[1]),
        }


def mtus(evidence: Evidence, connection: Connection) -> Mtus:
    """The path MTUs of a connection's two ends."""
    sent: list[tuple[int, ...]] = [(), ()]
    frames: list[int] = []
    for side in (0, 1):
        view = evidence.survey.flow(connection, side)
        if view is not None:
            sent[side] = tuple(sorted(view.full_sizes))
            frames += view.full_sizes.values()
    said = tuple(evidence.attribute(connection, side, "path_mtu") for side in (0, 1))
    of_qps = said != (None, None)
    if not of_qps:
        said = tuple(connection.negotiated[side].path_mtu for side in (0, 1))
    return Mtus((said[0], said[1]), (sent[0], sent[1]), tuple(sorted(frames)), of_qps)


def may_know_mtu(evidence: Evidence, connection: Connection) -> bool:
    """Whether a journal or the REQ may say the path MTU of a connection."""
    if evidence.journal is not None:
        return True
    return any(n.path_mtu is not None for n in connection.negotiated)


def is_invalid_request(event: Event) -> bool:
    """Whether an event is a NAK “invalid request”."""
    return is_nak(event, wire.NAK_INVALID_REQUEST)


def invalid_by_size(evidence: Evidence, connection: Connection, side: int) -> bool:
    """Whether requests of ``side`` got a NAK “invalid request” and do not have the peer's path MTU.

    A responder that acknowledged other messages of several packets takes packets of their size.
    """
    invalid = [
        transfer
        for transfer, nak in evidence.fatal_naks_of.get((connection.id, side), ())
        if is_invalid_request(nak)
    ]
    if not invalid:
        return False
    sent_by = evidence.transfers_of.get((connection.id, side), ())
    sizes = mtus(evidence, connection)
    sent, expected = sizes.sent[side], sizes.expected_of(side)
    if not sent or not any(t.last_psn > t.first_psn or not t.ended for t in invalid):
        return False
    if any(t.status == ACKED and t.last_psn > t.first_psn and not t.is_read for t in sent_by):
        return False
    return (expected is not None and set(sent) != {expected}) or any(
        s not in wire.PATH_MTU_CODES for s in sent
    )
