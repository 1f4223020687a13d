"""Claims about recording less: what is kept is as in the whole journal, and what is left out is counted."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from recorded import recorder, run

import rocekit
from rocekit.cli import rocekit as command
from rocekit.journal import Journal, parse_event, read_journal
from rocekit.journal.gaps import gaps_in
from rocekit.journal.work_requests import WorkRequest, read_programs
from rocekit.record.lines.selection import RecordFilter, Selection
from rocekit.report.text import summary

PLACE = (0, 17, False)
FILTER = {"state": "began", "filter": "x"}


def line_of(at: int, event: str, fields: dict[str, Any]) -> str:
    common = {"time_ns": at, "clock": "realtime", "host": "a", "pid": 7, "event": event}
    return json.dumps(common | fields, separators=(",", ":"))


def talk(rng: random.Random, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Posts and completions of one QP as a device does them: in order, few wr_ids, most not signaled."""
    waiting: list[dict[str, Any]] = []
    receives: list[dict[str, Any]] = []
    posted = 0
    broken = False
    while posted < count or waiting:
        what = rng.random()
        if posted < count and what < 0.5:
            opcode = rng.choice(["SEND", "RDMA_READ"])
            send = {"wr_id": rng.randrange(3), "opcode": opcode, "length": 8, "psn": posted}
            send["signaled"] = rng.random() < 0.4 or posted == count - 1
            waiting.append(send)
            posted += 1
            yield "wr_posted", send
        elif what < 0.6:
            receives.append({"wr_id": rng.randrange(3), "length": posted})
            yield "recv_posted", receives[-1]
        elif what < 0.7 and receives:
            yield "wc_polled", {"wr_id": receives.pop(0)["wr_id"], "status": "SUCCESS", "opcode": "RECV"}
        elif waiting:
            send = waiting.pop(0)
            broken = broken or rng.random() < 1 / 200
            if broken:
                yield "wc_polled", {"wr_id": send["wr_id"], "status": "WR_FLUSH_ERR"}
            elif send["signaled"]:
                yield "wc_polled", {"wr_id": send["wr_id"], "status": "SUCCESS", "opcode": send["opcode"]}


def kept_lines(choice: RecordFilter, events: list[tuple[str, dict[str, Any]]]) -> tuple[list[str], Selection]:
    selection = Selection(choice)
    lines = [line_of(0, "recording", FILTER)]
    for at, (event, fields) in enumerate(events, 1):
        line = partial(line_of, at, event, {"qp": {"device": "d", "qpn": 17}} | fields)
        if event == "wc_polled":
            opcode = fields.get("opcode")
            lines += selection.complete(PLACE, None, opcode, fields["wr_id"], line, polled_ns=at)
        else:
            opcode = fields.get("opcode", "RECV")
            signaled = fields.get("signaled", True)
            lines += selection.post(PLACE, opcode, fields["wr_id"], line, signaled=signaled, posted_ns=at)
    return lines, selection


def ends(lines: list[str]) -> dict[int, tuple[int | None, int | None]]:
    """Of each send, by its time: the times of its own completion and of the one that implies it."""
    events = sorted((parse_event(json.loads(line)) for line in lines), key=lambda event: event.time_ns)

    def at(wr: WorkRequest) -> tuple[int | None, int | None]:
        return (
            None if wr.wc is None else wr.wc.polled_ns,
            None if wr.implied_by is None else wr.implied_by.polled_ns,
        )

    return {wr.posted_ns: at(wr) for qp in read_programs(Journal(events)).qps for wr in qp.sends}


