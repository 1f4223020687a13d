"""CM exchanges: which messages belong together, and what they say of the connection (IBA Vol. 1, 12.9).

Compiled (see cm_exchanges.pxd): a flood can consist of them.

A REQ's ``local_comm_id`` comes back as the REP's ``remote_comm_id``; together they name both QPNs, starting
PSNs and limits. The starting PSN in a message is the one with which its *receiver* starts to send (12.6.5,
12.6.8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocekit.files.frame_names import frame_name
from rocekit.packets.wrapping import PLAIN, Wrapping
from rocekit.track.connections import Negotiated
from rocekit.wire import time_code_ns

if TYPE_CHECKING:
    from rocekit.track.connections import Connection
    from rocekit.wire.mad import CmMessage, Mad

#: Source and destination address, and the communication ID of the source.
_Key = tuple[str, str, int]
_TRANSPORTS: Final = {0: "RC", 1: "UC", 2: "RD", 3: "XRC"}
#: A CM sends a message again only after its response timeout. What comes before this share of it is a copy,
#: if it has the same IPv4 identification.
_SOON: Final = 1 / 2
#: So many messages of an exchange are looked at for another with the same identification, the first ones.
_OTHERS: Final = 32
#: The same without IPv4 identifications.
_AT_ONCE: Final = 1 / 8
_IDS: Final = ("local_comm_id", "remote_comm_id")
#: The same where the timeout is unknown. No CM's timer is as short.
_SOON_NS: Final = 1_000_000


# What ``Exchange.negotiated`` asks of a REQ for both ends, and of a REQ and a REP.
_FOR_BOTH: Final = ("retry_count", "primary_local_ack_timeout", "primary_traffic_class", "primary_sl")
_OF_EACH: Final = ("starting_psn", "rnr_retry_count", "responder_resources", "initiator_depth")


@dataclass(eq=False, repr=False)
class CmRecord:
    """One CM message seen.

    Attributes:
        connection: the connection that it belongs to, None until that is known.
        exchange: the exchange it belongs to, None where its REQ was not seen.
        repeated: its sender sent the same message before: its reply was late or lost.
        duplicated: its sender sent it once, and it came before.
        around: what is around its packet.
    """

    frame: int
    time_ns: int
    message: str
    src: str
    dst: str
    transaction_id: int
    cm: CmMessage
    exchange: Exchange | None = None
    repeated: bool = False
    duplicated: bool = False
    ip_id: int = 0
    around: Wrapping = PLAIN

    def __repr__(self) -> str:
        return f"<CmRecord {self.src} → {self.dst}: {self.message}>"

    @property
    def connection(self) -> Connection | None:
        return None if self.exchange is None else self.exchange.connection

    @property
    def port(self) -> int | None:
        """The TCP port of the exchange's service ID; None if it has none or its REQ was not seen."""
        return None if self.exchange is None else self.exchange.request.cm.port

    def to_dict(self, *, several: bool = False) -> dict[str, Any]:
        """The message as the JSON contract has it."""
        connection = self.connection
        own = self.cm.to_dict(self.port)
        own.pop("message", None)
        return {
            "frame": frame_name(self.frame, several=several),
            "time_ns": self.time_ns,
            "message": self.message,
            "src": {"ip": self.src},
            "dst": {"ip": self.dst},
            "transaction_id": self.transaction_id,
            "connection": None if connection is None else connection.id,
            "repeated": self.repeated,
            "duplicated": self.duplicated,
            **own,
        }


@dataclass(eq=False, repr=False)
class Exchange:
    """A REQ and what followed it; ``src`` sent the REQ to ``dst``."""

    src: str
    dst: str
    request: CmRecord
    records: list[CmRecord]
    reply: CmRecord | None = None
    connection: Connection | None = None

    def __repr__(self) -> str:
        return f"<Exchange {self.src} → {self.dst}: {', '.join(r.message for r in self.records)}>"

    @property
    def scope(self) -> int:
        """The scope of its REQ (see ``packets.wrapping``)."""
        return self.request.around.scope

    def last(self, message: str) -> CmRecord | None:
        return next((r for r in reversed(self.records) if r.message == message), None)

    def sent(self, message: str) -> list[CmRecord]:
        """The messages of this name that a host sent, without the network's copies."""
        return [r for r in self.records if r.message == message and not r.duplicated]

    def is_client(self, record: CmRecord) -> bool:
        """Whether the REQ's sender sent a message of this exchange."""
        if self.src != self.dst:
            return record.src == self.src
        return record.cm.number("local_comm_id") == self.request.cm.number("local_comm_id")

    def response_timeout_ns(self, message: str) -> int:
        """After which time without a reply the sender of a REQ, or of a REP, sends it again; 0 if unknown."""
        name = "remote_cm_response_timeout" if message == "REQ" else "local_cm_response_timeout"
        return time_code_ns(self.request.cm.number(name) or 0)

    @property
    def transport(self) -> str:
        return _TRANSPORTS.get(self.request.cm.number("transport_service_type") or 0, "RC")

    def negotiated(self) -> list[Negotiated]:
        """What the exchange says of its two sides, the REQ's sender first.

        The REQ's retry counts and timeout hold for both ends; the REP's RNR retry count replaces the REQ's
        for the REQ's sender (12.6.8).
        """
        mtu = self.request.cm.path_mtu
        retries, timeout, traffic_class, level = self.request.cm.several(_FOR_BOTH)
        psn, rnr_retries, resources, depth = self.request.cm.several(_OF_EACH)
        if self.reply is None:
            psn_there = rnr_retries_there = resources_there = depth_there = None
        else:
            psn_there, rnr_retries_there, resources_there, depth_there = self.reply.cm.several(_OF_EACH)
        # By position: names take longer than all else here, and a flood has many exchanges.
        asked = Negotiated(
            psn_there, mtu, retries, rnr_retries_there, timeout, resources, depth, None, traffic_class, level
        )
        answered = Negotiated(
            psn, mtu, retries, rnr_retries, timeout, resources_there, depth_there, None, traffic_class, level
        )
        return [asked, answered]


