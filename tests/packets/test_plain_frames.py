"""The short way for plain frames takes of each frame what the long way takes.

A packet in an Ethernet frame may go the short way; the same one on a link of raw IP goes the long way.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from amount import runs
from handmade import Net, batch_of, checksum, ethernet, transport

from rocekit.files.frames import LINKTYPE_RAW
from rocekit.packets.dissect import Dissector
from rocekit.packets.dissecting.columns import PACKET_COLUMNS
from rocekit.wire import OPCODES

SEEDS = runs(40)
LINK_BYTES = 14
#: Columns that are places in the batch's bytes.
PLACES = frozenset({"start", "bth", "end", "limit", "payload_at"})


def columns_of(packets: list[bytes], kept: list[int], sent: list[int], *, raw: bool) -> dict[str, Any]:
    """What the dissector makes of IP packets cut to ``kept`` bytes; places count from the packet's first."""
    link = 0 if raw else LINK_BYTES
    frames = [p if raw else ethernet(p, 0x0800) for p in packets]
    frames = [frame[: link + size] for frame, size in zip(frames, kept, strict=True)]
    how: dict[str, Any] = {"linktype": LINKTYPE_RAW} if raw else {}
    batch = batch_of(frames, wirelen=[link + size for size in sent], **how)
    dissector = Dissector()
    dissector.run(batch)
    found = {name: dissector.columns[name].copy() for name in (*PACKET_COLUMNS, "words", "layer")}
    for name in PLACES:
        found[name] -= batch.offset[found["index"]] + link
    found["layer"] -= batch.offset + link
    counts = ("count", "wrapped", "later_fragments", "truncated_count", "malformed_count", "fragment_count")
    return found | {name: getattr(dissector, name) for name in counts}


def packet(draw: random.Random) -> bytes:
    """A RoCE v2 packet, in which a few bits may be others; its checksum may be made right again."""
    body = transport(
        draw.choice(sorted(OPCODES)),
        bytes(draw.choice((0, 1, 8, 30))),
        psn=draw.getrandbits(24),
        dest_qpn=draw.getrandbits(24),
        padcount=draw.choice((0, 0, 0, 1, 3)),
        version=draw.choice((0, 0, 0, 0, 5)),
    )
    flags = draw.choice((0x4000, 0x4000, 0x4000, 0, 0x8000, 0x2000, 0x0001))
    options = draw.choice((b"", b"", b"", b"\x01\x01\x01\x00"))
    net = Net(options=options, flags=flags, tclass=draw.getrandbits(8), sport=draw.getrandbits(16))
    found = bytearray(net.wrap(body))
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        found[draw.randrange(min(len(found), 80))] ^= 1 << draw.randrange(8)
    if draw.random() < 0.7:
        length = min(len(found), (found[0] & 15) * 4) // 2 * 2
        found[10:12] = bytes(2)
        if draw.random() < 0.7:
            found[10:12] = checksum(bytes(found[:length])).to_bytes(2, "big")
    return bytes(found)


def test_both_ways_take_the_same() -> None:
    taken = cut = 0
    for seed in range(SEEDS):
        draw = random.Random(seed)
        packets = [packet(draw) for _ in range(200)]
        kept, sent = [], []
        for each in packets:
            kept.append(len(each) if draw.random() < 0.6 else draw.randrange(len(each) + 1))
            sent.append(draw.choice((len(each), len(each), kept[-1], len(each) + 4)))
        short, long = (columns_of(packets, kept, sent, raw=raw) for raw in (False, True))
        for name, column in long.items():
            assert np.array_equal(short[name], column), (seed, name)
        taken += long["count"]
        cut += long["truncated_count"]
    assert taken > 50 * SEEDS
    assert cut > SEEDS


def test_padding_behind_a_packet_is_not_its_payload() -> None:
    each = Net().wrap(transport(17, psn=3, dest_qpn=5)) + bytes(14)
    short, long = (columns_of([each], [len(each)], [len(each)], raw=raw) for raw in (False, True))
    assert short["end"].tolist() == long["end"].tolist() == [len(each) - 14]
    assert short["payload_length"].tolist() == [0]


def test_a_plain_frame_behind_one_of_another_kind_has_its_own_row() -> None:
    plain = ethernet(Net().wrap(transport(4, bytes(8), psn=9, dest_qpn=7)))
    tagged = ethernet(Net().wrap(transport(4, bytes(4), psn=8, dest_qpn=6)), None, (0x8100, 5))
    other = ethernet(bytes(60), 0x0806)
    dissector = Dissector()
    dissector.run(batch_of([plain, other, tagged, plain, other]))
    found = dissector.columns
    assert found["index"].tolist() == [0, 2, 3]
    assert found["psn"].tolist() == [9, 8, 9]
    assert found["vlan"].tolist() == [-1, 5, -1]
    assert found["ethertype"].tolist() == [0x0800, 0x0806, 0x0800, 0x0800, 0x0806]
