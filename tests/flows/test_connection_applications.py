"""Which application uses a connection, from captures made of its own bytes; and what is not claimed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
import ulp_bytes as ulp
from capture_bytes import pcap
from talk import Talk

import rocekit
from rocekit.report.text import application_lines
from rocekit.track.connections import Connection
from rocekit.wire.applications import Application
from rocekit.wire.build import build_ip_cm

TCP = 0x0106_0000
_PSN_A, _PSN_B = 100, 200


def talk(sample: ulp.Sample, *, cm: bool = True) -> Talk:
    """A connection with its CM exchange, the first message of the client and the server's answer."""
    t = Talk(mtu=4096)
    if cm:
        private = build_ip_cm(t.hosts["a"][0], t.hosts["b"][0], 40000) + sample.request
        t.request(service_id=TCP | sample.port, private_data=private, starting_psn=_PSN_B)
        t.reply(private_data=sample.reply, starting_psn=_PSN_A)
        t.cm("RTU", local_comm_id=1, remote_comm_id=2)
    else:
        t.packet("RC_ACKNOWLEDGE", _PSN_A - 1, by="b", syndrome=0x60)
    if sample.message:
        t.packet("RC_SEND_ONLY", _PSN_A, sample.message, ackreq=1)
        t.packet("RC_ACKNOWLEDGE", _PSN_A, by="b", syndrome=0x60, msn=1)
    if sample.answer:
        t.packet("RC_SEND_ONLY", _PSN_B, sample.answer, by="b", ackreq=1)
        t.packet("RC_ACKNOWLEDGE", _PSN_B, syndrome=0x60, msn=1)
    if not sample.message and not sample.answer:
        t.packet("RC_RDMA_WRITE_ONLY", _PSN_A, b"\x01" * 64, remote_va=4096, rkey=5, dma_length=64, ackreq=1)
        t.packet("RC_ACKNOWLEDGE", _PSN_A, by="b", syndrome=0x60, msn=1)
    return t


def analysed(t: Talk, folder: Path, snaplen: int | None = None) -> rocekit.Analysis:
    frames = (
        t.frames if snaplen is None else [type(f)(f.data[:snaplen], f.time_ns, len(f.data)) for f in t.frames]
    )
    path = folder / "x.pcap"
    path.write_bytes(pcap(frames, unit="ns"))
    return rocekit.analyze(path, journals=[])


def application(t: Talk, folder: Path, snaplen: int | None = None) -> object:
    (connection,) = analysed(t, folder, snaplen).connections
    return connection.application


def named(sample: ulp.Sample) -> str:
    return f"{sample.name}-{sample.port}-{len(sample.request)}-{len(sample.message)}"


@pytest.mark.parametrize("sample", ulp.CERTAIN, ids=named)
def test_its_own_bytes_name_it(sample: ulp.Sample, tmp_path: Path) -> None:
    (connection,) = analysed(talk(sample), tmp_path).connections
    found = connection.application
    assert found is not None
    assert (found.name, found.certain, found.short) == (sample.name, True, sample.short)
    assert str(found) == f"{sample.name}{', ' if sample.short else ''}{sample.short}"
    assert connection.to_dict()["application"] == {
        "name": sample.name,
        "certain": True,
        "ground": found.ground,
        "details": dict(found.details),
    }


@pytest.mark.parametrize("sample", ulp.PROBABLE, ids=named)
def test_what_others_may_have_too_is_probable(sample: ulp.Sample, tmp_path: Path) -> None:
    (connection,) = analysed(talk(sample), tmp_path).connections
    found = connection.application
    assert found is not None
    assert (found.name, found.certain, found.short) == (sample.name, False, sample.short)
    assert str(found).startswith(f"probably {sample.name}")
    assert str(found).endswith(f"({found.ground})")
    if not sample.request and not sample.message:
        assert found.ground == f"port {sample.port}"


@pytest.mark.parametrize("sample", ulp.UNNAMED, ids=named)
def test_nothing_is_named_without_a_ground(sample: ulp.Sample, tmp_path: Path) -> None:
    assert application(talk(sample), tmp_path) is None


@pytest.mark.parametrize("sample", [s for s in ulp.CERTAIN if s.message], ids=named)
def test_without_the_cm_exchange_first_messages_alone_count(sample: ulp.Sample, tmp_path: Path) -> None:
    """A magic names it all the same; a layout of one end is probable at most."""
    found = analysed(talk(sample, cm=False), tmp_path).connections[0].application
    magic = {"NVMe-oF", "NFS/RDMA", "iSER", "LNet", "Gluster", "Ceph"}
    if sample.name in magic or sample.message == ulp.SMB_DATA:
        assert found is not None
        assert (found.name, found.certain) == (sample.name, True)
    elif found is not None:
        assert found.name == sample.name
        assert found.certain == (sample.name == "SMB Direct" and bool(sample.answer))
        assert sample.name != "rping"


