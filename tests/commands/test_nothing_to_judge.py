"""A capture without RoCE packets says so first, in every command, and what it holds instead."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

pytest.importorskip("scapy")

from capture_bytes import pcap
from click.testing import CliRunner, Result
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import rdpcap, wrpcap

from rocekit.cli import rocekit as command

NOTHING = "No RoCE v2 packets: nothing to "
MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
E4 = Ether(**MACS) / IP(src="10.9.0.1", dst="10.9.0.2")
ROCE = UDP(sport=50000, dport=4791) / Raw(bytes.fromhex("0400ffff00000011800000016162636431323334"))
#: Inside GTP-U (3GPP TS 29.281, 5.1), which is not decoded.
TUNNELLED = E4 / UDP(sport=1, dport=2152) / Raw(bytes.fromhex("30ff003000000001")) / IP() / ROCE
MACSEC = Ether(type=0x88E5, **MACS) / Raw(bytes(60))
ESP = Ether(**MACS) / IP(proto=50) / Raw(bytes(60))
ULTRA = E4 / UDP(sport=1, dport=4793) / Raw(bytes(60))
JUNK = E4 / UDP(sport=5000, dport=4791) / Raw(b"not RoCE at all" * 4)
SNIFFER = "these packets bypass the kernel"

#: Packets, what is said of them, a word of the next step.
CAPTURES: dict[str, tuple[list[Packet], str, str]] = {
    "TCP": ([E4 / TCP()] * 30, "30 frames: 30 TCP.", "iWARP"),
    "header only": ([], "The capture has no frames.", SNIFFER),
    "ARP": ([Ether(**MACS) / ARP()] * 5, "5 frames: 5 ARP.", SNIFFER),
    "IPsec": ([ESP] * 12, "12 frames: 12 IPsec ESP.", "where they are not encrypted"),
    "junk": ([JUNK] * 9, "9 frames: 9 UDP port 4791, not RoCE.", "is probably another program"),
    "many": (
        [TUNNELLED] * 236 + [ULTRA] * 50 + [MACSEC] * 12 + [E4 / TCP()] * 30,
        "328 frames: 236 GTP-U with UDP 4791 inside, 50 UDP 4793 (Ultra Ethernet), 30 TCP, 12 MACsec.",
        "inside a tunnel that was not decoded",
    ),
}


def run(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words])


@cache
def capture_of(name: str) -> bytes:
    """The file of ``CAPTURES[name]``, which Scapy takes a third of a second to build."""
    packets, _, _ = CAPTURES[name]
    if not packets:
        return pcap([])
    with NamedTemporaryFile(suffix=".pcap") as file:
        wrpcap(file.name, packets)
        return Path(file.name).read_bytes()


@pytest.fixture(params=CAPTURES)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    _, held, step = CAPTURES[request.param]
    path = tmp_path / "x.pcap"
    path.write_bytes(capture_of(request.param))
    return path, held, step


Given = tuple[Path, str, str]


@pytest.mark.parametrize("name", ["analyze", "stats", "topology"])
def test_text_says_it_first(given: Given, name: str) -> None:
    path, held, step = given
    result = run(name, path)
    assert result.exit_code == 0
    first, second, third = result.stdout.splitlines()
    assert first == f"{path}: {NOTHING}judge."
    count, _, kinds = held.rpartition(": ")
    assert second.startswith(f"  {count}")
    assert second.endswith(kinds)
    assert third.startswith("  → ")
    assert step in third
    assert "No findings" not in result.stdout


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        ("explain IN", "explain"),
        ("export IN --to csv --table transfers -o -", "export"),
        ("plot IN -o OUT.png", "draw"),
        ("slice IN OUT.pcapng --redact", "cut out"),
        ("annotate IN OUT.pcapng", "annotate"),
    ],
)
def test_what_would_be_empty_is_an_error_that_says_it(
    given: Given, tmp_path: Path, words: str, purpose: str
) -> None:
    path, held, step = given
    needs = {"export": "polars", "draw": "matplotlib"}
    if purpose in needs:
        pytest.importorskip(needs[purpose])
    out = tmp_path / "out"
    result = run(*(w.replace("IN", str(path)).replace("OUT", str(out)) for w in words.split()))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"rocekit: error: {path}: {NOTHING}{purpose}. {held} ")
    assert step in result.stderr
    assert not result.stdout
    assert not list(tmp_path.glob("out*"))


def test_decode_says_it_on_standard_error(given: Given) -> None:
    path, held, step = given
    result = run("decode", path)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"{NOTHING}judge. {held} ")
    assert step in result.stderr


def test_json_says_what_there_is_and_what_to_do(given: Given) -> None:
    path, held, step = given
    for name in ("analyze", "stats", "topology"):
        capture = json.loads(run(name, path, "--format", "json").stdout)["capture"]
        assert capture["roce_packets"] == 0
        assert step in capture["next_step"]
        kinds = [f"{count} {kind}" for kind, count in capture["other_frames"].items()]
        assert ", ".join(kinds) == held.rpartition(": ")[2].rstrip(".") or not kinds


def test_the_page_says_it_at_the_top(given: Given, tmp_path: Path) -> None:
    path, held, step = given
    out = tmp_path / "r.html"
    result = run("report", path, "-o", out)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{out}: {NOTHING}judge. {held} ")
    assert step in result.stdout
    page = out.read_text()
    # The notice stands before the tiles with their zeros; test_report_page.py opens one in a browser.
    assert page.index('<div id="nothing"></div>') < page.index('<dl id="tiles"')
    data = page.partition('<script id="data" type="text/plain">')[2].partition("</script>")[0]
    text = gzip.decompress(base64.b64decode(data))
    assert f"{NOTHING}judge.".encode() in text
    assert b"No findings" not in text


def test_verify_compares_nothing_and_fails(given: Given, tshark: str) -> None:
    path, held, _ = given
    result = run("verify", path)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{NOTHING}compare. {held} ")


@pytest.mark.parametrize("name", ["analyze", "stats", "topology", "explain", "decode"])
def test_a_file_of_no_bytes_is_an_error_that_says_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "empty.pcap"
    path.touch()
    result = run(name, path)
    assert result.exit_code == 1
    assert "the file is empty: nothing was captured, so there is nothing to judge" in result.stderr


# ------------------------------------------------------------------ some RoCE, and more that was not read


def clean(pcaps: Path) -> list[Packet]:
    return list(rdpcap(str(pcaps / "ping-write-clean.pcap")))


def quiet(pcaps: Path) -> list[Packet]:
    """A capture without findings."""
    return list(rdpcap(str(pcaps / "rping-clean.pcap")))


Add = Callable[[list[Packet]], list[Packet]]


def cut_before_bth(packets: list[Packet]) -> list[Packet]:
    made = []
    for packet in packets:
        one = Ether(bytes(packet)[:50])
        one.time, one.wirelen = packet.time, len(packet)
        made.append(one)
    return made


UNREAD: dict[str, tuple[Add, str, str]] = {
    "MACsec": (lambda own: [MACSEC] * 300, "300 MACsec", "MACsec encrypts"),
    "IPsec": (lambda own: [ESP] * 300, "300 IPsec ESP", "IPsec encrypts"),
    "GTP-U": (lambda own: [TUNNELLED] * 300, "300 GTP-U with UDP 4791 inside", "was not decoded"),
    "fragments": (
        lambda own: [Ether(**MACS) / IP(proto=17, frag=100) / Raw(bytes(60))] * 300,
        "300 later fragments of UDP datagrams",
        "RoCE in fragments is not read",
    ),
    "cut": (
        lambda own: cut_before_bth((own * 3)[:300]),
        "300 UDP 4791 cut before the end of the BTH",
        "Frames are cut too short",
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_no_all_clear_is_given_for_what_was_not_read(pcaps: Path, tmp_path: Path, kind: str) -> None:
    add, words, step = UNREAD[kind]
    own = clean(pcaps)
    path = tmp_path / "x.pcap"
    wrpcap(str(path), [*own, *add(own)])
    result = run("analyze", path)
    assert result.exit_code == 0
    notice = f"Not judged: 300 frames that may be RoCE and could not be read, more than were read: {words}."
    assert notice in result.stdout
    assert step in result.stdout
    assert "No findings: no loss" not in result.stdout
    capture = json.loads(run("analyze", path, "--format", "json").stdout)["capture"]
    assert capture["not_read"] == {words.partition(" ")[2]: 300}
    assert step in capture["next_step"]
    assert notice in run("stats", path).stdout
    assert notice in run("explain", path).stdout
    assert notice in run("decode", path).stderr
    if shutil.which("tshark"):
        assert notice in run("verify", path).stdout


def test_a_few_unread_frames_are_named_without_alarm(pcaps: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    wrpcap(str(path), [*quiet(pcaps), *[MACSEC] * 3])
    said = run("analyze", path).stdout
    assert "Not judged: 3 frames that may be RoCE and could not be read: 3 MACsec." in said
    assert "No findings in the RoCE packets that were read; others were not read: see above." in said


def test_a_capture_whose_packets_are_all_cut_has_nothing_to_judge(pcaps: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    own = clean(pcaps)
    wrpcap(str(path), cut_before_bth(own))
    first, second, third, *_ = run("analyze", path).stdout.splitlines()
    assert first == f"{path}: {NOTHING}judge."
    assert second.endswith(f": {len(own)} UDP 4791 cut before the end of the BTH.")
    assert "Frames are cut too short" in third


def test_other_traffic_beside_roce_changes_nothing(pcaps: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    wrpcap(str(path), [*quiet(pcaps), *[E4 / TCP()] * 500])
    said = run("analyze", path).stdout
    assert "Not judged" not in said
    assert "No findings: no loss, retransmission or NAK seen." in said
    capture: dict[str, Any] = json.loads(run("analyze", path, "--format", "json").stdout)["capture"]
    assert capture["other_frames"]["TCP"] >= 500
    assert (capture["not_read"], capture["next_step"]) == ({}, None)
