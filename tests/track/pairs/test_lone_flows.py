"""Flows that are a few numbers while they have one packet: the result is as if each were a flow at once."""

from __future__ import annotations

import io
from typing import Any

from capture_bytes import Frame, pcap
from encapsulated import ethernet, ipv4, udp, vxlan
from hypothesis import given, settings
from hypothesis import strategies as st

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.track.eviction import evict
from rocekit.track.tracker import Tracker
from rocekit.wire.build import build_frame, build_mad

HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
KINDS = (
    *("RC_SEND_ONLY", "RC_SEND_ONLY", "RC_SEND_ONLY", "RC_RDMA_WRITE_FIRST", "RC_RDMA_WRITE_MIDDLE"),
    *("RC_RDMA_READ_REQUEST", "RC_ACKNOWLEDGE", "RC_RDMA_READ_RESPONSE_ONLY", "UC_SEND_ONLY", "CNP"),
    *("RC_FETCH_ADD", "XRC_SEND_ONLY", "MAD"),
)
WITHOUT_DATA = frozenset({"RC_RDMA_READ_REQUEST", "RC_ACKNOWLEDGE", "RC_FETCH_ADD", "CNP"})
SECOND_NS = 10**9
START_NS = 1_700_000_000 * SECOND_NS

Packet = tuple[str, int, int, int, int, int, bool, int]
#: Kind, source, destination (as a distance from it), QPN, PSN, virtual network, whether its ICRC is wrong,
#: and the ns since the packet before.
packets = st.tuples(
    st.sampled_from(KINDS),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(16, 20),
    st.integers(6, 9),
    st.sampled_from((0, 0, 0, 1, 2, 3)),
    st.sampled_from((False,) * 9 + (True,)),
    st.sampled_from((1_000,) * 9 + (6 * SECOND_NS,)),
)


def frame(packet: Packet) -> bytes:
    kind, source, distance, qpn, psn, network, wrong, _ = packet
    fields: dict[str, Any] = {"src": HOSTS[source], "dst": HOSTS[(source + distance) % 3], "psn": psn}
    if kind == "MAD":
        mad = build_mad("REQ" if psn < 8 else "REP", psn, local_comm_id=psn, local_qpn=qpn)
        made = build_frame("UD_SEND_ONLY", dest_qpn=1, payload=mad, **fields)
    else:
        payload = b"" if kind in WITHOUT_DATA else bytes(256)
        made = build_frame(kind, dest_qpn=qpn, payload=payload, **fields)
    if wrong:
        made = made[:-1] + bytes((made[-1] ^ 1,))
    return ethernet(ipv4(17, udp(4789, vxlan(network, made)))) if network else made


def told(stream: list[Packet], size: int, *, at_once: bool) -> dict[str, Any]:
    """What becomes of packets that come ``size`` at a time; ``at_once``: nothing stays numbers."""
    now_ns, frames = START_NS, []
    for packet in stream:
        now_ns += packet[-1]
        frames.append(Frame(frame(packet), now_ns))
    tracker = Tracker()
    if at_once:
        tracker._may_be_lone = False
    with open_capture(io.BytesIO(pcap(frames)), batch_frames=size) as reader:
        decoder = Decoder()
        for batch in reader:
            tracker.feed(decoder.decode(batch))
            assert not at_once or not tracker._lone.count
    tracker.finish()
    assert tracker._chains.waiters == tracker._chains.held == tracker._lone.count == 0
    return {
        "connections": [
            (c.to_dict(), c.first_ns, c.last_ns, c.scopes, c.bad_icrc, [p and vars_of(p) for p in c.progress])
            for c in tracker.connections
        ],
        "transfers": [t.to_dict() for t in tracker.transfers],
        "strays": (tracker.stray_cnps, tracker.bad_icrc, tracker.limits_met),
    }


def vars_of(progress: Any) -> tuple[Any, ...]:
    return progress.started, progress.begin, progress.expected, progress.high, progress.acked


