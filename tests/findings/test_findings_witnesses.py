"""ICMP errors, ARP and ND: what they say of connections, how surely, and what they do not say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from capture_bytes import pcap
from talk import MS, TIMEOUT, A, B, Talk
from witness_frames import advertise, arp, icmp, solicit

from rocekit.analysis import analyze
from rocekit.findings import Finding

S = 1000 * MS
ROUTER = "10.9.0.254"
V6 = ("2001:db8::1", "2001:db8::2")


def talk(**rest: object) -> Talk:
    """A connection that works: both QPNs are known."""
    t = Talk(**rest)  # type: ignore[arg-type]
    t.connect(retry_count=3)
    t.send(0)
    t.ack(0)
    return t


def of(t: Talk, rule: str) -> list[Finding]:
    return [f for f in t.findings() if f.rule == rule]


def one(t: Talk, rule: str) -> Finding:
    (found,) = of(t, rule)
    return found


def abandoned(t: Talk, kind: int, code: int, source: str, **rest: object) -> list[int]:
    """A message that is sent four times and gets an ICMP error each time; returns the errors' frames."""
    errors = []
    for _ in range(4):
        sent = t.send(1)[1]
        errors.append(t.raw(icmp(t.frames[sent - 1].data, kind, code, source=source, **rest)))  # type: ignore[arg-type]
        t.wait(TIMEOUT)
    return errors


