"""NCCL says in C structs over TCP which QPs it connects; a pair is right, or there is none."""

from __future__ import annotations

import ctypes
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from capture_bytes import pcap
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nccl_exchange import JUNK, NOTHING, VERSIONS, WITH_LISTS, exchange, hello, in_step, made, timed

import rocekit
from rocekit.capture import open_capture
from rocekit.track.pairs.handshake import Offer
from rocekit.track.pairs.nccl_metadata import LAYOUTS, NcclExchanges, read_start

A, B = "10.0.0.1", "10.0.0.2"
QPNS_A, QPNS_B = (0x111, 0x112, 0x113, 0x114), (0x252, 0x253, 0x254, 0x251)
FIRST_ONLY = ("2.11", "2.15", "2.18", "2.19", "2.20", "2.23")


def qps(version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    count = 1 if version == "2.9" else 4
    return QPNS_A[:count], QPNS_B[:count]


def structs(version: str, before: bytes = NOTHING) -> tuple[bytes, bytes]:
    a, b = qps(version)
    return made(version, [A], a, before), made(version, [B], b, before)


def pairs_in(path: Path, frames: list[bytes], snaplen: int = 65535) -> list[tuple[Offer, Offer]]:
    path.write_bytes(pcap(timed(frames, snaplen)))
    reader, found = NcclExchanges(), []
    with open_capture(str(path)) as capture:
        for batch in capture:
            found += list(reader.feed(batch, np.arange(len(batch))))
    return found


def named(pairs: list[tuple[Offer, Offer]]) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return [((a.ip, a.qpn), (b.ip, b.qpn)) for a, b in pairs]


def expected(version: str) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    return [((A, a), (B, b)) for a, b in zip(*qps(version), strict=True)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("syn", [True, False])
def test_each_version_names_its_pairs(version: str, syn: bool, tmp_path: Path) -> None:
    pairs = pairs_in(tmp_path / "a.pcap", exchange(version, structs(version), syn=syn))
    assert named(pairs) == expected(version)
    assert {(offer.psn, offer.program, offer.rkey) for pair in pairs for offer in pair} == {(0, "NCCL", None)}


def test_the_layouts_have_the_compilers_sizes() -> None:
    """The size of a body ends with the last field that is read."""
    sizes = {ctypes.sizeof(kind) for kind in VERSIONS.values()}
    ends = {
        kind.count.offset + 4 if hasattr(kind, "count") else ctypes.sizeof(kind) for kind in VERSIONS.values()
    }
    assert {layout.body.size for layout in LAYOUTS} == ends
    assert sizes == {48, 552, 2600, 3336, 3576, 3584, 3648, 3744, 4576}


@pytest.mark.parametrize("version", ["2.9", "2.18", "2.30"])
def test_flows_that_nothing_else_pairs_are_paired(version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    truth = expected(version)
    if version == "2.9":  # several connections of one QP each
        truth = [((A, a), (B, b)) for a, b in zip(QPNS_A, QPNS_B, strict=True)]
        frames = []
        for n, ((_, a), (_, b)) in enumerate(truth):
            own = made(version, [A], [a]), made(version, [B], [b])
            frames += exchange(version, own, ports=(40000 + n, 45678))
    else:
        frames = exchange(version, structs(version))
    path.write_bytes(pcap(timed(in_step(truth))))
    assert {c.paired_by for c in rocekit.analyze(path).connections} == {None}
    path.write_bytes(pcap(timed(frames + in_step(truth))))
    connections = rocekit.analyze(path).connections
    found = {((c.ips[0], c.qpns[0]), (c.ips[1], c.qpns[1])) for c in connections}
    assert found == set(truth)
    assert {(c.paired_by, c.paired_surely) for c in connections} == {("handshake", True)}
    assert {c.negotiated[side].starting_psn for c in connections for side in (0, 1)} == {0}
    named_so = {(c.application.name, c.application.certain) for c in connections if c.application is not None}
    assert named_so == {("NCCL", False)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_snaplen_leaves_none(version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    frames = exchange(version, structs(version))
    assert pairs_in(path, frames, 96) == []
    path.write_bytes(pcap(timed(frames + in_step(expected(version)), 96)))
    assert "handshake" not in {c.paired_by for c in rocekit.analyze(path).connections}


@pytest.mark.parametrize("version", FIRST_ONLY)
def test_where_the_stack_left_something_only_sure_qps_are_read(version: str, tmp_path: Path) -> None:
    pairs = pairs_in(tmp_path / "a.pcap", exchange(version, structs(version, JUNK)))
    assert named(pairs) == expected(version)[:1]


def test_qps_of_several_devices_have_their_devices_addresses(tmp_path: Path) -> None:
    a, b = ["10.0.0.1", "10.1.0.1"], ["10.0.0.2", "10.1.0.2"]
    for version in ("2.20", "2.28"):
        both = made(version, a, QPNS_A), made(version, b, QPNS_B)
        pairs = pairs_in(tmp_path / "a.pcap", exchange(version, both, devices=(2, 2)))
        assert named(pairs) == [((a[n % 2], QPNS_A[n]), (b[n % 2], QPNS_B[n])) for n in range(4)]
    junk = made("2.20", a, QPNS_A, JUNK), made("2.20", b, QPNS_B, JUNK)
    pairs = pairs_in(tmp_path / "a.pcap", exchange("2.20", junk, devices=(2, 2)))
    assert named(pairs) == [((a[n], QPNS_A[n]), (b[n], QPNS_B[n])) for n in range(2)]


def test_ipv6_addresses_and_vlans_are_read(tmp_path: Path) -> None:
    both = made("2.28", ["fd00::1"], [5]), made("2.28", ["fd00::2"], [6])
    for vlan in (False, True):
        for hosts in (("fd01::1", "fd01::2"), ("192.168.0.1", "192.168.0.2")):
            frames = exchange("2.28", both, hosts=hosts, vlan=vlan)
            pairs = pairs_in(tmp_path / "a.pcap", frames)
            assert named(pairs) == [(("fd00::1", 5), ("fd00::2", 6))]


@pytest.mark.parametrize("seed", range(8))
def test_segments_may_be_repeated_reordered_and_of_any_size(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    version = rng.choice(list(VERSIONS))
    frames = exchange(version, structs(version), size=rng.choice([7, 100, 1000, 1448, 9000]))
    copies = [f for frame in frames for f in [frame] * rng.choice([1, 1, 2])]
    for _ in range(len(copies) // 3):
        at = rng.randrange(3, len(copies) - 1)  # the connection is opened before
        if copies[at - 1][47] & 2 == 0:
            copies[at], copies[at - 1] = copies[at - 1], copies[at]
    assert named(pairs_in(tmp_path / "a.pcap", copies)) == expected(version)


def test_a_missing_segment_leaves_none(tmp_path: Path) -> None:
    frames = exchange("2.28", structs("2.28"))
    carrying = [n for n, frame in enumerate(frames) if len(frame) > 200]
    for n in carrying:
        assert pairs_in(tmp_path / "a.pcap", frames[:n] + frames[n + 1 :]) == []


def test_a_port_that_is_used_again_starts_anew(tmp_path: Path) -> None:
    first, second = structs("2.28"), (made("2.28", [A], [9]), made("2.28", [B], [8]))
    again = exchange("2.28", second, starts=(5000, 6000))
    once = exchange("2.28", first)
    found = pairs_in(tmp_path / "a.pcap", [*once, *once, *again])
    assert named(found) == [*expected("2.28"), ((A, 9), (B, 8))]


@pytest.mark.parametrize(
    "change",
    [
        {"mtu": 0}, {"mtu": 6}, {"port": 0}, {"link": 1}, {"lid": 1 << 20}, {"qpn": 1}, {"qpn": 1 << 24},
        {"ip": "0.0.0.0"}, {"ip": "224.0.0.1"}, {"ip": "ff02::1"}, {"ip": "127.0.0.1"}, {"count": 0},
        {"count": 5}, {"name": b""}, {"device": 1}, {"unused": 1}, {"copied": 1},
    ],
)  # fmt: skip
def test_what_is_not_plausible_is_no_struct(change: dict[str, object], tmp_path: Path) -> None:
    version = "2.28"
    raw = made(version, [str(change.get("ip", B))], QPNS_B)
    new = VERSIONS[version].from_buffer_copy(raw)
    for name, value in change.items():
        if name in ("count", "name"):
            setattr(new, name, value)
        elif name in ("mtu", "port", "link", "lid"):
            setattr(new.devices[0], name, value)
        elif name in ("qpn", "device"):
            setattr(new.qps[0], name, value)
    if "unused" in change:
        new.qps[100].qpn = 5
    if "copied" in change:
        new.qps[1].qpn = new.qps[0].qpn
    own = made(version, [A], QPNS_A)
    assert pairs_in(tmp_path / "a.pcap", exchange(version, (own, bytes(new)))) == []


def test_both_ends_have_the_same_layout_and_as_many_qps(tmp_path: Path) -> None:
    path = tmp_path / "a.pcap"
    fewer = made("2.28", [B], QPNS_B[:3])
    assert pairs_in(path, exchange("2.28", (structs("2.28")[0], fewer))) == []
    for one, other in itertools.permutations(("2.18", "2.19", "2.23", "2.26", "2.28", "2.30"), 2):
        mixed = structs(one)[0], structs(other)[1]
        assert pairs_in(path, exchange(one, mixed)) == []
    kinds = made("2.28", [A], [5]), made("2.28", ["fd00::2"], [6])
    assert pairs_in(path, exchange("2.28", kinds)) == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=6000), st.sampled_from([b"", hello("2.30")]))
def test_random_bytes_are_no_struct(data: bytes, start: bytes) -> None:
    assert read_start(start + data)[0] == {}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(VERSIONS)),
    st.lists(st.tuples(st.integers(0, 4575), st.integers(1, 255)), min_size=1, max_size=6),
    st.booleans(),
)
@example("2.28", [(0, 1)], False)
@example("2.24", [(96, 2)], False)
def test_a_changed_struct_gives_nothing_that_is_not_in_it(
    version: str, changes: list[tuple[int, int]], junk: bool
) -> None:
    """A struct gives what its bytes say, or nothing; with the QPNs as they were it gives all or nothing."""
    raw = bytearray(made(version, [A], qps(version)[0], JUNK if junk else NOTHING))
    for at, bits in changes:
        raw[at % len(raw)] ^= bits
    new = VERSIONS[version].from_buffer_copy(raw)
    own = [slot.qpn for slot in new.qps] if hasattr(new, "qps") else list(new.qpn)
    lists = (4 + 4 * WITH_LISTS[version] + (version == "2.30")) if version in WITH_LISTS else 0
    before = hello(version) + (b"\1" + bytes(lists - 1) if lists else b"")
    for side in read_start(before + bytes(raw))[0].values():
        assert [qpn for _, qpn in side.qps] == own[: len(side.qps)]
        # a QPN in the next slot is one more QP, as far as the bytes say
        if tuple(own[:5]) == (*qps(version)[0], 0) and version in WITH_LISTS:
            assert len(side.qps) == 4