@given(st.lists(packets, max_size=40), st.sampled_from((1, 3, 1000)))
@settings(max_examples=300, deadline=None)
def test_they_are_what_flows_are_at_once(stream: list[Packet], size: int) -> None:
    assert told(stream, size, at_once=False) == told(stream, size, at_once=True)


def test_what_follows_cnps_that_were_let_go_is_tracked() -> None:
    """Only CNPs went to a QP for more than five seconds; then a request does."""
    first: Packet = ("RC_SEND_ONLY", 0, 1, 16, 6, 0, False, 1_000)
    cnp: Packet = ("CNP", 0, 1, 17, 6, 0, False, 1_000)
    later: Packet = ("RC_SEND_ONLY", 0, 1, 16, 7, 0, False, 6 * SECOND_NS)
    request: Packet = ("RC_SEND_ONLY", 0, 1, 17, 6, 0, False, 1_000)
    found = told([first, cnp, later, request], 1000, at_once=False)
    assert [(c["b"]["qpn"], c["packets"]) for c, *_ in found["connections"]] == [(16, 2), (17, 1)]
    assert found["strays"][0] == 1


def flood(count: int) -> list[Packet]:
    """As many QPs of one host, with a request each."""
    return [("RC_SEND_ONLY", 0, 1, 16 + n, 7, 0, False, 1_000) for n in range(count)]


def fed(stream: list[Packet], tracker: Tracker) -> Tracker:
    now_ns, frames = START_NS, []
    for packet in stream:
        now_ns += packet[-1]
        frames.append(Frame(frame(packet), now_ns))
    decoder = Decoder()
    with open_capture(io.BytesIO(pcap(frames))) as reader:
        for batch in reader:
            tracker.feed(decoder.decode(batch))
    return tracker


def test_a_flood_makes_no_flows() -> None:
    tracker = fed(flood(200), Tracker())
    assert tracker._lone.count == tracker._chains.waiters == 200
    assert not tracker._flows
    tracker.finish()
    assert len(tracker.connections) == len(tracker.transfers) == 200
    assert [c.qpns[1] for c in tracker.connections] == list(range(16, 216))


def test_a_response_makes_flows_of_those_between_its_hosts() -> None:
    """And of no others; it finds the one that it responds to."""
    elsewhere: Packet = ("RC_SEND_ONLY", 2, 1, 99, 7, 0, False, 1_000)
    mine: Packet = ("RC_SEND_ONLY", 0, 1, 500, 1 << 20, 0, False, 1_000)
    response: Packet = ("RC_ACKNOWLEDGE", 1, 2, 700, 1 << 20, 0, False, 1_000)
    tracker = fed([elsewhere, *flood(50), mine, response], Tracker())
    assert len(tracker._flows) == 52
    assert [c.qpns for c in tracker.connections] == [[700, 500]]
    tracker.finish()
    assert len(tracker.connections) == 52


def test_batches_of_which_none_is_lone_any_more_are_let_go() -> None:
    """A capture may be long: what one lone flow needs is no reason to keep what others needed."""
    tracker = Tracker()
    decoder = Decoder()
    for n in range(8):
        stream: list[Packet] = [("RC_SEND_ONLY", 0, 1, 16 + n, 7, 0, False, 1_000)]
        stream += [("RC_SEND_ONLY", 1, 1, 40 + n, 7, 0, False, 1_000)] if not n else []
        stream += [("RC_ACKNOWLEDGE", 1, 2, 80 + n, 7, 0, False, 1_000)]
        frames = [Frame(frame(packet), START_NS + k) for k, packet in enumerate(stream)]
        with open_capture(io.BytesIO(pcap(frames))) as reader:
            for batch in reader:
                tracker.feed(decoder.decode(batch))
    assert sum(rows is not None for rows in tracker._lone._batches) == tracker._lone.count == 1


def test_none_is_lone_where_connections_may_be_let_go() -> None:
    live = fed(flood(20), Tracker(on_end=lambda transfer: None))
    assert (live._lone.count, len(live._flows)) == (0, 20)
    other = fed(flood(20), Tracker())
    evict(other, ())
    assert (other._lone.count, other._may_be_lone, other.connections) == (0, False, [])
