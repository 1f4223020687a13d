"""A drill that cannot be read says in one line where and why."""

from __future__ import annotations

import re

import pytest
from places import ROOT

from rocekit.conform.language import parse_drill
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.verdict import PASS
from rocekit.errors import ScenarioError

HEAD = "claim: It is so.\nclause: IBA 9.7\n"
GUIDE = (ROOT / "docs" / "guide" / "drills.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(claim:.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_guide_has_ten_examples_and_one_of_the_connection_manager() -> None:
    assert len(EXAMPLES) == 11


@pytest.mark.parametrize("text", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_an_example_of_the_guide_passes(text: str) -> None:
    verdict = SoftBench().play(parse_drill(text)).verdict
    assert verdict.outcome == PASS, verdict.words()


def test_the_guide_names_every_step_and_every_key() -> None:
    from rocekit.conform import language

    named = set(re.findall(r"`(\w+)`", GUIDE))
    assert named >= {*language._READERS, *language._PROGRAM}
    assert named >= {*language._DRILL, *language._DEVICE, *language._COMPLETION}


WRONG = {
    "": "line 1: nothing is in it; a drill has claim, clause and steps",
    "claim: It is so.\nsteps: []": "a drill has clause",
    HEAD: "a drill has steps",
    HEAD + "steps: []": "steps is a list, one step a line",
    HEAD + "stps: []": "no key 'stps'; a drill has claim, clause",
    HEAD + "steps:\n  - snd: {op: RC_SEND_ONLY}": "line 4: a step does one thing: send, message",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONLY}\n    nothing: 5 ms": "a step does one thing",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONYL}": r"line 4: no opcode is called RC_SEND_ONYL.*RC_SEND_ONLY",
    HEAD + "steps:\n  - send: {psn: 1}": r"line 4: a packet is written as",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONLY, rkey: 1}": "no key 'rkey'; RC_SEND_ONLY has op, psn",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONLY, psn: one}": "psn is a number, a name such as",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONLY, psn: 1, absolute_psn: 2}": "either psn",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONLY, payload: much}": "payload is how many bytes",
    HEAD + "steps:\n  - send: {op: RC_SEND_ONLY, icrc: wrong}": "icrc is good or bad",
    HEAD + "steps:\n  - send: {op: RC_ACKNOWLEDGE, syndrome: NACK}": "no syndrome 'NACK'",
    HEAD + "steps:\n  - send: {op: RC_ACKNOWLEDGE, syndrome: NAK invalid}": "do you mean NAK invalid_request",
    HEAD + "steps:\n  - expect: {op: RC_ACKNOWLEDGE, rkey: 5}": "no key 'rkey'",
    HEAD + "steps:\n  - nothing: 30": "nothing is a time with its unit",
    HEAD + "steps:\n  - nothing: 30 ms\n    for: 5": "no key 'for'; beside nothing there may be within",
    HEAD + "steps:\n  - completion: none": "completion: none has within",
    HEAD + "steps:\n  - completion: {wr: 5}": "no key 'wr'; a completion has wr_id",
    HEAD + "steps:\n  - expect: {op: CNP}\n    at: 5 ms .. 1 ms": "1 ms is before 5 ms",
    HEAD + "steps:\n  - event: none": "event: none has within",
    HEAD + "steps:\n  - event: CONNECTED": "event: no 'CONNECTED'; there is COMPLETION",
    HEAD + "steps:\n  - event: {status: 28}": "an event is written as ESTABLISHED",
    HEAD + "steps:\n  - listen: {prt: 5}": "no key 'prt'",
    HEAD + "steps:\n  - state: READY": "state: no 'READY'; there is RESET",
    HEAD + "steps:\n  - post: {length: 5}": "post has op",
    HEAD + "steps:\n  - repeat: {times: 2}": "repeat is written as",
    HEAD + "device: {transport: XRC}\nsteps:\n  - nothing: 1 ms": "transport: no 'XRC'; there is RC, UC, UD",
    HEAD + "device: {mtu: 5}\nsteps:\n  - nothing: 1 ms": "no key 'mtu'; device has transport",
    HEAD + "needs: [wings]\nsteps:\n  - nothing: 1 ms": "needs: no 'wings'; there is RC",
    HEAD + "steps: [": "no YAML",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_said_with_its_line(text: str) -> None:
    with pytest.raises(ScenarioError) as error:
        parse_drill(text, "x.yaml")
    assert re.search(WRONG[text], str(error.value)), error.value
    assert str(error.value).startswith("x.yaml: ")
    assert "\n" not in str(error.value)
