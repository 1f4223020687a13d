"""A redacted capture analyses to the same, and has none of the original's addresses, keys and data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import PCAPS

import rocekit
from rocekit import wire
from rocekit.analysis import Analysis, find_journals
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.edit.redact import Redactor
from rocekit.edit.slice import Choice, Cut, cut, originals
from rocekit.journal import read_journal

SECRET = b"for tests only, always the same."
OPCODES = [o for o in wire.OPCODES.values() if o.transport != "CNP"]


def windows(data: bytes, width: int = 8) -> Iterator[bytes]:
    """The runs of bytes in which something is said."""
    for i in range(len(data) - width + 1):
        run = data[i : i + width]
        if len(set(run)) > 4:
            yield run


def captures() -> list[str]:
    folder = PCAPS
    return sorted(p.name for p in folder.iterdir() if p.suffix in (".pcap", ".pcapng"))


def redacted(source: Path, folder: Path) -> tuple[Analysis, Analysis, Redactor, Cut, Path]:
    analysis = rocekit.analyze(source)
    r = Redactor(SECRET, taken=originals(analysis))
    out = folder / "out.pcapng"
    done = cut(analysis, [out], Choice(), redactor=r)
    return analysis, rocekit.analyze(out), r, done, out


def check_same(analysis: Analysis, again: Analysis, r: Redactor, done: Cut) -> None:
    """The same story of other people: findings, transfers, connections, CM messages, journal."""
    place = {number: i for i, number in enumerate(done.slices[0].sources, start=1)}

    def translated(document: Any) -> Any:
        text = json.dumps(document)
        for old in sorted(r.ips, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.:]){re.escape(old)}(?!\w|\.\d|:[0-9a-f])", r.ips[old], text)
        return json.loads(text)

    def findings(a: Analysis, frames: dict[int, int] | None) -> list[Any]:
        documents = a.findings.to_dicts()
        for document in documents:
            if frames is not None:
                document["frames"] = [frames[frame] for frame in document["frames"]]
            del document["evidence"]
            # What a refusal was aimed at is replaced where it is told, too.
            document["title"] = re.sub(r"at 0x\w+ with rkey 0x\w+", "at … with rkey …", document["title"])
            # Hosts of a journal have other names.
            document["title"] = re.sub(r" on \S+ ended WR", " on … ended WR", document["title"])
        return documents

    assert findings(again, None) == translated(findings(analysis, place))
    one_by_one = zip(again.connections.to_dicts(), translated(analysis.connections.to_dicts()), strict=True)
    for after, before in one_by_one:
        # Without payload and private data the application is probable at most.
        left, had = after.pop("application"), before.pop("application")
        assert left is None or not left["certain"] or left["ground"] == had["ground"] == "its text over TCP"
        assert after == before
    changed = ("rkey", "remote_va", "immediate", "invalidate_rkey", "wr", "wc", "frames")
    for one, two in zip(analysis.transfers, again.transfers, strict=True):
        before, after = translated(one.to_dict()), two.to_dict()
        assert {k: v for k, v in after.items() if k not in changed} == {
            k: v for k, v in before.items() if k not in changed
        }
        assert after["frames"] == [place[frame] for frame in before["frames"]]
        assert one.rkey is None or two.rkey == r.key(one.rkey)
        assert one.remote_va is None or two.remote_va == r.address(one.remote_va)
        for name in ("wr", "wc", "recv_wr", "recv_wc"):
            assert (getattr(one, name) is None) == (getattr(two, name) is None)
        if one.wr is not None and two.wr is not None:
            assert two.wr.matched_by == one.wr.matched_by
            if one.wr.event.get("rkey") is not None:
                assert two.wr.event["rkey"] == two.rkey
    assert [(x.message, x.repeated, x.src) for x in again.cm] == [
        (x.message, x.repeated, r.ips[x.src]) for x in analysis.cm
    ]
    assert (analysis.journal is None) == (again.journal is None)
    if analysis.journal is not None and again.journal is not None:
        told = [e.record is None or place[e.record.frame] for e in analysis.journal.cm_events]
        assert [e.record is None or e.record.frame for e in again.journal.cm_events] == told


def secrets_of(source: Path, analysis: Analysis) -> Iterator[bytes]:
    """Bytes of a capture and its journals that must not be found again: long enough to be no accident."""
    decoder = Decoder()
    with open_capture(source) as reader:
        for batch in reader:
            packets = decoder.decode(batch)
            for i in np.flatnonzero(decoder.network.ethertype != 0).tolist():
                frame = batch.frame(i)
                # Those of soft devices are mostly zeros, and stand anywhere by accident.
                yield from {mac for mac in (frame[:6], frame[6:12]) if not mac[0] & 1 and len(set(mac)) > 3}
            for i in range(len(packets)):
                payload = packets.payload(i)
                if packets.dest_qpn[i] > 1:
                    yield from islice(windows(payload, 12), 30)
            for name, bits in (("remote_va", 64), ("original", 64), ("compare", 64)):
                yield from (v.to_bytes(bits // 8, "big") for v in set(packets[name].tolist()) if v >> 20)
            keys = {
                (va, key)
                for va, key in zip(packets.remote_va.tolist(), packets.rkey.tolist(), strict=True)
                if key
            }
            yield from (va.to_bytes(8, "big")[4:] + key.to_bytes(4, "big") for va, key in keys)
    for address in decoder.addresses:
        if not ip_address(address).is_loopback:  # which is everybody's
            yield address.encode()
            yield ip_address(address).packed
    for record in analysis.cm:
        yield from islice(windows(record.cm.private_data), 40)
        guid = record.cm.number("local_ca_guid")
        if guid:
            yield guid.to_bytes(8, "big")
    for path in find_journals(source):
        for event in read_journal(path):
            for key in ("addr", "remote_va", "rkey", "lkey"):
                value = event.get(key)
                if value:
                    yield f'"{key}":{value}'.encode()
            if event.get("private_data", "").strip("0"):
                yield event["private_data"].rstrip("0").encode()
            yield f'"host":"{event.host}"'.encode()


def found(secrets: Iterator[bytes], data: bytes) -> set[bytes]:
    """Those that stand anywhere in ``data``."""
    sought = set(secrets)
    assert sought
    assert b"" not in sought
    lengths: dict[int, set[int]] = {}
    for secret in sought:
        if len(secret) >= 4:
            lengths.setdefault(int.from_bytes(secret[:4], "big"), set()).add(len(secret))
    octets = np.frombuffer(data, np.uint8).astype(np.uint32)
    fours = octets[:-3] << 24 | octets[1:-2] << 16 | octets[2:-1] << 8 | octets[3:]
    places = np.flatnonzero(np.isin(fours, np.array(list(lengths), np.uint32)))
    pieces = {
        data[at : at + length]
        for at, four in zip(places.tolist(), fours[places].tolist(), strict=True)
        for length in lengths[four]
    }
    return (pieces & sought) | {secret for secret in sought if len(secret) < 4 and secret in data}


def test_the_search_finds_what_was_not_redacted(pcaps: Path) -> None:
    source = pcaps / "ping-write-clean.pcap"
    analysis = rocekit.analyze(source)
    secrets = set(secrets_of(source, analysis))
    whole = source.read_bytes() + b"".join(path.read_bytes() for path in find_journals(source))
    addresses = {address.encode() for address in ("10.9.0.1", "10.9.0.2")}
    assert found(iter(secrets), whole) == secrets
    assert addresses <= secrets


def values_of(journal: Path) -> Iterator[bytes]:
    """A journal without the names of its keys, which are the schema's and may have a short secret in them."""

    def values(value: Any) -> Iterator[bytes]:
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from values(inner)
        else:
            yield json.dumps(value).encode() + b"\n"

    for line in journal.read_text().splitlines():
        yield from values(json.loads(line))