@pytest.mark.parametrize("sample", ulp.CERTAIN, ids=named)
@pytest.mark.parametrize("snaplen", [96, 128, 290])
def test_a_cut_capture_names_no_other(sample: ulp.Sample, snaplen: int, tmp_path: Path) -> None:
    found = application(talk(sample), tmp_path, snaplen)
    if isinstance(found, Application):
        generic = {"NFS/RDMA": {"RPC-over-RDMA"}, "rocekit": {"perftest"}}.get(sample.name, set())
        assert found.name in {sample.name} | (
            generic if not found.certain or sample.name == "NFS/RDMA" else set()
        )


def test_a_cut_capture_does_not_count_missing_bytes_against_a_port(tmp_path: Path) -> None:
    """128 bytes of a frame hold no private data and not enough of the login: the port is all there is."""
    sample = next(s for s in ulp.CERTAIN if s.name == "iSER" and s.request and s.message)
    assert str(application(talk(sample), tmp_path, 128)) == "probably iSER (port 3260)"


def test_the_ground_says_what_was_read(tmp_path: Path) -> None:
    found = application(talk(ulp.CERTAIN[0]), tmp_path)
    assert isinstance(found, Application)
    assert found.ground == "the REQ's private data, the REP's private data and its first messages"
    assert dict(found.details) == {
        "qid": 3,
        "hrqsize": 128,
        "hsqsize": 127,
        "cntlid": 0,
        "crqsize": 128,
        "sqsize": 127,
    }
    alone = application(talk(ulp.Sample("iSER", 3260, b"\xc0\0\0\0")), tmp_path)
    assert isinstance(alone, Application)
    assert alone.ground == "port 3260 and the REQ's private data"


def test_perftest_through_rdma_cm(tmp_path: Path, others: Path) -> None:
    """The connection that exchanges versions is certain; the test's own has the same hosts and port."""
    first, second = (c.application for c in rocekit.analyze(others / "rdma_cm.pcap", journals=[]).connections)
    assert str(first) == "perftest, version 6.20"
    assert str(second) == "probably perftest (port 18515, as connection 0)"


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        ("rping.pcap", {"rping"}),
        ("rdma_write_bw.pcap", {"probably perftest (its text over TCP)"}),
        ("pingpong_rc.pcap", {"probably libibverbs' examples (its text over TCP)"}),
        ("nccl_ring_node0.pcap", {"probably NCCL (its first messages)"}),
    ],
)
def test_captures_of_others(capture: str, words: set[str], others: Path) -> None:
    assert {str(c.application) for c in rocekit.analyze(others / capture, journals=[]).connections} == words


@pytest.mark.parametrize(
    ("capture", "words"),
    [
        ("ping-sr-clean.pcapng", {"rocekit, scenario ping-sr"}),
        ("ping-sr-tcp-clean.pcap", {"rocekit"}),
        ("rping-ipv6-clean.pcap", {"rping"}),
        ("ib_send_bw-clean.pcap", {"probably perftest (its text over TCP)"}),
        ("ring-clean.pcap", {"None"}),
        ("ping-sr-1-soft.pcapng", {"None"}),  # perftest's port, but private data of its own
    ],
)
def test_captures_of_our_own(capture: str, words: set[str], pcaps: Path) -> None:
    assert {str(c.application) for c in rocekit.analyze(pcaps / capture, journals=[]).connections} == words


@pytest.mark.parametrize(
    ("release", "devices"), [("2.30", 1), ("2.30", 8), ("2.27", 1), ("2.27", 4), ("2.23", 1), ("2.23", 2)]
)
def test_nccl_announces_buffers_one_after_the_other(release: str, devices: int, tmp_path: Path) -> None:
    def writes(*indexes: int) -> object:
        t = Talk()
        for psn, index in enumerate(indexes):
            entry = ulp.nccl(index, release=release, devices=devices)
            t.packet("RC_RDMA_WRITE_ONLY", psn, entry, remote_va=4096, rkey=5, dma_length=64)
            t.packet("RC_ACKNOWLEDGE", psn, by="b", syndrome=0x60, msn=psn + 1)
        return application(t, tmp_path)

    assert str(writes(1, 2, 3)) == "probably NCCL (its first messages)"
    assert str(writes(8, 12, 16)) == "probably NCCL (its first messages)"
    assert writes(1) is None
    assert writes(1, 1, 1) is None
    assert writes(7, 900, 3) is None


