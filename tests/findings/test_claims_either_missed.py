"""What is open where the order in a file, or what each of two captures lacks, contradicts what seems so.

Found with NFS and iSER of the kernel over rxe (``storage-1`` and ``storage-5`` of the truth bench), as
captures whose times run back, and as ones that miss small packets.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from capture_bytes import Frame, pcap
from talk import MS, TIMEOUT, US, Talk, of_rule, only
from two_points import findings_of_two

import rocekit


def quiet(t: Talk) -> None:
    for psn in range(10, 140):
        t.send(psn)
        t.wait(20 * US)
        t.ack(psn)
        t.wait(20 * US)


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
@pytest.mark.parametrize("missed", [False, True])
def test_of_two_alike_each_capture_has_another(tmp_path: Path, operation: str, missed: bool) -> None:
    """The requester's capture lacks the repeat, so the responder's may lack the request itself."""
    t = Talk()
    quiet(t)
    sent = []
    for _ in range(2):
        sent.append(t.read(140, 3) if operation == "READ" else t.send(140)[140])
        t.wait(TIMEOUT if len(sent) == 1 else 20 * US)
    if operation == "READ":
        t.responses(140, 3)
    else:
        t.ack(140)
    t.wait(MS)
    for psn in range(143, 160):
        t.send(psn if operation == "READ" else psn - 2)
        t.wait(20 * US)
        t.ack(psn if operation == "READ" else psn - 2)
    frames = dict(enumerate(t.frames, 1))
    at_a = [frame for n, frame in frames.items() if not (missed and n == sent[1])]
    at_b = [frame for n, frame in frames.items() if n != sent[0]]
    found = only(findings_of_two(tmp_path, at_a, at_b), "tail-loss")
    assert bool(found.evidence.get("places")) != missed
    assert ("probably" in found.title) == missed, found.title


@pytest.mark.parametrize("in_file", [False, True])
def test_packets_that_only_their_times_put_out_of_order(tmp_path: Path, in_file: bool) -> None:
    t = Talk()
    for psn in range(100, 140, 2):
        t.write(psn, 2)
        t.wait(20 * US)
        t.ack(psn + 1)
        t.wait(20 * US)
    first = [t.write(psn, 4) for psn in (140, 144, 148)][1]
    t.wait(20 * US)
    for psn in range(143, 152, 4):
        t.ack(psn)
    frames = list(t.frames)
    # Where each second packet of a message is written before the first, times tell the order.
    for n in range(0, 60, 6):
        frames[n], frames[n + 1] = frames[n + 1], frames[n]
    late, over = first[145] - 1, first[147] - 1
    moved = Frame(frames[late].data, frames[over].time_ns + 3 * US)
    if in_file:  # where its time says that it belongs
        frames[over + 1 : over + 1] = [moved]
        del frames[late]
    else:
        frames[late] = moved
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap(frames, unit="ns"))
    (found,) = of_rule(rocekit.analyze(path).findings, "reordering")
    assert ("probably" in found.title) != in_file, found.title
    assert ("only their times say" in found.advice) != in_file
