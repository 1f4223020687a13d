"""``rocekit trace``: live, an interface tells of the same transfers as the capture written on the way.

Each test makes a veth pair in a network namespace of its own, traces one end and sends frames into the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from places import ROOT
from story import Story
from test_analysis import FULL, check_contract

import rocekit
from rocekit import cli
from rocekit.capture import open_capture
from rocekit.soft.testbed import run
from rocekit.soft.testbed.program import random_program
from rocekit.soft.wires.faults import at_random

SETUP = """
import json, os, signal, socket, subprocess, sys, time

def ip(*words):
    subprocess.run(["ip", *words], check=True)

ip("link", "add", "va", "type", "veth", "peer", "name", "vb")
for name in ("va", "vb", "lo"):
    ip("link", "set", name, "up")
parts = [[bytes.fromhex(text) for text in part] for part in json.load(sys.stdin)]
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind(("vb", 0))

def capturing():
    # Whether a packet socket runs on va.
    number = socket.if_nametoindex("va")
    with open("/proc/self/net/packet") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return any(int(row[4]) == number and row[5] == "1" for row in rows)

def until(condition):
    end = time.monotonic() + 100
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("waited in vain")
        time.sleep(0.01)

def trace(*args):
    # Output to files: nobody needs to read while it runs.
    out, err = open("out", "w+b"), open("err", "w+b")
    command = [sys.executable, "-m", "rocekit.cli", "trace", "va", *args]
    traced = subprocess.Popen(command, stdout=out, stderr=err)
    until(lambda: capturing() or traced.poll() is not None)
    return traced

def send(part=0, pause_s=0.0):
    for frame in parts[part]:
        sender.send(frame)
        if pause_s:
            time.sleep(pause_s)

def printed():
    return open("out", "rb").read().decode()

def tell(traced):
    status = traced.wait(100)
    print(json.dumps({"status": status, "out": printed(), "err": open("err", "rb").read().decode()}))
"""


def live(folder: Path, script: str, *parts: list[bytes]) -> dict[str, Any]:
    """Runs a script after SETUP in a new network namespace, in a folder; what it tells."""
    probe = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "type", "veth"], capture_output=True, timeout=240
    )
    if probe.returncode:
        pytest.skip(f"no veth pair in a network namespace: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SETUP + textwrap.dedent(script)],
        input=json.dumps([[frame.hex() for frame in part] for part in parts]),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def records(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What JSON lines said, by type; of a transfer or a CM message, what was said last."""
    by_type: dict[str, dict[Any, dict[str, Any]]] = {}
    for number, line in enumerate(told["out"].splitlines()):
        record = json.loads(line)
        kind = record.pop("type")
        by_type.setdefault(kind, {})[record.get("frame" if kind == "cm" else "id", number)] = record
    return {kind: [found[k] for k in sorted(found)] for kind, found in by_type.items()}


def frames(path: Path) -> list[bytes]:
    with open_capture(path) as reader:
        return [frame for batch in reader for frame in batch.frames()]


def soft_frames(folder: Path, seed: int, rates: dict[str, float]) -> list[bytes]:
    path = folder / "soft.pcapng"
    run(random_program(seed), at_random(rates), seed, capture=path)
    return frames(path)


def test_a_trace_of_days_keeps_its_counts_and_not_its_transfers(root: None, tmp_path: Path) -> None:
    lines = "".join(f"a RC_SEND_ONLY {p} {p}\n b ACK {p}\n" for p in range(5, 40))
    told = live(
        tmp_path,
        """
        import threading
        import rocekit.live.tracing as tracing
        tracing.FORGET_AFTER = 3
        trace = tracing.Trace("va", transfers=35, plain=2)
        threading.Thread(target=send, kwargs={"pause_s": 0.002}).start()
        seen = [type(item).__name__ for item in trace]
        analysis = trace.analysis
        print(json.dumps({
            "ended": seen.count("Transfer"), "kept": len(analysis.transfers),
            "left_out": analysis.left_out.total(), "bytes": [c.bytes for c in analysis.connections],
        }))
        """,
        shots(lines),
    )
    assert told["ended"] == 35
    assert told["kept"] < 35
    assert told["kept"] + told["left_out"] == 35
    assert told["bytes"] == [sum(range(5, 40))]


