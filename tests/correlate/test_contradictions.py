"""What in a transfer's packets contradicts a work request, and what only looks as if it did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocekit.correlate.contradictions import Judge
from rocekit.correlate.time_split import recovery_ns, timing
from rocekit.journal.work_requests import WorkRequest
from rocekit.track.transfers import Transfer

VA, KEY = 0x1000, 0x2A


def transfer(**more: Any) -> Transfer:
    """A WRITE of 100 bytes that was seen from its first packet to its last."""
    fields: dict[str, Any] = {
        "operation": "WRITE",
        "bytes": 100,
        "started": True,
        "ended": True,
        "status": "acked",
        "maybe_several": False,
        "remote_va": VA,
        "rkey": KEY,
        "swap_add": None,
        "with_immediate": False,
        "immediate": None,
        "with_invalidate": False,
        "invalidate_rkey": None,
        "responder": {"ip": "10.0.0.2", "qpn": 17},
    }
    return cast(Transfer, SimpleNamespace(**{**fields, **more}))


def request(
    operation: str = "WRITE", opcode: str = "RDMA_WRITE", length: int = 100, **more: Any
) -> WorkRequest:
    """The work request of that WRITE; ``more`` is in its event."""
    event = SimpleNamespace(fields={"remote_va": VA, "rkey": KEY, **more})
    found = SimpleNamespace(operation=operation, opcode=opcode, length=length, event=event)
    return cast(WorkRequest, found)


def test_what_is_alike_is_no_contradiction() -> None:
    assert Judge().contradiction(request(), transfer()) is None


@pytest.mark.parametrize("unseen", [{"ended": False}, {"status": "incomplete"}, {"maybe_several": True}])
def test_a_length_contradicts_only_where_the_whole_message_was_seen(unseen: dict[str, Any]) -> None:
    assert Judge().contradiction(request(length=300), transfer()) == "another length (100 bytes)"
    assert Judge().contradiction(request(length=300), transfer(**unseen)) is None


@pytest.mark.parametrize("unseen", [{"ended": False}, {"status": "incomplete"}, {"maybe_several": True}])
def test_an_immediate_contradicts_only_where_the_last_packet_was_seen(unseen: dict[str, Any]) -> None:
    wants = request(opcode="RDMA_WRITE_WITH_IMM", imm=7)
    assert Judge().contradiction(wants, transfer()) == "no immediate"
    assert Judge().contradiction(wants, transfer(**unseen)) is None


@pytest.mark.parametrize(("operation", "opcode"), [("FLUSH", "FLUSH"), ("FETCH_ADD", "ATOMIC_FETCH_AND_ADD")])
def test_a_length_that_is_no_payload_is_not_compared(operation: str, opcode: str) -> None:
    assert (
        Judge().contradiction(request(operation, opcode, 4096), transfer(operation=operation, bytes=0))
        is None
    )


@pytest.mark.parametrize(
    ("packets", "why"),
    [({"remote_va": 0x2000}, "another address (0x2000)"), ({"rkey": 0x2B}, "another key (0x2b)")],
)
def test_an_address_and_a_key_contradict_where_the_start_was_seen_and_nothing_is_redacted(
    packets: dict[str, int], why: str
) -> None:
    assert Judge().contradiction(request(), transfer(**packets)) == why
    assert Judge().contradiction(request(), transfer(started=False, **packets)) is None
    assert Judge(redacted=True).contradiction(request(), transfer(**packets)) is None


def test_an_operand_contradicts_where_the_request_was_seen() -> None:
    add = request("FETCH_ADD", "ATOMIC_FETCH_AND_ADD", 8, swap_add=1)
    other = {"operation": "FETCH_ADD", "bytes": 8, "swap_add": 2}
    assert Judge().contradiction(add, transfer(**other)) == "another operand (0x2)"
    assert Judge().contradiction(add, transfer(started=False, **other)) is None


def test_a_key_to_invalidate_contradicts_where_it_is_known_and_not_redacted() -> None:
    wants = request("SEND", "SEND_WITH_INV", invalidate_rkey=8)
    seen = transfer(operation="SEND", with_invalidate=True, invalidate_rkey=9)
    assert Judge().contradiction(wants, seen) == "another key to invalidate (0x9)"
    assert Judge(redacted=True).contradiction(wants, seen) is None
    without = transfer(operation="SEND")
    assert Judge().contradiction(wants, without) == "no key to invalidate"
    unknown = transfer(operation="SEND", with_invalidate=None)
    assert Judge().contradiction(wants, unknown) is None


def test_a_destination_contradicts_where_each_work_request_names_its_own() -> None:
    there = request("SEND", "SEND", dest_qpn=18, dest_ip="10.0.0.2")
    assert (
        Judge(datagrams=True).contradiction(there, transfer(operation="SEND")) == "another destination (17)"
    )
    assert Judge().contradiction(there, transfer(operation="SEND")) is None


def repeats(*spans: tuple[int, int, int], acked_ns: int | None = None) -> Transfer:
    """A transfer from 1,000 to 9,000 ns, with repeats: found at, after a wait of, last packet at."""
    events = [
        SimpleNamespace(kind="repeat", time_ns=at, waited_ns=waited, last_ns=last)
        for at, waited, last in spans
    ]
    return cast(
        Transfer,
        SimpleNamespace(events=events, first_ns=1000, last_ns=9000, acked_ns=acked_ns, wr=None, wc=None),
    )


@pytest.mark.parametrize(
    ("spans", "told_ns"),
    [
        ([(3000, 500, 4000)], 1500),
        ([(3000, 500, 4000), (3600, 100, 4200)], 1700),  # they overlap
        ([(3000, 500, 4000), (3200, 0, 3600)], 1500),  # one within the other
        ([(1200, 900, 1500)], 500),  # the wait began before the transfer did
    ],
)
def test_time_of_repeats_is_counted_once_and_within_the_transfer(
    spans: list[tuple[int, int, int]], told_ns: int
) -> None:
    assert recovery_ns(repeats(*spans)) == told_ns


def test_an_ack_before_the_last_packet_was_captured_makes_no_negative_time() -> None:
    """The capture's order of two directions is not that of the wire."""
    assert timing(repeats(acked_ns=8990)).acknowledging_ns == 0
