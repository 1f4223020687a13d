"""What a lobby says of the pairs that it finds."""

from __future__ import annotations

import io
import random

import pytest
from capture_bytes import Frame, pcap

from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.machine.limits import PAIRING_LOOKS
from rocekit.packets.rows import Rows
from rocekit.track.bulk import Chains
from rocekit.track.lobby import lobby_of
from rocekit.track.pairs.waiting import Flow
from rocekit.wire.build import build_frame
from rocekit.wire.psn import MASK

#: More rivals than are always looked at (``lobby.ALIKE``, which has no name where it is compiled).
MANY = 300
#: PSNs that are near each other (``lobby.NEAR``).
NEAR = 4096


@pytest.mark.parametrize(
    ("looks", "decided_by", "surely"), [(1 << 17, "psn", True), (10, "source port", False)]
)
def test_where_not_all_rivals_can_be_looked_at_a_pair_is_not_sure(
    looks: int, decided_by: str, surely: bool
) -> None:
    """Flows that source ports paired may be rivals; of very many it is not known."""
    frames = [
        build_frame("RC_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=5, psn=7, payload=b"x"),
        build_frame("RC_ACKNOWLEDGE", src="10.0.0.2", dst="10.0.0.1", dest_qpn=6, psn=7, msn=1),
    ]
    with open_capture(io.BytesIO(pcap([Frame(frame, n) for n, frame in enumerate(frames)]))) as reader:
        rows = Rows(Decoder().decode(next(iter(reader))))
    met: set[str] = set()
    lobby = lobby_of(Chains(), looks, met)
    requester, responder = Flow(0, 1, 5, "RC", 1000), Flow(1, 0, 6, "RC", 2000)
    for flow, row in ((requester, 0), (responder, 1)):
        lobby.add(flow)
        lobby.hold(flow, rows, row, row)
    lobby.requested(requester, 7, 1, 0)
    others = [Flow(0, 1, 100 + n, "RC", n) for n in range(MANY)]
    for other in others:
        other.low, other.high = 90, 91
    lobby._by_ports = dict.fromkeys(others, True)
    assert lobby.partner(responder, rows, 1) is requester
    assert (lobby.decided_by, lobby.surely) == (decided_by, surely)
    assert met == (set() if surely else {PAIRING_LOOKS})


def test_waiting_flows_are_found_by_psns_near_theirs() -> None:
    """All that requested the same 4,096 PSNs, or those beside them, and each once."""
    chosen = random.Random(5)
    lobby, responder = lobby_of(Chains(), 1 << 20, set()), Flow(1, 0, 6, "RC", 2000)
    lobby.requesters(responder, 0)  # from now on flows are found by PSN
    flows = [Flow(0, 1, qpn, "RC", 1000) for qpn in range(120)]
    for flow in flows:
        lobby.add(flow)
        psn = chosen.choice((0, 4096, MASK + 1, 60_000)) + chosen.randrange(-9000, 9000) & MASK
        for span in chosen.choice(((1,), (16, 16), (1, 3000, 5000), (1 << 23, 1 << 22))):
            lobby.requested(flow, psn, span, 0)
            psn = psn + span & MASK
    for _ in range(300):
        psn = chosen.choice((0, 60_000)) + chosen.randrange(-20_000, 20_000) & MASK
        near = set()
        for flow in flows:
            first, last = (flow.low - NEAR) // NEAR, (flow.high + NEAR) // NEAR
            if any(number % (1 << 12) == psn // NEAR for number in range(first, last + 1)):
                near.add(flow.qpn)
        found = [flow.qpn for flow in lobby.requesters(responder, psn)]
        assert sorted(found) == sorted(near)