def shots(text: str, **how: Any) -> list[bytes]:
    return [s.data for s in Story(text, **how).shots]


def check_same(told: dict[str, Any], written: Path) -> None:
    """What the trace said is what ``analyze`` says of the capture that it wrote."""
    assert (told["status"], told["err"]) == (0, "")
    said, analysis = records(told), rocekit.analyze(written).to_dict()
    for kind in ("transfers", "connections", "cm", "findings"):
        assert said.get(kind.removesuffix("s"), []) == analysis[kind], kind
    (capture,) = said["capture"]
    assert capture["roce_packets"] == analysis["capture"]["roce_packets"]
    assert capture["dropped"] == 0


STOP = """
traced = trace("--write", "x.pcapng", "--format", "json")
send(pause_s=0.0005)
until(printed)
time.sleep(0.3)
traced.send_signal(signal.SIGINT)
tell(traced)
"""

pytestmark = pytest.mark.filterwarnings("error")
root_only = pytest.mark.usefixtures("root")


@root_only
@pytest.mark.parametrize("name", ["rdma_cm.pcap", "pingpong_ud.pcap", "nccl_ring_node0.pcap"])
def test_others_traffic_live_is_told_as_from_the_capture_written(
    others: Path, name: str, tmp_path: Path
) -> None:
    told = live(tmp_path, STOP, frames(others / name))
    check_same(told, tmp_path / "x.pcapng")
    here, there = rocekit.analyze(tmp_path / "x.pcapng"), rocekit.analyze(others / name)
    assert [(t.operation, t.bytes, t.first_psn, t.status) for t in here.transfers] == [
        (t.operation, t.bytes, t.first_psn, t.status) for t in there.transfers
    ]


@root_only
@pytest.mark.parametrize("seed", [3, 9])
def test_losses_and_repeats_live_are_told_as_from_the_capture_written(seed: int, tmp_path: Path) -> None:
    told = live(tmp_path, STOP, soft_frames(tmp_path, seed, {"drop": 0.05, "duplicate": 0.02}))
    check_same(told, tmp_path / "x.pcapng")


@root_only
def test_a_line_comes_as_each_transfer_ends_and_a_word_at_once_when_one_goes_wrong(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace()
        send(0)
        until(lambda: "connection 0" in printed())
        until(lambda: " SEND " in printed() and "acked" in printed())
        assert "NAK" not in printed()
        send(1)
        until(lambda: "NAK" in printed())
        assert "va: " not in printed()  # not the summary yet
        send(2)
        until(lambda: printed().count("acked") > 1)
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
        shots("a RC_SEND_ONLY 6 64\n a RC_SEND_ONLY 7 64\n b NAK 6"),
        shots("a RC_SEND_ONLY 6 64 identification=99\n a RC_SEND_ONLY 7 64\n b ACK 7"),
    )
    assert (told["status"], told["err"]) == (0, "")
    assert "8 frames received, 0 dropped" in told["out"]
    assert "va: 8 frames, 8 RoCE packets" in told["out"]
    assert "warning loss: " in told["out"]


@root_only
def test_a_nak_for_a_packet_that_was_never_seen_is_told_at_once(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace()
        send(0)
        until(lambda: "NAK" in printed())
        assert "va: " not in printed()  # not the summary yet
        send(1)
        until(lambda: printed().count("acked") > 1)
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 7 64\n b NAK 6"),
        shots("a RC_SEND_ONLY 6 64 identification=99\n a RC_SEND_ONLY 7 64\n b ACK 7"),
    )
    assert (told["status"], told["err"]) == (0, "")
    assert "10.0.0.2 → 10.0.0.1 QP 0x11  NAK PSN sequence error for PSN 6" in told["out"]
    assert told["out"].count("frame 4") == 1


