"""Prometheus metrics of a trace: in total, and by connection.

What the tracker counts is read from it at each scrape; the rest (messages, their durations, causes of
go-backs) is added up from the trace's items. Names and units follow the advice of Prometheus: base units,
``_total`` for counters.

Every connection takes a dozen series, so only the first ones have their own. All others together are the
connection ``other``, with those that the trace let go: sums over connections stay right, and no counter
decreases.

Only scraping needs the library prometheus-client, the extra ``rocekit[metrics]``; ``metrics_server`` answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rocekit.live.tracing import Trace, Trouble
from rocekit.track.cm_exchanges import CmRecord
from rocekit.track.connections import Connection
from rocekit.track.eviction import Evicted
from rocekit.track.transfers import ACKED, Transfer
from rocekit.wire.words import end

#: The default number of connections with their own series.
OWN_SERIES: Final = 200
OTHER: Final = "other"
_OTHERS: Final = -1
"""The number of all connections without series of their own."""
#: Upper bounds of the buckets of times, in seconds: from the delay of a switch to the longest timeouts.
BUCKETS_S: Final = (
    *(2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6),
    *(1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in BUCKETS_S)
_LABELS: Final = ("connection", "transport", "a", "b")


@dataclass(slots=True)
class Histogram:
    """Times by bucket; ``counts`` has one more value than there are bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_NS) + 1))
    sum_ns: int = 0

    def observe(self, ns: int) -> None:
        self.counts[bisect_left(_BOUNDS_NS, ns)] += 1
        self.sum_ns += ns

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them: (upper bound in seconds, count)."""
        total, found = 0, []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


@dataclass(slots=True)
class _Messages:
    """The sums of a connection's ended transfers."""

    bytes: int = 0
    transfers: Counter[str] = field(default_factory=Counter)


#: Counters that the tracker keeps of a connection: attribute, metric, what it counts.
_KEPT: Final[tuple[tuple[str, str, str], ...]] = (
    ("packets", "packets", "RoCE packets, both directions"),
    ("retransmitted_packets", "retransmitted_packets", "Packets sent again, by either side"),
    ("naks", "naks", "NAKs, without RNR NAKs"),
    ("rnr_naks", "rnr_naks", "RNR NAKs: no receive was posted"),
    ("cnps", "cnps", "Congestion notification packets"),
    ("ce_marked", "ce_marked_packets", "Packets that a switch marked with ECN CE"),
    ("duplicates", "duplicate_packets", "Packets that came twice, without a repeat"),
)