class TestUnreachable:
    def test_a_port_unreachable_names_the_connection_by_the_quoted_qpn(self) -> None:
        t = talk()
        errors = abandoned(t, 3, 3, B)
        found = one(t, "icmp-unreachable")
        assert found.title == (
            f"{B} answered RoCE packets on {A} QP 0x11 → {B} QP 0x12 with ICMP “port unreachable” "
            "(4 messages)"
        )
        assert found.severity == "error"
        assert found.frames == tuple(errors)
        assert found.connection is not None
        assert found.transfer is not None
        assert found.transfer.first_psn & 0xFFFFFF == 1
        assert found.evidence["quoted_qpns"] == [0x12]
        assert found.evidence["quoted_psns"] == [1]
        assert found.evidence["connection_by"] == "QPN"
        assert "no RoCE device there took them" in found.advice

    def test_the_silence_names_it(self) -> None:
        t = talk()
        errors = abandoned(t, 3, 3, B)
        found = one(t, "retry-exceeded")
        assert found.evidence["icmp"] == {"kinds": ["port unreachable"], "sources": [B], "frames": errors}
        assert found.advice.startswith(f"{B} sent ICMP errors about packets between these two hosts")
        assert found.to_dict(several=True)["evidence"]["icmp"]["frames"][0] == f"0:{errors[0]}"

    @pytest.mark.parametrize(
        ("code", "words"), [(1, "no working route"), (13, "Probably a firewall"), (3, "Probably a firewall")]
    )
    def test_a_router_says_so(self, code: int, words: str) -> None:
        t = talk()
        abandoned(t, 3, code, ROUTER)
        found = one(t, "icmp-unreachable")
        assert found.title.startswith(f"{ROUTER} answered ")
        assert f"{ROUTER} got these packets and did not deliver them" in found.advice
        assert words in found.advice

    def test_a_ttl_that_ran_out(self) -> None:
        t = talk()
        abandoned(t, 11, 0, ROUTER)
        assert "Probably a routing loop" in one(t, "icmp-unreachable").advice

    def test_with_the_udp_header_only_the_connection_is_probable(self) -> None:
        t = talk()
        abandoned(t, 3, 3, B, quoted=28)
        found = one(t, "icmp-unreachable")
        assert "(probably)" in found.title
        assert found.evidence["connection_by"] == "port or hosts"
        assert found.evidence["quoted_qpns"] == found.evidence["quoted_psns"] == []

    def test_eight_bytes_of_the_bth_have_the_qpn_and_no_psn(self) -> None:
        t = talk()
        abandoned(t, 3, 3, B, quoted=36)
        found = one(t, "icmp-unreachable")
        assert found.evidence["quoted_qpns"] == [0x12]
        assert found.evidence["quoted_psns"] == []
        assert found.transfer is None

    def test_two_connections_on_one_port_are_not_told_apart_without_the_qpn(self) -> None:
        t = talk()
        t.packet("RC_SEND_ONLY", 50, bytes(64), dest_qpn=0x32, ackreq=1)
        t.packet("RC_ACKNOWLEDGE", 50, by="b", dest_qpn=0x22, syndrome=0x1F)
        abandoned(t, 3, 3, B, quoted=28)
        found = one(t, "icmp-unreachable")
        assert found.connection is None
        assert found.title.startswith(f"{B} answered RoCE packets from {A} to {B} with")

    def test_a_quote_cut_inside_its_udp_header_says_nothing(self) -> None:
        t = talk()
        abandoned(t, 3, 3, B, quoted=22)
        assert of(t, "icmp-unreachable") == []

    def test_icmp_about_other_ports_is_nothing(self) -> None:
        t = talk()
        data = bytearray(t.frames[-1].data)
        data[36:38] = (53).to_bytes(2, "big")
        t.raw(icmp(bytes(data), 3, 3, source=A))
        assert of(t, "icmp-unreachable") == []

    def test_an_acknowledged_packet_is_a_warning(self) -> None:
        t = talk()
        sent = t.send(1)[1]
        t.raw(icmp(t.frames[sent - 1].data, 3, 3, source=B))
        t.ack(1)
        found = one(t, "icmp-unreachable")
        assert found.severity == "warning"
        assert found.evidence["acknowledged"]
        assert "acknowledged all the same" in found.advice

    def test_a_quoted_packet_that_is_not_in_the_capture(self) -> None:
        t = talk()
        missing = t.send(5)[5]
        data = t.frames.pop(missing - 1).data
        t.raw(icmp(data, 3, 3, source=B))
        found = one(t, "icmp-unreachable")
        assert found.connection is not None
        assert found.transfer is None

    def test_hosts_without_roce_packets_in_the_capture_are_info(self) -> None:
        t = talk()
        other = Talk(a="10.8.0.1", b="10.8.0.2")
        other.send(0)
        t.raw(icmp(other.frames[0].data, 3, 3, source="10.8.0.2"))
        found = one(t, "icmp-unreachable")
        assert found.severity == "info"
        assert (
            "packets to UDP port 4791 from 10.8.0.1 to 10.8.0.2 that are not in this capture" in found.title
        )

    def test_a_req_to_a_host_without_roce(self) -> None:
        t = Talk()
        for _ in range(3):
            sent = t.request()
            t.raw(icmp(t.frames[sent - 1].data, 3, 3, source=B))
            t.wait(5 * S)
        assert one(t, "icmp-unreachable").title.startswith(f"{B} answered CM messages from {A} to {B}")
        assert "port unreachable" in one(t, "cm-unanswered").advice

    def test_an_icmp_about_an_acknowledgement_names_the_responder(self) -> None:
        t = talk()
        t.send(1)
        ack = t.ack(1)
        t.raw(icmp(t.frames[ack - 1].data, 3, 13, source=ROUTER))
        found = one(t, "icmp-unreachable")
        assert f"RoCE packets on {B} QP 0x12 → {A} QP 0x11" in found.title

    def test_icmpv6(self) -> None:
        t = talk(a=V6[0], b=V6[1])
        abandoned(t, 1, 4, V6[1])
        found = one(t, "icmp-unreachable")
        assert "“port unreachable”" in found.title
        assert found.evidence["quoted_qpns"] == [0x12]
        assert "no RoCE device there took them" in found.advice


