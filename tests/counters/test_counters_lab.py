"""Counters of the kernel's rxe devices go up as the packets at them say, whatever happens on the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import counters_inside as inside
import pytest
from amount import needs_more
from lab_boot import Boot, Part

from rocekit.analysis import Analysis, analyze
from rocekit.counters.comparison import AGREES, CounterComparison
from rocekit.journal import read_journal

PART = Part("counters", (inside.__file__,), timeout_s=900, devices=3, loads=inside.LOADS)
pytestmark = pytest.mark.lab(PART)

ENDS = {"va": "rxe0", "vb": "rxe1"}
#: Counters whose prediction is checked where it is not given up; the others are not predicted.
PREDICTED = frozenset(
    {
        *("sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_seq_err"),
        *("rcvd_rnr_err", "send_rnr_err", "completer_retry_err", "rdma_sends", "rdma_recvs"),
        *("retry_exceeded_err", "retry_rnr_exceeded_err"),
    }
)
_ANALYSES: dict[Path, Analysis] = {}


def of_runs(*cases: tuple[str, str, str]) -> list[tuple[str, str, str]]:
    return [case for case in cases if case[0] in inside.RUNS]


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    return boot.of(PART)


@pytest.fixture(scope="module")
def facts(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    return found


def counters(capture: Path, device: str) -> dict[str, CounterComparison]:
    if capture not in _ANALYSES:
        _ANALYSES[capture] = analyze(capture)
    return {c.counter: c for c in _ANALYSES[capture].counters if c.place.device == device}


@pytest.mark.parametrize("name", inside.RUNS)
@pytest.mark.parametrize("interface", ENDS)
def test_no_counter_differs_from_what_the_packets_predict(
    out: Path, facts: dict[str, Any], name: str, interface: str
) -> None:
    assert facts[name]["client"] == 0, facts[name]["said"]
    assert all("\n0 packets dropped by kernel" in words for words in facts[name]["tcpdump"])
    found = counters(out / f"{name}.{interface}.pcap", ENDS[interface])
    differing = {k: c.words for k, c in found.items() if c.verdict not in (AGREES, "unknown")}
    assert differing == {}
    assert {k for k, c in found.items() if c.predicted is not None} <= PREDICTED


@pytest.mark.parametrize("name", sorted({*inside.RUNS} - {"before"}))
@pytest.mark.parametrize("interface", ENDS)
def test_what_each_packet_says_by_itself_is_always_predicted(out: Path, name: str, interface: str) -> None:
    found = counters(out / f"{name}.{interface}.pcap", ENDS[interface])
    for counter in ("sent_pkts", "rcvd_pkts", "send_rnr_err"):
        assert found[counter].verdict == AGREES, found[counter].words
    assert found["sent_pkts"].went_up_by > 0


@pytest.mark.parametrize(
    ("name", "interface", "counter"),
    of_runs(
        ("write", "vb", "out_of_seq_request"),
        ("write", "va", "completer_retry_err"),
        ("read", "vb", "duplicate_request"),
        ("read", "va", "completer_retry_err"),
        ("rnr", "vb", "send_rnr_err"),
        ("rnr", "va", "rcvd_rnr_err"),
        ("rping", "va", "rdma_sends"),
        ("rping", "vb", "rdma_recvs"),
        ("before", "vb", "out_of_seq_request"),
    ),
)
def test_what_a_fault_makes_go_up_is_predicted(out: Path, name: str, interface: str, counter: str) -> None:
    found = counters(out / f"{name}.{interface}.pcap", ENDS[interface])[counter]
    assert found.went_up_by > 0
    if found.verdict == "unknown" and _reordered(out / f"{name}.{interface}.pcap"):
        pytest.skip("the emulated machine's processors reordered packets, which no fault did: not predicted")
    assert found.verdict == AGREES, found.words
    assert found.certain


def _reordered(capture: Path) -> bool:
    """Whether packets overtook one another between the device and the capture, or before both."""
    return any(finding.rule == "reordering" for finding in _ANALYSES[capture].findings)


def test_a_queue_before_the_capture_is_named_and_nothing_sent_is_predicted(out: Path) -> None:
    needs_more()
    sent = counters(out / "before.va.pcap", "rxe0")["sent_pkts"]
    assert sent.predicted is None
    assert sent.seen is not None
    assert sent.went_up_by > sent.seen
    assert "netem" in sent.words
    assert "before the capture" in sent.words


@pytest.mark.parametrize("name", ["write", "rnr"])
def test_a_capture_at_the_other_end_predicts_nothing(out: Path, name: str) -> None:
    journal = out / f"{name}.vb.journal.jsonl"
    found = analyze(out / f"{name}.va.pcap", journals=[journal]).counters
    assert {c.predicted for c in found} == {None}


@pytest.mark.parametrize("name", sorted({*inside.RUNS} - {"before"}))
def test_of_two_captures_each_device_has_its_own(out: Path, name: str) -> None:
    captures = [out / f"{name}.{interface}.pcap" for interface in ENDS]
    found = analyze(*captures).counters
    assert {c.place.device for c in found if c.verdict == AGREES} == set(ENDS.values())
    assert {c.words for c in found if c.verdict == "differs"} == set()


def test_trace_compares_by_itself_and_keeps_its_snapshots(out: Path, facts: dict[str, Any]) -> None:
    told = facts["commands"]["trace"]
    assert told["status"] == 0, told["stderr"]
    assert "Counters of rxe0 (va)" in told["stdout"]
    found = counters(out / "traced.pcapng", "rxe0")
    assert found["sent_pkts"].verdict == AGREES, found["sent_pkts"].words
    assert found["sent_pkts"].went_up_by > 0


def test_record_takes_snapshots_before_and_after(out: Path, facts: dict[str, Any]) -> None:
    needs_more()
    assert facts["commands"]["record"]["status"] == 0, facts["commands"]["record"]["stderr"]
    found = counters(out / "recorded.pcapng", "rxe0")
    assert found["rdma_sends"].went_up_by > 0
    assert found["rcvd_pkts"].verdict == AGREES, found["rcvd_pkts"].words


def test_inject_takes_snapshots_of_both_sides_before_and_after(out: Path, facts: dict[str, Any]) -> None:
    assert facts["commands"]["inject"]["status"] == 0, facts["commands"]["inject"]["stderr"]
    events = read_journal(out / "inject.journal.jsonl").of("counters")
    assert sorted(e["device"] for e in events) == ["rxe0", "rxe0", "rxe2", "rxe2"]


def test_the_status_of_a_recorded_program_stays_its_own(out: Path, facts: dict[str, Any]) -> None:
    needs_more()
    assert facts["commands"]["failing"]["status"] == 7
    found = read_journal(out / "failing.journal.jsonl").of("counters")
    assert sorted(e["device"] for e in found) == ["rxe0", "rxe0", "rxe1", "rxe1", "rxe2", "rxe2"]


def test_the_command_reads_devices_and_interfaces(facts: dict[str, Any]) -> None:
    told = facts["commands"]["counters"]
    assert told["status"] == 0, told["stderr"]
    shown = json.loads(told["stdout"])
    device, port = shown["snapshots"]
    assert (device["device"], device["interface"], device["driver"]) == ("rxe0", "va", "rxe")
    assert "10.9.0.1" in device["addresses"]
    assert {"sent_pkts", "rcvd_pkts"} <= device["hw_counters"].keys()
    assert "lifespan" not in device["hw_counters"]
    assert (port["device"], port["interface"]) == (None, "va-port")
    assert {d["interface"] for d in shown["differences"]} == {"va", "va-port"}


def test_an_unknown_name_is_one_line_with_those_there_are(facts: dict[str, Any]) -> None:
    told = facts["commands"]["unknown"]
    assert told["status"] == 1
    (line,) = told["stderr"].splitlines()
    assert "no device or interface 'rxe7'; RDMA devices: rxe0, rxe1, rxe2; interfaces: " in line
