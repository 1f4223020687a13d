"""Explanations of transfers with much trouble: many alike steps are one line, and nothing of them is lost.

A step that differs is never inside a sum: a real loss among packets that only arrived out of order is a line
of its own.
"""

from __future__ import annotations

import pytest
from alike import adaptive_routing, analyzed, losses, refused, sprayed
from talk import US, Talk

from rocekit.commands.trace_lines import TextLines
from rocekit.explanation.alike_steps import SCREEN
from rocekit.explanation.transfer import story
from rocekit.live.tracing import Trouble


def steps(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.lstrip().startswith("+")]


def test_packets_out_of_order_are_one_line() -> None:
    explained = analyzed(adaptive_routing()).explain(1)
    shown = steps(story(explained))
    assert len(shown) == 4
    assert "PSN 13–71" in shown[1]
    assert (
        "21 packets arrived out of order, up to 4 µs behind the packet that overtook them, frames 5–64"
        in shown[1]
    )
    assert "42 steps, alike ones summed up (--steps lists each)" in story(explained)


def test_every_step_is_there_on_request_and_in_json() -> None:
    explained = analyzed(adaptive_routing()).explain(1)
    assert len(steps(story(explained, every=True))) == len(explained.to_dict()["steps"]) == 42


def test_a_gap_that_was_filled_says_so() -> None:
    explained = analyzed(adaptive_routing(16)).explain(1)
    assert len(explained.steps) <= SCREEN
    gaps = [s.detail for s in explained.steps if "missing at" in s.detail]
    assert gaps
    assert all(detail.endswith("arrived later, out of order") for detail in gaps)


@pytest.mark.parametrize("ids", [True, False])
def test_a_loss_among_packets_out_of_order_is_a_line_of_its_own(ids: bool) -> None:
    talk = Talk(mtu=4096)
    talk.write(10, 1)
    talk.ack(10)
    sprayed(talk, 11, 64, lost={40}, ids=ids)
    talk.nak(40)
    talk.wait(100 * US)
    talk.write(11, 64, only=[40], identification=talk.ident + 1 if ids else 0)
    talk.ack(74)
    shown = steps(str(analyzed(talk).explain(1)))
    assert sum("arrived out of order" in line for line in shown) == 1
    assert sum("PSN 40–41 " in line and "missing at" in line for line in shown) == 1
    assert sum("NAK PSN sequence error" in line for line in shown) == 1
    assert sum("PSN 40 again" in line for line in shown) == 1


def test_many_losses_are_one_line_for_each_kind_of_step() -> None:
    shown = steps(str(analyzed(losses(200)).explain(1)))
    assert len(shown) == 5
    assert "200 times: 200 packets missing: lost before the capture point" in shown[1]
    assert "200 times: did not arrive: NAK PSN sequence error, lost before the capture point" in shown[2]
    assert (
        "200 times: 1,000 packets, 1,024,000 bytes sent again, after the NAK, 200 of them not in the capture "
        "before, frames 11–2602" in shown[3]
    )


def test_waits_of_different_length_are_one_line() -> None:
    talk = Talk()
    talk.send(1)
    talk.ack(1)
    for k in range(20):
        talk.send(2)
        talk.rnr(2)
        talk.wait((1000 + k) * US)
    talk.send(2)
    talk.ack(2)
    shown = steps(str(analyzed(talk).explain(1)))
    assert "20 times: no receive was posted: RNR NAK, wait 640 µs" in shown[1]
    assert "20 times: 20 packets, 20,480 bytes sent again, 1.001 ms to 1.020 ms after the RNR NAK" in shown[2]


def test_five_hundred_rnr_naks_are_four_lines() -> None:
    assert len(steps(str(analyzed(refused(500)).explain(1)))) == 4


def test_a_few_steps_stay_single() -> None:
    explained = analyzed(losses(3)).explain(1)
    assert len(steps(str(explained))) == len(explained.steps)
    assert "summed up" not in str(explained)


def test_trace_sums_up_what_happened_to_one_transfer_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    transfer = analyzed(losses(200)).transfers[1]
    troubles = [Trouble(transfer, e) for e in transfer.events if e.kind in ("nak", "repeat")]
    TextLines().items([*troubles, transfer])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "200 times: did not arrive: NAK PSN sequence error" in lines[0]
    assert "200 times: 1,000 packets, 1,024,000 bytes sent again, after the NAK" in lines[1]
    assert lines[1].endswith("until +22.59 ms")


def test_trace_prints_a_few_troubles_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    transfer = analyzed(losses(4)).transfers[1]
    TextLines().items([Trouble(transfer, e) for e in transfer.events if e.kind in ("nak", "repeat")])
    assert len(capsys.readouterr().out.splitlines()) == 8