class TestTooBig:
    def test_fragmentation_needed(self) -> None:
        t = talk(mtu=4096)
        abandoned(t, 3, 4, ROUTER, mtu=1500)
        found = one(t, "icmp-too-big")
        assert found.severity == "error"
        assert f"{ROUTER} did not forward RoCE packets on {A} QP 0x11" in found.title
        assert "the limit is 1,500 bytes" in found.title
        assert found.evidence["next_hop_mtu"] == 1500
        assert found.evidence["fitting_path_mtu"] == 1024
        assert found.evidence["quoted_bytes_max"] == 20 + 8 + 12 + 4096 + 4
        assert of(t, "icmp-unreachable") == []

    def test_an_old_router_names_no_mtu(self) -> None:
        t = talk(mtu=4096)
        abandoned(t, 3, 4, ROUTER)
        found = one(t, "icmp-too-big")
        assert found.evidence["next_hop_mtu"] is None
        assert "does not say how large" in found.title

    def test_packet_too_big(self) -> None:
        t = talk(a=V6[0], b=V6[1], mtu=4096)
        abandoned(t, 2, 0, "2001:db8::fe", mtu=1280, quoted=1232)
        found = one(t, "icmp-too-big")
        assert found.evidence["next_hop_mtu"] == 1280
        assert found.evidence["fitting_path_mtu"] == 1024
        assert found.evidence["quoted_bytes_max"] == 40 + 8 + 12 + 4096 + 4


def asks(t: Talk, times: int, asker: str = A, target: str = B, step: int = S) -> list[int]:
    frames = []
    for _ in range(times):
        frames.append(t.raw(arp(asker, target)))
        t.wait(step)
    return frames