@pytest.mark.parametrize("name", captures())
def test_a_redacted_capture_analyses_to_the_same_and_has_none_of_the_originals(
    pcaps: Path, name: str, tmp_path: Path
) -> None:
    analysis, again, r, done, out = redacted(pcaps / name, tmp_path)
    check_same(analysis, again, r, done)
    written = b"" if done.journal is None else done.journal.read_bytes()
    values = b"" if done.journal is None else b"".join(values_of(done.journal))
    secrets = set(secrets_of(pcaps / name, analysis))
    keyed = {secret for secret in secrets if secret.startswith(b'"')}  # those of a journal: ``"rkey":17``
    assert found(iter(secrets - keyed), out.read_bytes() + values) == set()
    assert not keyed or found(iter(keyed), out.read_bytes() + written) == set()


EXCHANGES = ("pingpong_rc", "pingpong_uc", "rdma_read_bw", "rdma_send_bw", "rdma_cm", "nccl_ring_node0")


@pytest.mark.parametrize("name", EXCHANGES)
def test_captures_of_others_keep_their_handshakes_and_lose_their_hosts(
    others: Path, name: str, tmp_path: Path
) -> None:
    source = others / f"{name}.pcap"
    analysis, again, r, done, out = redacted(source, tmp_path)
    check_same(analysis, again, r, done)
    everything = out.read_bytes()
    assert found(secrets_of(source, analysis), everything) == set()
    for address in r.ips:
        if ":" not in address:
            assert ":".join(f"{byte:02x}" for byte in ip_address(address).packed).encode() not in everything