class Exchanges:
    """All CM messages of a capture, put together."""

    def __init__(self) -> None:
        self.records: list[CmRecord] = []
        self.exchanges: list[Exchange] = []
        self._by_ids: dict[_Key, list[Exchange]] = {}
        self._seen: dict[tuple[str, str, int, str, int, int | None], CmRecord] = {}

    def take(
        self,
        mad: Mad,
        frame: int,
        time_ns: int,
        src: str,
        dst: str,
        ip_id: int = 0,
        around: Wrapping = PLAIN,
    ) -> CmRecord | None:
        """Record a MAD; None when it is no CM message.

        Args:
            ip_id: the IPv4 identification of its packet; 0 if it has none.
            around: what is around its packet.
        """
        cm = mad.cm
        if cm is None:
            return None
        message, transaction = cm.message, mad.transaction_id
        record = CmRecord(
            frame, time_ns, message, src, dst, transaction, cm, None, False, False, ip_id, around
        )
        local, remote = cm.several(_IDS)
        identity = (src, dst, around.scope, message, transaction, local)
        before = self._seen.get(identity)
        record.duplicated = before is not None and _is_copy(record, before)
        record.repeated = before is not None and not record.duplicated
        if not record.duplicated:
            self._seen[identity] = record
        self.records.append(record)
        if message == "REQ":
            self._request(record, local)
        elif local is not None or remote is not None:
            exchange = self._of(record, (dst, src, remote or 0)) or self._of(record, (src, dst, local or 0))
            if exchange is not None:
                record.exchange = exchange
                exchange.records.append(record)
                if message == "REP":
                    exchange.reply = exchange.reply or record
                    if local is not None:
                        self._register((src, dst, local), exchange)
        return record

    def _register(self, key: _Key, exchange: Exchange) -> None:
        """From now on messages with these addresses and this ID are the exchange's, in its scope."""
        known = self._by_ids.get(key)
        if known is None:
            self._by_ids[key] = [exchange]
        else:
            self._by_ids[key] = [*(other for other in known if other.scope != exchange.scope), exchange]

    def _of(self, record: CmRecord, key: _Key) -> Exchange | None:
        """The exchange of a message: that of its scope, else one whose scope has no message this way."""
        known = self._by_ids.get(key, ())
        for exchange in known:
            if exchange.scope == record.around.scope:
                return exchange
        for exchange in known:
            if not _has_other(exchange, record):
                return exchange
        return None

    def _request(self, record: CmRecord, local: int | None) -> None:
        key = (record.src, record.dst, local or 0)
        if record.repeated or record.duplicated:
            for known in self._by_ids.get(key, ()):
                if known.scope == record.around.scope:
                    record.exchange = known
                    known.records.append(record)
                    return
        exchange = Exchange(record.src, record.dst, record, [record])
        record.exchange = exchange
        self.exchanges.append(exchange)
        self._register(key, exchange)


def _has_other(exchange: Exchange, record: CmRecord) -> bool:
    """Whether an exchange has a message of the same sender, in the exchange's own scope."""
    scope = exchange.scope
    for other in exchange.records:  # noqa: SIM110 - a generator needs an object for each message
        if other.src == record.src and other.around.scope == scope:
            return True
    return False


def _is_copy(record: CmRecord, before: CmRecord) -> bool:
    """Whether a message that came before was sent once; its sender waits for its timeout to send it again.

    An identification that the sender's other messages have, too, tells nothing.
    """
    ip_id = record.ip_id
    if ip_id != before.ip_id:
        return False
    if before.exchange is not None:
        for other in before.exchange.records[:_OTHERS]:
            if other.ip_id == ip_id and other.src == record.src and other.message != record.message:
                ip_id = 0
    timeout_ns = 0 if before.exchange is None else before.exchange.response_timeout_ns(record.message)
    share = _SOON if ip_id else _AT_ONCE
    return record.time_ns - before.time_ns < max(share * timeout_ns, _SOON_NS)


def qpns(exchange: Exchange) -> tuple[int | None, int | None]:
    """The QPNs of the REQ's sender and of its receiver."""
    rep = exchange.reply
    return exchange.request.cm.number("local_qpn"), None if rep is None else rep.cm.number("local_qpn")