@root_only
def test_the_host_s_own_address_says_where_it_is_taken(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        ip("addr", "add", "10.0.0.2/24", "dev", "va")
        traced = trace("--count", "1")
        send()
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
    )
    assert "Capture point: at 10.0.0.2, the responder (10.0.0.2 is this host's address)" in told["out"]


@root_only
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_ends_the_trace_with_its_summary(name: str, tmp_path: Path) -> None:
    told = live(
        tmp_path,
        f"""
        traced = trace("--format", "json", "--write", "x.pcapng")
        send(0)
        until(printed)
        send(1)
        traced.send_signal(signal.{name})
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
        shots("a RC_SEND_ONLY 6 64"),
    )
    assert (told["status"], told["err"]) == (0, "")
    # What was on the interface before the interrupt is not left out, and what is open is told as it stands.
    assert [t["status"] for t in records(told)["transfer"]] == ["acked", "unacknowledged"]
    check_same(told, tmp_path / "x.pcapng")


@root_only
def test_a_duration_ends_the_trace_also_when_nothing_comes(tmp_path: Path) -> None:
    told = live(tmp_path, 'tell(trace("--duration", "0.3"))', [])
    assert (told["status"], told["err"]) == (0, "")
    first, held, step, kernel = told["out"].strip().splitlines()
    assert first.endswith(": No RoCE v2 packets: nothing to judge.")
    assert held == "  No frame came that may be RoCE."
    assert "bypass the kernel" in step
    assert "rocekit trace IFACE --counters" in step
    assert kernel.startswith("  kernel: 0 frames received, 0 dropped; the interface carried ")


@root_only
def test_a_count_ends_the_trace_after_so_many_transfers(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace("--count", "2", "--format", "json")
        send(0)
        time.sleep(0.3)
        assert traced.poll() is None
        send(1)
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
        shots("a RC_SEND_ONLY 6 64\n b ACK 6"),
    )
    assert (told["status"], told["err"]) == (0, "")
    assert [t["first_psn"] for t in records(told)["transfer"]] == [5, 6]


@root_only
@pytest.mark.parametrize("output", ["text", "json"])
def test_an_interface_that_goes_away_is_one_line_and_what_was_traced_is_reported(
    output: str, tmp_path: Path
) -> None:
    told = live(
        tmp_path,
        f"""
        traced = trace("--format", "{output}", "--write", "x.pcapng")
        send()
        until(printed)
        time.sleep(0.3)
        ip("link", "del", "va")
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 6 64"),
    )
    assert told["status"] == 1
    (line,) = told["err"].splitlines()
    assert line.startswith("rocekit: error: ")
    assert "va" in line
    assert "gone" in line
    if output == "json":
        assert [t["status"] for t in records(told)["transfer"]] == ["acked", "unacknowledged"]
    else:
        assert "va: 3 frames, 3 RoCE packets" in told["out"]
        assert "unacknowledged" in told["out"]
    assert len(rocekit.analyze(tmp_path / "x.pcapng").transfers) == 2


@root_only
def test_a_snaplen_keeps_the_headers_and_tells_the_same_transfers(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        STOP.replace('"--format"', '"--snaplen", "96", "--format"'),
        shots("a RC_SEND_FIRST 5 1024\n a RC_SEND_LAST 6 1024\n b ACK 6"),
    )
    check_same(told, tmp_path / "x.pcapng")
    said = records(told)
    assert [(t["bytes"], t["status"]) for t in said["transfer"]] == [(2048, "acked")]
    assert said["capture"][0]["unchecked_icrc"] == 2


