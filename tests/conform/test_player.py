"""A device that does not keep a drill is shown the line, beside what came in its place."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocekit.capture import open_capture
from rocekit.cli import rocekit
from rocekit.conform import records
from rocekit.conform.bench import Playing
from rocekit.conform.device import UnfitError
from rocekit.conform.known import KnownFailures, read_known
from rocekit.conform.language import parse_drill
from rocekit.conform.orders import BenchReply, Call, Command
from rocekit.conform.seen import read_packet
from rocekit.conform.soft_bench import SoftBench
from rocekit.conform.soft_device import SoftConformDevice
from rocekit.conform.suite import DrillResult, run
from rocekit.conform.verdict import FAIL, INCONCLUSIVE, NOT_APPLICABLE, PASS, Verdict
from rocekit.errors import ScenarioError
from rocekit.journal import read_journal
from rocekit.wire.build import build_mad, build_packet
from rocekit.wire.cm import GSI_QKEY

HEAD = "claim: It is so.\nclause: IBA 9.7\n"


def play(steps: str, head: str = HEAD, bench: SoftBench | None = None) -> Playing:
    return (bench or SoftBench()).play(parse_drill(f"{head}steps:\n{steps}"))


def verdict(steps: str, head: str = HEAD) -> Verdict:
    return play(steps, head).verdict


WRITE = "  - send: {op: RC_RDMA_WRITE_ONLY, psn: 0, payload: 8}\n"
SEND = "  - post: {op: SEND, wr_id: 5, length: 8}\n"


def test_the_line_stands_beside_what_came() -> None:
    found = verdict(WRITE + "  - expect: {op: RC_ACKNOWLEDGE, psn: 0, syndrome: NAK remote_access_error}\n")
    assert (found.outcome, found.line) == (FAIL, 5)
    assert found.expected == "{op: RC_ACKNOWLEDGE, psn: 0, syndrome: NAK remote_access_error}"
    assert found.came == (
        "RC_ACKNOWLEDGE psn 0 (1000), syndrome ACK (0x1f), msn 1: "
        "its syndrome is ACK (0x1f), not NAK remote_access_error"
    )


DIFFERENCES = {
    WRITE + "  - expect: {op: RC_RDMA_READ_RESPONSE_ONLY}": "it is RC_ACKNOWLEDGE",
    WRITE + "  - expect: {op: RC_ACKNOWLEDGE, psn: 1}": "its psn is 0, not 1",
    WRITE + "  - expect: {op: RC_ACKNOWLEDGE, msn: 5..6}": "its msn is 1, not 5..6",
    WRITE + "  - expect: {op: RC_ACKNOWLEDGE, dest_qpn: $peer_qpn + 1}": r"its dest_qpn is 0x4d2, not",
    WRITE + "  - nothing: 5 ms": "RC_ACKNOWLEDGE psn 0 (1000)",
    WRITE + "  - acked: 1": "nothing came in 2000 ms",
    WRITE + "  - memory: {at: 0, is: 8 zeros}": "byte 1 of them is 0x01, not 0x00",
    "  - expect: {op: RC_ACKNOWLEDGE}": "nothing came in 2000 ms",
    "  - completion: {wr_id: 1}\n    within: 50 ms": "none in 50 ms",
    "  - state: ERR": "it is in RTS",
    "  - send: {op: RC_SEND_ONLY, psn: $nobody}": "nothing gave it one; there is $",
    "  - send: {op: RC_SEND_ONLY, pkey: 0x10000}": "pkey takes values under 0x10000",
    "  - post: {op: SEND, length: 8}\n    refused: true": "it was done",
    "  - modify: {state: INIT}": "refused: ",
    "  - event: ESTABLISHED\n    within: 50 ms": "none in 50 ms",
    "  - accept:": "refused: no peer has asked to connect",
    SEND + "  - expect: {op: RC_SEND_ONLY, length: 9}": "it has 8 bytes of payload, not 9",
    SEND + "  - expect: {op: RC_SEND_ONLY, payload: 'hex:0000000000000001'}": "byte 7 of its payload is 0x00",
}


@pytest.mark.parametrize("steps", DIFFERENCES, ids=range(len(DIFFERENCES)))
def test_a_difference_is_named(steps: str) -> None:
    found = verdict(steps + "\n")
    assert found.outcome == FAIL
    assert DIFFERENCES[steps] in found.came


def test_a_repeat_is_neither_too_early_nor_too_late() -> None:
    steps = SEND + "  - expect: {op: RC_SEND_ONLY}\n  - expect: {op: RC_SEND_ONLY}\n    at: %s\n"
    head = HEAD + "device: {timeout: 14}\n"
    assert verdict(steps % "67.1 ms", head).outcome == PASS
    assert verdict(steps % "75 ms", head).outcome == PASS  # within an eighth
    assert verdict(steps % "80 ms", head).outcome == FAIL
    assert verdict(steps % "55 ms", head).outcome == FAIL


class Behind(SoftBench):
    """A bench whose machine's clock tick was late once."""

    def __init__(self, behind_ns: int) -> None:
        super().__init__()
        self._behind_ns = behind_ns

    def do(self, command: Command, playing: Playing) -> BenchReply:
        playing.behind_ns = self._behind_ns
        return super().do(command, playing)


