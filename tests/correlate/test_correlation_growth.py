"""What a journal costs beside a capture grows with both, and not with each times the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from growth import assert_linear, back, save, save_journal, send

from rocekit.wire.build import build_ip_cm, build_mad

Made = tuple[Iterator[bytes], list[dict[str, Any]]]


def posted(qpn: int, wr_id: int, **more: Any) -> dict[str, Any]:
    wr = {"event": "wr_posted", "qp": {"device": "rxe0", "qpn": qpn}, "wr_id": wr_id, "opcode": "SEND"}
    return wr | {"length": 64} | more


def made(qpn: int, peer: int) -> list[dict[str, Any]]:
    qp = {"qp": {"device": "rxe0", "qpn": qpn}}
    ends = {"dest_ip": "10.0.0.2", "local_ip": "10.0.0.1", "dest_qpn": peer}
    return [
        {"event": "qp_created", "transport": "RC", **qp},
        {"event": "qp_modified", "state": "RTR", "rq_psn": 0, "path_mtu": 1024, **qp, **ends},
        {"event": "qp_modified", "state": "RTS", "sq_psn": 0, **qp},
    ]


def overlapped(count: int) -> Made:
    """Work requests that were all posted while another thread posted on their QP."""
    frames = (send(n, payload=bytes(64), ackreq=1) for n in range(count))
    return frames, [*made(0x11, 0x12), *(posted(0x11, n, overlapped=True) for n in range(count))]


def many_qps(count: int) -> Made:
    """As many QPs in the journal as connections in the capture."""
    frames = (
        frame
        for n in range(count // 2)
        for frame in (send(0, dest_qpn=2 + n, ackreq=1), back(0, dest_qpn=0x100000 + n, msn=1))
    )
    return frames, [event for n in range(count // 3) for event in made(0x900000 + n, 0xA00000)]


def connecting(count: int) -> Made:
    """As many events of the CM in the journal as REQs in the capture."""

    def request(n: int) -> bytes:
        data = build_ip_cm("10.0.0.1", "10.0.0.2", 1024 + n)
        fields: dict[str, Any] = {"local_comm_id": n + 1, "local_qpn": n + 2, "private_data": data}
        return send(n, "UD_SEND_ONLY", dest_qpn=1, payload=build_mad("REQ", n, **fields))

    event = {"event": "cm_event", "type": "CONNECT_REQUEST", "status": 0, "local_port": 18515}
    event |= {"local_ip": "10.0.0.2", "remote_ip": "10.0.0.1"}
    return map(request, range(count)), [event | {"remote_port": 1024 + n} for n in range(count)]


def told_by_nccl(n: int, qpn: int) -> list[dict[str, Any]]:
    """A proxy operation of NCCL, and its work request."""
    op = {"proxy_op": n, "send": True}
    return [
        {"event": "nccl_proxy_op", "operation": 0, "rank": 0, "steps": 1, **op},
        {"event": "nccl_wr", "step": 0, "qpn": qpn, "wr_id": n, "length": 64, **op},
    ]


def many_qps_of_nccl(count: int) -> Made:
    """NCCL tells of as many QPs as the capture has connections."""
    frames = (send(0, dest_qpn=2 + n, ackreq=1) for n in range(count))
    return frames, [event for n in range(count) for event in told_by_nccl(n, 0x900000 + n)]


def many_devices_of_nccl(count: int) -> Made:
    """NCCL tells of as many work requests as there are devices with a QP of the number that it gives."""
    frames = (send(n, payload=bytes(64), ackreq=1) for n in range(count))
    events = [event for n in range(count // 2) for event in told_by_nccl(n, 0x11)]
    for n in range(count // 2):
        qp = {"device": f"rxe{n}", "qpn": 0x11}
        events += [{"event": "qp_created", "transport": "RC", "qp": qp}, posted(0x11, n, qp=qp)]
    return frames, events


@pytest.mark.parametrize("case", [overlapped, many_qps, connecting, many_qps_of_nccl, many_devices_of_nccl])
def test_four_times_of_both_take_no_sixteen_times_the_work(
    case: Callable[[int], Made], tmp_path: Path
) -> None:
    def files(count: int) -> tuple[Path, Path]:
        frames, events = case(count)
        return (
            save(tmp_path / f"{count}.pcap", ((1000 * n, frame) for n, frame in enumerate(frames))),
            save_journal(tmp_path / f"{count}.journal.jsonl", events),
        )

    assert_linear("correlate", files)
