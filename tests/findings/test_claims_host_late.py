"""A first packet that comes one timeout after its post: the repeat of a lost one, or a host that was late.

Of `blast-write` in a busy machine, whose packets often came 8 to 33 ms after their post, one came 17.05 ms
after it, with a timeout of 16.8 ms, and was told as lost before the capture. Nothing was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from story import Story

from rocekit.findings import Finding

KNOWN = """
    A created
    A modified state=RTR dest_qpn=0x12 path_mtu=1024 dest_ip=10.0.0.2 local_ip=10.0.0.1
    A modified state=RTS sq_psn=5 timeout=12 retry_cnt=3
"""
TIMEOUT_US = 16_777


def losses(folder: Path, waits_us: Sequence[int], then: str = "") -> list[Finding]:
    """The losses of SENDs whose packets come so long after their posts."""
    lines = KNOWN
    for n, wait_us in enumerate(waits_us):
        lines += f"A wr {n} SEND 64\n+{wait_us}us\na RC_SEND_ONLY {5 + n} 64 ackreq=1\n+5us\nb ACK {5 + n}\n"
        lines += f"+5us\nA wc {n} SUCCESS opcode=SEND\n+100us\n"
    return [f for f in Story(lines + then, ip_ids=True).analyze(folder).findings if f.severity != "info"]


def test_a_packet_that_comes_one_timeout_after_its_post_is_a_repeat(tmp_path: Path) -> None:
    (found,) = losses(tmp_path, [20] * 12 + [TIMEOUT_US] + [20] * 3)
    assert found.rule == "tail-loss"
    assert found.evidence["psns"] == [17]


def test_a_host_that_is_often_as_late_lost_nothing(tmp_path: Path) -> None:
    waits = [20] * 12 + [9_000, 13_700, TIMEOUT_US, 24_000, 20, 30_100]
    assert losses(tmp_path, waits) == []


def test_beside_late_responses_it_is_a_loss_probably(tmp_path: Path) -> None:
    """It ended with a defect: only of a loss with a repeat is it open whether the response was lost."""
    late = f"a RC_SEND_ONLY 21 64 ackreq=1\n+{TIMEOUT_US}us\na RC_SEND_ONLY 21 64 ackreq=1\n+2us\n"
    found = losses(tmp_path, [20] * 12 + [TIMEOUT_US] + [20] * 3, late + "b ACK 21\n+9us\nb ACK 21")
    assert sorted(f.rule for f in found) == ["tail-loss", "timeout-too-short"]
    (loss,) = (f for f in found if f.rule == "tail-loss")
    assert loss.title.startswith("PSN 17 was probably lost at the end of a burst")