def test_a_repeat_is_not_too_early_where_the_clock_tick_was_late_by_as_much() -> None:
    steps = SEND + "  - expect: {op: RC_SEND_ONLY}\n  - expect: {op: RC_SEND_ONLY}\n    at: %s\n"
    head = HEAD + "device: {timeout: 14}\n"
    found = play(steps % "80 ms", head, Behind(3_000_000)).verdict  # 67.1 ms, not 70 ms
    assert (found.outcome, found.reason) == (
        INCONCLUSIVE,
        "this machine's clock tick was 3 ms late: waits end that much early",
    )
    assert play(steps % "80 ms", head, Behind(2_800_000)).verdict.outcome == FAIL
    # It makes nothing late.
    assert play(steps % "55 ms", head, Behind(50_000_000)).verdict.outcome == FAIL


def test_a_lack_is_not_applicable_and_names_it() -> None:
    bench = SoftBench()
    bench.device.features -= {"atomics"}
    found = play("  - nothing: 1 ms\n", HEAD + "needs: [atomics]\n", bench).verdict
    assert found == Verdict(NOT_APPLICABLE, "the device lacks FETCH_ADD and CMP_SWAP (atomics)")


def test_a_set_up_that_is_refused_is_not_applicable() -> None:
    found = verdict("  - nothing: 1 ms\n", HEAD + "device: {path_mtu: 1000}\n")
    assert found.outcome == NOT_APPLICABLE
    assert "a path MTU is" in found.reason


def test_a_difference_of_an_unsure_drill_is_inconclusive_and_says_what_would_settle_it() -> None:
    found = verdict(WRITE + "  - nothing: 5 ms\n", HEAD + "unsure: the table of 9.9 settles it\n")
    assert found.outcome == INCONCLUSIVE
    assert found.reason == "unsure: the table of 9.9 settles it"


def test_a_packet_with_a_wrong_icrc_is_no_acknowledgement() -> None:
    packet = build_packet("RC_ACKNOWLEDGE", src="10.9.0.1", dst="10.9.0.2", dest_qpn=0x4D2, icrc=5)
    seen = read_packet(packet, 0)
    assert seen is not None
    assert seen.faults == ("its ICRC is wrong",)


@pytest.mark.parametrize("size", range(48))
def test_a_packet_that_ends_anywhere_is_read_without_an_error(size: int) -> None:
    packet = build_packet("RC_RDMA_WRITE_ONLY", src="10.9.0.1", dst="10.9.0.2", payload=b"abcd")
    seen = read_packet(packet[:size], 0)
    assert seen is None or seen.faults


def failed() -> DrillResult:
    drill = parse_drill(HEAD + "steps:\n" + SEND + "  - expect: {op: RC_SEND_ONLY, psn: 7}\n", "area/it")
    (result,) = run([drill], SoftBench(), KnownFailures(()))
    return result