class Metrics:
    """The metrics of a trace; give it the trace's items, and register it for scraping.

    Args:
        trace: the trace.
        own_series: how many connections have their own series.
    """

    def __init__(self, trace: Trace, own_series: int = OWN_SERIES) -> None:
        self._trace = trace
        self._own = own_series
        self._messages: dict[int, _Messages] = defaultdict(_Messages)
        # The connections with series of their own, numbered as they came; a trace may number them anew.
        self._named: dict[Connection, int] = {}
        self._seen = 0
        self._gone: Counter[str] = Counter()
        self._transfers: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        self._gobacks: Counter[str] = Counter(nak=0, rnr=0, timeout=0, implied_nak=0)
        self._cm: Counter[str] = Counter()
        self._durations: dict[str, Histogram] = defaultdict(Histogram)
        self._round_trips = Histogram()

    # ------------------------------------------------------------------ counting

    def item(self, item: object) -> None:
        """Count an item of the trace."""
        if isinstance(item, Transfer):
            self._ended(item)
        elif isinstance(item, Trouble):
            event = item.event
            if event.kind == "repeat" and event.opens:
                self._gobacks[event.cause or "unknown"] += 1
        elif isinstance(item, CmRecord):
            self._cm[item.message] += 1
        elif isinstance(item, Connection):
            if len(self._named) < self._own:
                self._named[item] = self._seen
            self._seen += 1
        elif isinstance(item, Evicted):
            self._let_go(item.gone)

    def _let_go(self, gone: Sequence[Connection]) -> None:
        """Add what was counted of connections to ``other``."""
        for connection in gone:
            self._gone.update({attribute: getattr(connection, attribute) for attribute, _, _ in _KEPT})
            number = self._named.pop(connection, None)
            if number is not None and number in self._messages:
                messages, others = self._messages.pop(number), self._messages[_OTHERS]
                others.bytes += messages.bytes
                others.transfers.update(messages.transfers)

    def _ended(self, transfer: Transfer) -> None:
        operation, status = transfer.operation, transfer.status
        own = self._messages[self._named.get(transfer.connection, _OTHERS)]
        own.bytes += transfer.bytes
        own.transfers[status] += 1
        self._transfers[operation, status] += 1
        self._bytes[operation] += transfer.bytes
        self._durations[operation].observe(transfer.duration_ns)
        if status == ACKED and transfer.acked_ns is not None and not transfer.is_read:
            self._round_trips.observe(max(0, transfer.acked_ns - transfer.last_ns))

    # ------------------------------------------------------------------ scraping

    def collect(self) -> Iterator[Any]:
        """The metric families now (prometheus_client's collector interface)."""
        yield from self._of_all()
        yield from self._of_connections()

    def _of_all(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        trace, counts = self._trace, self._trace.counts
        for name, help_text, value in (
            ("frames_received", "Frames that the kernel handed over or dropped", trace.received),
            (
                "frames_dropped",
                "Frames that the kernel dropped because the trace was too slow",
                trace.dropped,
            ),
            ("packets", "RoCE packets", counts.roce_packets),
            ("icrc_errors", "Packets with a wrong ICRC", counts.bad_icrc),
            ("malformed_packets", "Packets that break the format", counts.malformed_packets),
            ("pause_frames", "802.3 PAUSE and PFC frames", counts.pause_frames),
        ):
            yield CounterMetricFamily(f"rocekit_{name}", help_text, value=value)
        others = CounterMetricFamily(
            "rocekit_other_frames", "Frames that passed the filter and are no RoCE packets", labels=("kind",)
        )
        for kind, count in sorted(counts.others.copy().items()):
            others.add_metric((kind,), count)
        yield others
        transfers = CounterMetricFamily(
            "rocekit_transfers", "Messages that have ended", labels=("operation", "status")
        )
        for labels, count in sorted(self._transfers.copy().items()):
            transfers.add_metric(labels, count)
        yield transfers
        yield _counter("message_bytes", "Payload of ended messages, each byte once", "operation", self._bytes)
        yield _counter("gobacks", "Go-backs of requesters", "cause", self._gobacks)
        yield _counter("cm_messages", "CM messages", "message", self._cm)
        durations = HistogramMetricFamily(
            "rocekit_transfer_duration_seconds",
            "From the first packet of a message to its last ACK",
            labels=("operation",),
        )
        for operation, histogram in sorted(self._durations.copy().items()):
            durations.add_metric((operation,), histogram.buckets(), histogram.sum_ns / 1e9)
        yield durations
        yield HistogramMetricFamily(
            "rocekit_ack_round_trip_seconds",
            "From the last packet of a message to its ACK, at the capture point",
            buckets=self._round_trips.buckets(),
            sum_value=self._round_trips.sum_ns / 1e9,
        )
        yield GaugeMetricFamily(
            "rocekit_connections", "Connections seen so far", value=len(trace.connections) + trace.evicted
        )
        yield CounterMetricFamily(
            "rocekit_evicted_connections", "Connections that the trace let go", value=trace.evicted
        )

    def _of_connections(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        named, gone = self._named.copy(), self._gone.copy()
        others = [c for c in list(self._trace.connections) if c not in named]
        groups = [(_labels(c, number), number, [c]) for c, number in named.items()]
        if others or gone:
            groups.append(((OTHER, OTHER, OTHER, OTHER), _OTHERS, others))

        def family(
            kind: Any,
            name: str,
            help_text: str,
            value: Callable[[Sequence[Connection]], float],
            before: int = 0,
        ) -> Any:
            made = kind(f"rocekit_connection_{name}", help_text, labels=_LABELS)
            for labels, number, members in groups:
                made.add_metric(labels, value(members) + (before if number == _OTHERS else 0))
            return made

        for attribute, name, help_text in _KEPT:
            yield family(CounterMetricFamily, name, help_text, _sum_of(attribute), gone[attribute])
        yield family(
            GaugeMetricFamily, "outstanding_packets", "PSNs that are not acknowledged yet", _outstanding
        )
        yield family(
            GaugeMetricFamily, "last_packet_timestamp_seconds", "When its last packet was seen", _last_s
        )
        size = CounterMetricFamily(
            "rocekit_connection_message_bytes", "Payload of ended messages, each byte once", labels=_LABELS
        )
        ended = CounterMetricFamily(
            "rocekit_connection_transfers", "Messages that have ended", labels=(*_LABELS, "status")
        )
        for labels, number, _ in groups:
            messages = self._messages.get(number, _Messages())
            size.add_metric(labels, messages.bytes)
            for status, count in sorted(messages.transfers.copy().items()):
                ended.add_metric((*labels, status), count)
        yield size
        yield ended


def _labels(connection: Connection, number: int) -> tuple[str, str, str, str]:
    return str(number), connection.transport, end(connection.end(0)), end(connection.end(1))


def _sum_of(attribute: str) -> Callable[[Sequence[Connection]], float]:
    return lambda members: sum(getattr(connection, attribute) for connection in members)


def _outstanding(members: Sequence[Connection]) -> int:
    requests = [r for connection in members for r in connection.progress if r is not None and r.reliable]
    return sum(max(0, r.high - r.acked) for r in requests)


def _last_s(members: Sequence[Connection]) -> float:
    return max(((connection.last_ns or 0) for connection in members), default=0) / 1e9


def _counter(name: str, help_text: str, label: str, values: Counter[str]) -> Any:
    from prometheus_client.core import CounterMetricFamily

    made = CounterMetricFamily(f"rocekit_{name}", help_text, labels=(label,))
    for key, value in sorted(values.copy().items()):
        made.add_metric((key,), value)
    return made