CHOICES = [
    RecordFilter(every=7),
    RecordFilter(opcodes=frozenset({"RDMA_READ"})),
    RecordFilter(errors=3),
    RecordFilter(every=5, errors=2),
    RecordFilter(summary=True),
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_kept_work_request_has_its_completion_of_the_whole_journal(
    choice: RecordFilter,
) -> None:
    for seed in range(12):
        events = list(talk(random.Random(seed), 120))
        everything = [
            line_of(at, event, {"qp": {"device": "d", "qpn": 17}} | fields)
            for at, (event, fields) in enumerate(events, 1)
        ]
        whole = ends(everything)
        lines, selection = kept_lines(choice, events)
        kept = ends(lines)
        assert {at: whole[at] for at in kept} == kept
        # Nothing is missing without being counted.
        there = Counter(json.loads(line)["event"] for line in lines)
        left_out = selection.counts[PLACE].left_out
        for event, kind in (
            ("wr_posted", "sends"),
            ("recv_posted", "receives"),
            ("wc_polled", "completions"),
        ):
            assert there[event] + left_out[kind] == sum(name == event for name, _ in events)


def test_what_fails_is_kept_with_those_before_it() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    for n in range(20):
        send = {"wr_id": n, "opcode": "SEND", "length": 8, "signaled": True}
        status = {"status": "REM_ACCESS_ERR"} if n == 12 else {"status": "SUCCESS", "opcode": "SEND"}
        events += [("wr_posted", send), ("wc_polled", {"wr_id": n} | status)]
    lines, _ = kept_lines(RecordFilter(errors=3), events)
    found = [json.loads(line) for line in lines[1:]]
    assert [event["wr_id"] for event in found if event["event"] == "wr_posted"] == [9, 10, 11, 12]
    statuses = [event["status"] for event in found if event["event"] == "wc_polled"]
    assert statuses == ["SUCCESS"] * 3 + ["REM_ACCESS_ERR"]


def test_every_n_th_is_recorded_and_the_others_are_counted(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "flood_of", "20000", options=("--ring-size", "128k", "--every", "100"))
    assert ran.returncode == 0
    assert ran.journal.problems == []
    assert not ran.of("records_lost")
    posted = ran.of("wr_posted")
    # The QP's starting PSN is 0xfffff0, and each of its sends is one packet.
    assert [event["wr_id"] & 0xFFFFF for event in posted] == list(range(0, 20_000, 100))
    assert all(e["psn"] == (0xFFFFF0 + (e["wr_id"] & 0xFFFFF)) % (1 << 24) for e in posted)
    (gap,) = gaps_in(ran.journal)
    assert gap.filtered
    assert gap.counts == {"sends": 19_800, "receives": 0, "completions": 19_800, "others": 0}
    (qp,) = read_programs(ran.journal).qps
    assert qp.filtered
    assert all(wr.wc is not None and wr.wc.wr_id == wr.wr_id for wr in qp.sends)
    assert "39,600 of these left out, as asked" in ran.stderr
    assert {event["filter"] for event in ran.of("recording") if "filter" in event.fields} == {"--every 100"}


def test_a_summary_has_totals_and_no_line_of_a_work_request(program: Path, tmp_path: Path) -> None:
    ran = run(program, tmp_path, "flood_of", "20000", options=("--ring-size", "128k", "--summary"))
    assert not ran.of("wr_posted", "wc_polled", "records_lost")
    totals = ran.one("qp_totals")["totals"]
    wanted = {"SEND": 20_000, "bytes": 160_000, "completions": 20_000, "timed": 20_000}
    assert {name: totals[name] for name in wanted} == wanted
    assert 0 < totals["most_ns"] <= totals["total_ns"]


def test_a_rotated_journal_counts_what_was_left_out_once(program: Path, tmp_path: Path) -> None:
    options = ("--ring-size", "128k", "--every", "20", "--rotate", "64k")
    out = tmp_path / "x.journal.jsonl"
    subprocess.run([*recorder(out, *options), str(program), "flood_of", "20000"], check=True, timeout=120)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) > 5
    journal = read_journal(f"rotated:{files[0]}..{files[-1].name}")
    (gap,) = gaps_in(journal)
    assert len(journal.of("wr_posted")) + gap.counts["sends"] == 20_000
    assert len(journal.of("wc_polled")) + gap.counts["completions"] == 20_000


def filtered(source: Path, out: Path, *, psns: dict[int, int]) -> None:
    """A client's journal as a filter leaves it: every third work request, and the completions of these."""
    lines = [line_of(0, "recording", FILTER)]
    kept: set[int] = set()
    for event in read_journal(source):
        line = event.to_dict() | {"pid": 7, "host": "a"}
        if event.event == "wr_posted":
            if event["wr_id"] % 3:
                continue
            kept.add(event["wr_id"])
            if event["wr_id"] in psns:
                line["psn"] = psns[event["wr_id"]]
        elif event.event == "wc_polled" and event["wr_id"] not in kept:
            continue
        lines.append(json.dumps(line))
    out.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("with_psns", [True, False])
def test_a_filter_causes_no_false_match(pcaps: Path, tmp_path: Path, with_psns: bool) -> None:
    capture, source = pcaps / "blast-sr-loss.pcap", pcaps / "blast-sr-loss.client.journal.jsonl"
    whole = rocekit.analyze(capture, journals=[source])
    assert whole.journal is not None
    psns = {wr.wr_id: (wr.first_psn or 0) & 0xFFFFFF for wr in whole.journal.work_requests}
    filtered(source, tmp_path / "x.jsonl", psns=psns if with_psns else {})
    analysis = rocekit.analyze(capture, journals=[tmp_path / "x.jsonl"])
    assert analysis.journal is not None
    right = {wr.wr_id: whole.journal.transfer_of(wr) for wr in whole.journal.work_requests}
    for wr in analysis.journal.work_requests:
        transfer, expected = analysis.journal.transfer_of(wr), right[wr.wr_id]
        if with_psns:
            assert transfer is not None
            assert expected is not None
            assert transfer.id == expected.id
        else:
            assert transfer is None
            assert wr.unmatched_because == "the journal is filtered: its PSN is not certain"
    assert all(transfer.recv_wc is None for transfer in analysis.transfers)
    assert "the journal of a is filtered: x" in summary(analysis)
    assert analysis.to_dict()["journal"]["filters"] == ["x"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--opcode", "SNED"], "no opcode 'SNED'; there are ATOMIC_CMP_AND_SWP"),
        (["--summary", "--every", "5"], "leave out --every"),
    ],
)
def test_a_wrong_choice_is_refused(options: list[str], words: str) -> None:
    said = CliRunner().invoke(command, ["record", *options, "--", "true"])
    assert said.exit_code == 2
    assert words in " ".join(said.output.split())