@root_only
def test_without_a_file_only_headers_are_kept_and_what_managers_say(tmp_path: Path) -> None:
    story = Story().connect(5, 900)
    story.lines("a RC_SEND_FIRST 5 1024\n a RC_SEND_LAST 6 1024\n b ACK 6")
    frames = [s.data for s in story.shots]
    script = STOP.replace('"--write", "x.pcapng", ', "")
    headers = live(tmp_path, script, frames)
    whole = live(tmp_path, script.replace('"--format"', '"--snaplen", "65535", "--format"'), frames)
    said, full = records(headers), records(whole)
    assert [m["message"] for m in said["cm"]] == ["REQ", "REP", "RTU"]
    ends = [[(t["bytes"], t["status"], t["packets"]) for t in r["transfer"]] for r in (said, full)]
    assert ends[0] == ends[1] == [(2048, "acked", 2)]
    assert [c["paired_by"] for c in said["connection"]] == ["cm"]
    assert [r["capture"][0]["unchecked_icrc"] for r in (said, full)] == [2, 0]
    (finding,) = said["finding"]
    assert finding["rule"] == "capture-truncated"
    assert "--snaplen 65535" in finding["advice"]
    assert "finding" not in full


@root_only
def test_the_journal_is_read_when_the_trace_ends(tmp_path: Path) -> None:
    story = Story(FULL)
    story.write_journal(tmp_path / "written-meanwhile.jsonl")
    told = live(
        tmp_path,
        """
        os.rename("written-meanwhile.jsonl", "kept.jsonl")
        traced = trace("--format", "json", "--journal", "x.jsonl")
        send()
        until(printed)
        time.sleep(0.3)
        os.rename("kept.jsonl", "x.jsonl")
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        [s.data for s in story.shots],
    )
    assert (told["status"], told["err"]) == (0, "")
    assert [t["wr"]["wr_id"] for t in records(told)["transfer"]] == [1, 2]


@root_only
def test_a_journal_that_never_came_is_one_line_after_what_was_traced(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        STOP.replace('"--format"', '"--journal", "never.jsonl", "--format"'),
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
    )
    assert told["status"] == 1
    (line,) = told["err"].splitlines()
    assert "never.jsonl" in line
    said = records(told)
    assert [t["status"] for t in said["transfer"]] == ["acked"]
    assert said["capture"][0]["frames"] == 2


@root_only
def test_the_library_iterates_live(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        import threading, rocekit
        from rocekit.track.connections import Connection
        from rocekit.track.transfers import Transfer
        trace = rocekit.trace("va", duration_s=20)
        threading.Timer(0.2, send).start()
        seen = []
        for item in trace:
            seen.append(type(item).__name__)
            if isinstance(item, Transfer) and item.status == "acked":
                trace.stop()
        print(json.dumps({"seen": seen, "transfers": trace.analysis.transfers.to_dicts()}))
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
    )
    assert told["seen"] == ["Connection", "Transfer"]
    assert [t["status"] for t in told["transfers"]] == ["acked"]


@root_only
def test_the_lines_keep_the_contract(tmp_path: Path) -> None:
    story = Story().connect(5, 900).lines("a RC_SEND_ONLY 5 64\n b ACK 5\n a RC_SEND_ONLY 7 64\n b NAK 6")
    said = records(live(tmp_path, STOP, [s.data for s in story.shots]))
    (capture,) = said["capture"]
    check_contract(
        {
            "schema": "rocekit/1",
            "capture": capture,
            "connections": said["connection"],
            "transfers": said["transfer"],
            "cm": said["cm"],
            "findings": said.get("finding", []),
        }
    )


# ---------------------------------------------------------------------- refusals, which need no interface


def refusal(*args: str) -> str:
    result = CliRunner().invoke(cli.rocekit, ["trace", *args])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("rocekit: error: ")
    return line


def test_an_interface_that_does_not_exist_names_those_that_do() -> None:
    line = refusal("nope0")
    assert "nope0" in line
    assert "no such interface" in line


def test_without_the_right_to_capture_the_exact_commands_are_named() -> None:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        line = refusal("lo", "--duration", "0.1")
    finally:
        if root:
            os.seteuid(0)
    assert "sudo setcap cap_net_raw+ep" in line


@root_only
def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    line = refusal("lo", "--duration", "5", "--write", str(tmp_path / "no" / "such" / "folder.pcapng"))
    assert "folder.pcapng" in line


@root_only
def test_what_the_kernel_dropped_is_a_gap_of_the_capture_and_no_loss(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        import threading
        import rocekit.files.interface
        from rocekit.capture import open_capture
        from rocekit.craft.generate import Traffic, generate
        from rocekit.live.tracing import Trace

        generate("x.pcap", Traffic(packets=60_000, mtu=256, sizes=(4096,)))
        with open_capture("x.pcap") as reader:
            parts[:] = [[frame for batch in reader for frame in batch.frames()]]
        rocekit.files.interface._RING_BYTES = 4 << 20
        trace = Trace("va")
        late = parts[0][50_000:]
        del parts[0][50_000:]
        send(0)  # nobody reads meanwhile, and the ring has room for a third of it
        parts.append(late)

        def finish():
            until(lambda: trace._capture.frames > 0)
            time.sleep(1)  # what was in the ring is read: there is room again
            send(1, pause_s=0.00001)
            trace.stop()

        threading.Thread(target=finish).start()
        for item in trace:
            pass
        analysis = trace.analysis
        print(json.dumps({
            "dropped": trace.dropped, "frames": analysis.capture.counts.frames, "sent": 60_000,
            "capture": analysis.capture_dict()["dropped"],
            "rules": sorted({(f.rule, f.severity) for f in analysis.findings}),
            "repeats": sum(c.retransmitted_packets for c in analysis.connections),
            "statuses": sorted({t.status for t in analysis.transfers}),
        }))
        """,
        [],
    )
    assert told["dropped"] > 10_000
    assert told["capture"] == told["dropped"]
    assert told["dropped"] + told["frames"] >= told["sent"]
    assert told["repeats"] == 0
    assert ["capture-gap", "info"] in told["rules"]
    assert {severity for _, severity in told["rules"]} == {"info"}
    assert "acked" in told["statuses"]


