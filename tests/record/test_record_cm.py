"""Claims about the kernel's tracepoints: the lines are Linux 6.1's, as rping made it print them."""

from __future__ import annotations

import os

import pytest

from rocekit.record.kernel_cm import KernelCm, TracingError, parse


def test_an_event_of_the_rdma_cm_has_its_addresses_and_its_status() -> None:
    event = parse(
        "     kworker/1:1-39      [001] .....   210.094499: cm_event_handler: cm.id=1 src=10.9.0.1:43060 "
        "dst=10.9.0.2:7174 tos=0 REJECTED (8/8)"
    )
    assert event is not None
    assert (event.mono_ns, event.pid) == (210_094_499_000, 39)
    wanted = {
        "type": "cm_event_handler",
        "process": "kworker/1:1",
        "cm_id": 1,
        "local_ip": "10.9.0.1",
        "local_port": 43060,
        "remote_ip": "10.9.0.2",
        "remote_port": 7174,
        "event_type": "REJECTED",
        "status": 8,
    }
    assert {key: event.fields.get(key) for key in wanted} == wanted


def test_a_message_of_the_ib_cm_has_its_state_and_a_rejection_its_reason() -> None:
    event = parse(
        "           rping-301     [000] d..1.   206.552666: icm_send_req: local_id=1198659818 remote_id=0 "
        "state=IDLE lap_state=LAP_UNINIT"
    )
    assert event is not None
    assert event.fields["state"] == "IDLE"
    assert (event.fields["local_id"], event.fields["remote_id"]) == (1198659818, 0)
    refused = parse(
        "           rping-308     [000] d..1.   210.1: icm_send_rej: local_id=1 remote_id=2 state=REQ_RCVD "
        "reason=REJ_CONSUMER_DEFINED"
    )
    assert refused is not None
    assert refused.fields["reason"] == "CONSUMER_DEFINED"
    assert refused.mono_ns == 210_100_000_000


def test_a_qp_and_an_ipv6_address_are_read() -> None:
    event = parse(
        "           rping-301     [000] .....   206.549210: cm_send_req: cm.id=0 src=[fd00:9::1]:45909 "
        "dst=[fd00:9::2]:7174 tos=0 qp_num=17"
    )
    assert event is not None
    assert (event.fields["qpn"], event.fields["local_ip"], event.fields["remote_port"]) == (
        17,
        "fd00:9::1",
        7174,
    )


def test_an_address_that_is_none_is_left_out() -> None:
    event = parse(
        "           rping-298     [000] .....   203.941791: cm_id_attach: cm.id=0 src=10.9.0.2:7174 "
        "dst=(einval) device=rxe1"
    )
    assert event is not None
    assert "remote_ip" not in event.fields
    assert event.fields["device"] == "rxe1"


@pytest.mark.parametrize("line", ["", "# tracer: nop", "CPU:1 [LOST 12 EVENTS]", "a-1 [0] x: y"])
def test_other_lines_are_no_events(line: str) -> None:
    assert parse(line) is None


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TracingError, match="needs root"):
        KernelCm()