class TestNeighbours:
    def test_requests_without_a_reply(self) -> None:
        t = talk()
        frames = asks(t, 3)
        found = one(t, "arp-unanswered")
        assert found.title == f"{B} did not answer 3 ARP requests in 2.000 s from {A}"
        assert (found.severity, found.frames) == ("warning", tuple(frames))
        assert found.connection is not None

    def test_the_silence_names_it(self) -> None:
        t = talk()
        for _ in range(4):
            t.send(1)
            t.wait(TIMEOUT)
            t.raw(arp(A, B))
        found = one(t, "retry-exceeded")
        assert found.evidence["neighbours"]["without_reply"] == [B]
        assert found.advice.startswith("Meanwhile 4 ARP or ND requests")

    def test_a_tail_loss_while_the_host_was_away_names_it(self) -> None:
        t = talk()
        t.send(1)
        for _ in range(3):
            t.raw(arp(A, B))
            t.wait(TIMEOUT // 3)
        t.raw(arp(B, A, reply=True))
        t.send(1)
        t.ack(1)
        found = one(t, "tail-loss")
        assert found.evidence["neighbours"]["without_reply"] == [B]
        assert found.advice.startswith("Meanwhile 3 ARP or ND requests")

    def test_a_loss_long_after_the_requests_does_not_name_them(self) -> None:
        t = talk()
        asks(t, 3)
        t.raw(arp(B, A, reply=True))
        t.wait(10 * S)
        t.send(1)
        t.wait(TIMEOUT)
        t.send(1)
        t.ack(1)
        assert "neighbours" not in one(t, "tail-loss").evidence

    def test_a_reply_to_each_is_nothing(self) -> None:
        t = talk()
        for _ in range(5):
            t.raw(arp(A, B))
            t.raw(arp(B, A, reply=True))
            t.wait(S)
        assert of(t, "arp-unanswered") == []

    def test_requests_that_are_answered_later_are_info(self) -> None:
        t = talk()
        asks(t, 3)
        t.raw(arp(B, A, reply=True))
        found = one(t, "arp-unanswered")
        assert found.severity == "info"
        assert "without a reply for 3.000 s" in found.title
        assert found.evidence["replied"]

    def test_an_announcement_ends_the_wait(self) -> None:
        t = talk()
        asks(t, 3)
        t.raw(arp(B, B))
        found = one(t, "arp-unanswered")
        assert (found.severity, found.evidence["replied"]) == ("info", False)

    def test_announcements_and_address_probes_are_no_questions(self) -> None:
        t = talk()
        for _ in range(4):
            t.raw(arp(A, A))
            t.raw(arp("0.0.0.0", B))
            t.wait(S)
        assert of(t, "arp-unanswered") == []

    def test_one_request_is_nothing(self) -> None:
        t = talk()
        asks(t, 1)
        assert of(t, "arp-unanswered") == []

    def test_copies_of_a_request_are_one(self) -> None:
        t = talk()
        asks(t, 1, step=0)
        asks(t, 1)
        assert of(t, "arp-unanswered") == []

    def test_requests_far_apart_are_no_streak(self) -> None:
        t = talk()
        asks(t, 4, step=30 * S)
        assert of(t, "arp-unanswered") == []

    def test_in_one_direction_two_requests_are_nothing_and_three_are_probable(self) -> None:
        t = Talk()
        t.send(0, 4)
        asks(t, 2)
        assert of(t, "arp-unanswered") == []
        asks(t, 1)
        found = one(t, "arp-unanswered")
        assert found.title.startswith(f"The capture has no reply of {B} to 3 ARP requests")
        assert "probably there was none" in found.title
        assert found.severity == "info"
        t.raw(arp(B, B))  # what it announces does not show that it had been silent
        assert "probably there was none" in one(t, "arp-unanswered").title

    def test_other_hosts_are_nothing(self) -> None:
        t = talk()
        asks(t, 5, asker=A, target="10.9.0.77")
        asks(t, 5, asker="10.9.0.78", target="10.9.0.77")
        assert of(t, "arp-unanswered") == []

    def test_roce_that_comes_afterwards_is_info(self) -> None:
        t = talk()
        asks(t, 3)
        t.send(1)
        t.ack(1)
        found = one(t, "arp-unanswered")
        assert found.severity == "info"
        assert found.advice.startswith("RoCE packets of the host came afterwards")

    def test_nd(self) -> None:
        t = talk(a=V6[0], b=V6[1])
        for _ in range(3):
            t.raw(solicit(*V6))
            t.wait(S)
        assert (
            one(t, "arp-unanswered").title == f"{V6[1]} did not answer 3 ND requests in 2.000 s from {V6[0]}"
        )
        t.raw(advertise(V6[1], V6[0]))
        assert one(t, "arp-unanswered").evidence["replied"]


def test_replies_in_another_capture_leave_it_open(tmp_path: Path) -> None:
    near, far = talk(), talk()
    asks(near, 3)
    for _ in range(3):
        far.raw(arp(A, B))
        far.raw(arp(B, A, reply=True))
        far.wait(S)
    paths = [tmp_path / "near.pcap", tmp_path / "far.pcap"]
    for path, t in zip(paths, (near, far), strict=True):
        path.write_bytes(pcap(t.frames, unit="ns"))
    assert "arp-unanswered" in {f.rule for f in analyze(paths[0]).findings}
    assert "arp-unanswered" not in {f.rule for f in analyze(*paths).findings}


def test_tshark_reads_the_same_quotes(tmp_path: Path, tshark: str) -> None:
    t = talk(mtu=4096)
    abandoned(t, 3, 4, ROUTER, mtu=1500)
    abandoned(t, 3, 3, B)
    path = tmp_path / "icmp.pcap"
    path.write_bytes(pcap(t.frames, unit="ns"))
    fields = ("icmp.type", "icmp.code", "icmp.mtu", "infiniband.bth.destqp", "infiniband.bth.psn")
    command = [tshark, "-r", str(path), "-Y", "icmp", "-T", "fields", *(x for f in fields for x in ("-e", f))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    theirs = [line.split("\t") for line in lines]
    analysis = analyze(path)
    ours = [
        [code, "1500" if mtu else "", f"{e.quote.dest_qpn:#08x}", str(e.quote.psn)]
        for e in analysis.capture.witnesses.icmp
        for code, mtu in [("4" if e.mtu else "3", e.mtu)]
    ]
    assert [row[1:3] for row in theirs] == [row[:2] for row in ours]
    assert [row[3:] for row in theirs if row[3]] in ([row[2:] for row in ours], [])
    assert json.dumps(analysis.to_dict())