def test_a_late_message_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow is new for a bounded number of packets, and only its first messages are read."""
    monkeypatch.setattr("rocekit.flows.first_messages.MOST_MESSAGES", 2)
    t = Talk()
    for psn in range(3):
        t.packet("RC_SEND_ONLY", psn, b"data" if psn < 2 else ulp.CEPH_BANNER, ackreq=1)
        t.packet("RC_ACKNOWLEDGE", psn, by="b", syndrome=0x60, msn=psn + 1)
    assert application(t, tmp_path) is None


def test_a_corrupted_message_says_nothing(tmp_path: Path) -> None:
    t = talk(ulp.Sample("Ceph", 5555, message=ulp.CEPH_BANNER))
    at = next(i for i, f in enumerate(t.frames, 1) if b"ceph v2" in f.data)
    t.corrupted(at)
    assert application(t, tmp_path) is None


@pytest.mark.parametrize("port", [445, 988, 3260, 4420, 18515, 20049, 5555])
@pytest.mark.parametrize("seed", range(6))
def test_random_bytes_state_nothing(seed: int, port: int, tmp_path: Path) -> None:
    noise = Random(seed)
    request, reply, message = (noise.randbytes(n) for n in (56, 196, noise.randrange(4, 300, 4)))
    assert application(talk(ulp.Sample("", port, request, reply, message)), tmp_path) is None


def test_a_qp_used_again_is_not_named_by_the_messages_before(tmp_path: Path) -> None:
    """Both connections have the same QPNs; the second one's bytes say nothing."""
    t = talk(ulp.Sample("Ceph", 6800, message=ulp.CEPH_BANNER))
    t.cm("DREQ", local_comm_id=1, remote_comm_id=2, remote_qpn=0x12)
    t.cm("DREP", by="b", local_comm_id=2, remote_comm_id=1)
    t.wait(10_000_000)
    private = build_ip_cm(t.hosts["a"][0], t.hosts["b"][0], 40001)
    t.request(
        service_id=TCP | 6801, private_data=private, starting_psn=5000, local_comm_id=11, transaction_id=9
    )
    t.reply(starting_psn=6000, local_comm_id=12, remote_comm_id=11, transaction_id=9)
    t.cm("RTU", local_comm_id=11, remote_comm_id=12, transaction_id=9)
    t.packet("RC_SEND_ONLY", 6000, b"data", ackreq=1)
    t.packet("RC_ACKNOWLEDGE", 6000, by="b", syndrome=0x60, msn=1)
    names = [str(c.application) for c in analysed(t, tmp_path).connections]
    assert names == ["Ceph, messenger 2", "None"]


def test_a_rejection_says_why_in_the_application_s_words(tmp_path: Path) -> None:
    t = Talk()
    private = build_ip_cm(t.hosts["a"][0], t.hosts["b"][0], 40000, ulp.nvme_request(3))
    t.request(service_id=TCP | 4420, private_data=private)
    refusal: dict[str, Any] = {"message_rejected": 0, "reason": 28, "private_data": bytes([0, 0, 6, 0])}
    t.cm("REJ", by="b", local_comm_id=2, remote_comm_id=1, **refusal)
    (finding,) = (f for f in analysed(t, tmp_path).findings if f.rule == "cm-rejected")
    assert finding.title.endswith("consumer reject (reason 28); NVMe-oF: “no resources”")
    assert finding.evidence["private_data_text"] == "NVMe-oF: “no resources”"


def test_the_summary_counts_applications_of_many_connections() -> None:
    def one(application: Application | None) -> Connection:
        made = Connection(0, "RC", ["10.9.0.1", "10.9.0.2"], [1, 2])
        made.application = application
        return made

    found = [Application("rping", True, "its first messages"), Application("iSER", False, "port 3260"), None]
    lines = application_lines([one(a) for a in (*found, found[0])])
    assert lines == ["  Applications: rping (2), probably iSER (1), unknown (1)"]
    assert application_lines([one(None)]) == []


TSHARK = {"NVMe-oF": "nvme", "NFS/RDMA": "rpcordma", "SMB Direct": "smb_direct"}


@pytest.mark.parametrize(
    "sample",
    [s for s in ulp.CERTAIN if s.name in TSHARK and s.message and s.port in (4420, 20049, 445)],
    ids=named,
)
def test_tshark_reads_the_same_protocol(sample: ulp.Sample, tmp_path: Path, tshark: str) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(talk(sample).frames, unit="ns"))
    shown = subprocess.run(
        [tshark, "-r", str(path), "-T", "fields", "-e", "frame.protocols"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert TSHARK[sample.name] in shown