def test_a_failure_leaves_packets_journal_and_explanation(tmp_path: Path) -> None:
    result = failed()
    place = records.keep(result, "soft", tmp_path)
    assert place == tmp_path / "area" / "it"
    with open_capture(place / "drill.pcapng") as reader:
        assert sum(len(batch) for batch in reader) == len(result.playing.frames) == 1
    events = [event.event for event in read_journal(place / "drill.journal.jsonl").events]
    assert events == ["qp_created", "qp_modified", "wr_posted"]
    text = (place / "explanation.txt").read_text()
    assert "line 5   expect: {op: RC_SEND_ONLY, psn: 7}\n  expected" in text
    assert "its psn is 0, not 7" in text


def test_junit_tells_failures_from_known_ones(tmp_path: Path) -> None:
    known = dataclasses.replace(failed(), known="it was seen before")
    top = ET.fromstring(records.junit([failed(), known], "soft"))
    suite = top[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    assert suite[0][0].tag == "failure"
    assert "it was seen before" in (suite[1][0].get("message") or "")


def test_the_page_shows_every_drill_and_device() -> None:
    row = failed().to_dict()
    page = records.page("T", {"soft": [row], "rxe0": [row | {"outcome": PASS, "expected": None}]})
    assert "<th>soft</th><th>rxe0</th>" in page
    assert "its psn is 0, not 7" in page


def test_a_known_failure_that_passes_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "known.yaml"
    path.write_text("device: ^soft$\nfailures:\n  area/it: it fails so\n")
    known = read_known([path])
    assert known.evidence("soft", "area/it") == "it fails so"
    assert known.evidence("rxe0, Linux 6.1", "area/it") == ""
    drill = parse_drill(HEAD + "steps:\n  - nothing: 1 ms\n", "area/it")
    (result,) = run([drill], SoftBench(), known)
    assert (result.outcome, result.changed) == (PASS, True)
    path.write_text("device: '('\nfailures: {}\n")
    with pytest.raises(ScenarioError, match="line 1: device is a regular expression"):
        read_known([path])


def test_the_commands_end_with_1_where_the_device_differs(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(HEAD + "steps:\n  - nothing: 1 ms\n")
    bad.write_text(HEAD + "steps:\n  - state: ERR\n")
    done = CliRunner().invoke(rocekit, ["drill", str(good)])
    assert (done.exit_code, done.output) == (0, "good: pass: It is so.\n")
    done = CliRunner().invoke(rocekit, ["drill", str(good), str(bad)])
    assert done.exit_code == 1
    assert "line 4  state: ERR\n  expected the QP is in ERR\n  came     it is in RTS\n" in done.output
    done = CliRunner().invoke(rocekit, ["drill", str(good), "--interface", "lo"])
    assert done.exit_code == 2


def test_conform_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    junit, page = tmp_path / "x.xml", tmp_path / "x.html"
    done = CliRunner().invoke(
        rocekit, ["conform", "responder/psn", "--junit", str(junit), "--html", str(page), "--format", "json"]
    )
    assert done.exit_code == 0, done.output
    assert ET.fromstring(junit.read_text())[0].get("failures") == "0"
    assert "responder/psn" in page.read_text()
    assert '"device": "soft"' in done.output


CM_HEAD = HEAD + "needs: [cm]\ndevice: {state: RESET}\n"
ASKED = "  - listen:\n  - send: {op: CM_REQ}\n  - event: CONNECT_REQUEST\n"
CM_DIFFERENCES = {
    ASKED + "  - event: ESTABLISHED\n    within: 20 ms": "none in 20 ms",
    "  - listen:\n  - send: {op: CM_REQ}\n  - event: ESTABLISHED": "type CONNECT_REQUEST, status 0",
    "  - listen:\n  - send: {op: CM_REQ}\n  - event: none\n    within: 5 ms": "type CONNECT_REQUEST",
    ASKED + "  - reject:\n  - expect: {op: CM_REJ, reason: 8}": "its reason is 28, not 8",
    ASKED + "  - reject:\n  - expect: {op: CM_REP}": "it is CM_REJ",
    ASKED + "  - reject:\n  - expect: {op: CM_REJ, remote_comm_id: 5}": "its remote_comm_id is",
    ASKED + "  - disconnect:": "refused: there is no connection to end",
}


@pytest.mark.parametrize("steps", CM_DIFFERENCES, ids=range(len(CM_DIFFERENCES)))
def test_a_difference_of_the_connection_manager_is_named(steps: str) -> None:
    found = verdict(steps + "\n", CM_HEAD)
    assert found.outcome == FAIL
    assert CM_DIFFERENCES[steps] in found.came


def test_a_message_for_another_connection_is_no_answer() -> None:
    """What an earlier drill's connection still sends has other communication IDs."""
    packet = build_packet(
        "UD_SEND_ONLY",
        src="10.9.0.1",
        dst="10.9.0.2",
        dest_qpn=1,
        qkey=GSI_QKEY,
        src_qpn=1,
        payload=build_mad("DREQ", 5, local_comm_id=1, remote_comm_id=0xABC),
    )
    bench = SoftBench()
    begin = bench.begin

    def with_it() -> None:
        begin()
        bench._inbox.append((bench.now, packet))

    bench.begin = with_it  # type: ignore[method-assign]
    steps = ASKED + "  - reject:\n  - expect: {op: CM_REJ, reason: 28}\n"
    assert play(steps, CM_HEAD, bench).verdict.outcome == PASS


def test_an_mra_is_passed_over_unless_it_is_expected() -> None:
    head = CM_HEAD + "steps:\n"

    class Slow(SoftBench):
        def do(self, command: Command, playing: Playing) -> BenchReply:
            if isinstance(command, Call) and command.name == "accept":
                manager = self._soft.device.cm
                (waiting,) = [one for one in manager.ids if one.state == "REQ_RCVD"]
                manager.delay(waiting, 20, self.now)
            return super().do(command, playing)

    rep = "  - accept:\n  - expect: {op: CM_REP}\n"
    mra = "  - accept:\n  - expect: {op: CM_MRA, message_mraed: 0}\n  - expect: {op: CM_REP}\n"
    for steps in (rep, mra):
        assert Slow().play(parse_drill(head + ASKED + steps)).verdict.outcome == PASS


def test_an_event_of_the_completion_queue_comes_once_and_only_when_it_was_asked_for() -> None:
    own = SEND + "  - send: {op: RC_ACKNOWLEDGE, psn: 0}\n  - completion: {wr_id: 5}\n"
    assert verdict(own + "  - event: none\n    within: 5 ms\n").outcome == PASS
    assert verdict("  - arm:\n" + own + "  - event: COMPLETION\n").outcome == PASS
    found = verdict("  - arm: {solicited: true}\n" + own + "  - event: COMPLETION\n    within: 5 ms\n")
    assert (found.outcome, found.came) == (FAIL, "none in 5 ms")
    twice = "  - arm:\n" + own + "  - event: [COMPLETION, COMPLETION]\n    within: 5 ms\n"
    assert verdict(twice).came == "none in 5 ms"


def test_a_status_may_be_one_of_several() -> None:
    steps = SEND + "  - modify: {state: ERR}\n  - completion: {wr_id: 5, status: [%s]}\n"
    assert verdict(steps % "SUCCESS, WR_FLUSH_ERR").outcome == PASS
    found = verdict(steps % "SUCCESS, LOC_LEN_ERR")
    assert found.expected == "a completion with status LOC_LEN_ERR or SUCCESS, wr_id 5"


def test_what_is_around_the_device_makes_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfit(self: SoftConformDevice, port: int) -> None:
        raise UnfitError("another device answers, too")

    monkeypatch.setattr(SoftConformDevice, "listen", unfit)
    found = verdict(ASKED, CM_HEAD)
    assert found == Verdict(INCONCLUSIVE, reason="another device answers, too")