@root_only
def test_frames_whose_times_run_back_are_traced_in_order_of_time(tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        import threading
        from dataclasses import replace
        import numpy as np
        from rocekit.craft.generate import Traffic, generate
        from rocekit.capture import open_capture
        from rocekit.files.interface import LiveCapture
        from rocekit.live.tracing import Trace

        generate("x.pcap", Traffic(packets=4_000, mtu=256, sizes=(4096,), pairs=4))
        with open_capture("x.pcap") as reader:
            parts[:] = [[frame for batch in reader for frame in batch.frames()]]

        class TwoQueues(LiveCapture):
            def _batch(self, blocks):
                # As if each sender's frames came through a queue of its own, 64 at a time.
                batch = super()._batch(blocks)
                sender = batch.buffer[batch.offset + 29]  # the last byte of the IPv4 address
                rows = np.lexsort((np.arange(len(batch)), sender, np.arange(len(batch)) // 64))
                names = ("offset", "caplen", "wirelen", "time_ns")
                return replace(batch, **{name: getattr(batch, name)[rows] for name in names})

        import rocekit.live.tracing
        rocekit.live.tracing.LiveCapture = TwoQueues
        trace = Trace("va")
        def finish():
            send(0, pause_s=0.00002)
            until(lambda: trace._capture.frames >= 4_000)
            trace.stop()
        threading.Thread(target=finish).start()
        ended = sum(1 for item in trace if type(item).__name__ == "Transfer")
        analysis = trace.analysis
        print(json.dumps({
            "frames": analysis.capture.counts.frames,
            "disordered": analysis.capture_dict()["disordered_packets"],
            "rules": [f.rule for f in analysis.findings],
            "statuses": sorted({t.status for t in analysis.transfers}),
            "ended": ended == len(analysis.transfers),
        }))
        """,
        [],
    )
    assert told["frames"] >= 4_000
    assert told["disordered"] > 100
    assert told["rules"] == ["capture-truncated"]
    assert told["statuses"] == ["acked"]
    assert told["ended"]
