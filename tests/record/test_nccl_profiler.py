"""NCCL's profiler plug-in: what it writes as NCCL calls it, and collectives down to their packets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from nccl_plugin import NcclHost
from places import PCAPS, ROOT, TOOLS
from soft_pair import talk

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.endpoint import connection as endpoint_connection
from rocekit.endpoint.work import SendWr
from rocekit.errors import RocekitError
from rocekit.journal import read_journal
from rocekit.record.build import InterposerError, compiler, nccl_profiler
from rocekit.scenarios.scenario import Plan
from rocekit.soft.wires.faults import Fault

STUB = TOOLS / "stub"
#: NCCL's own headers: the folder plugins/profiler/example/nccl of its sources.
PUBLISHED = os.environ.get("NCCL_PROFILER_HEADERS")


@pytest.fixture(scope="module")
def plugin() -> Path:
    try:
        return nccl_profiler()
    except InterposerError as error:
        pytest.skip(str(error))


def host_program(folder: Path, version: int, *, published: bool) -> Path:
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler")
    made = folder / f"host{version}"
    headers = [f"-I{PUBLISHED}", "-DPUBLISHED"] if published else [f"-I{STUB}"]
    command = [cc, "-std=gnu11", "-Wall", f"-DVERSION={version}", *headers, "-o", str(made)]
    subprocess.run([*command, str(STUB / "nccl_host.c"), "-ldl"], check=True, timeout=120)
    return made


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("published", [False, pytest.param(True, id="published headers")])
def test_what_nccl_tells_is_in_the_journal(
    plugin: Path, tmp_path: Path, version: int, published: bool
) -> None:
    if published and PUBLISHED is None:
        pytest.skip("NCCL_PROFILER_HEADERS names no folder with NCCL's headers")
    program = host_program(tmp_path, version, published=published)
    path = tmp_path / "x-%h-%p.journal.jsonl"
    environment = {**os.environ, "ROCEKIT_NCCL_JOURNAL": str(path), "ROCEKIT_NCCL_SYSFS": str(tmp_path)}
    done = subprocess.run(
        [program, plugin], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    # Collectives, point-to-point operations, proxy operations, their steps and the network's events.
    assert done.stdout == "rocekit 9e\n"
    (written,) = tmp_path.glob(f"x-{socket.gethostname()}-*.journal.jsonl")
    journal = read_journal(written)
    assert not journal.problems
    opened, closed = journal.of("nccl_communicator")
    assert (opened["communicator"], opened["rank"], opened["ranks"], opened["nodes"]) == (
        "0xfedcba9876543210", 3, 8, 2,
    )  # fmt: skip
    assert (opened["state"], closed["state"]) == ("opened", "closed")
    first, second, third = journal.of("nccl_operation")
    told = ("function", "sequence", "count", "datatype", "algorithm", "protocol", "channels", "root")
    assert [first[key] for key in told] == [
        "AllReduce", 7, 262144, "ncclFloat32", "RING", "SIMPLE", 2, 0,
    ]  # fmt: skip
    assert (second["function"], third["function"], third["kind"], third["peer"]) == (
        "Broadcast", "Send", "p2p", 6,
    )  # fmt: skip
    send, receive, foreign, hanging = journal.of("nccl_proxy_op")
    assert [op["operation"] for op in (send, receive, hanging)] == [1, 1, 2]
    assert [op["send"] for op in (send, receive)] == [True, False]
    assert [send[key] for key in ("channel", "peer", "steps", "chunk_bytes")] == [1, 4, 2, 524288]
    # PXN: the operation is one of another process, which is named, and the communicator is not known.
    assert foreign["operation_pid"] != foreign.pid
    assert foreign.get("communicator") is None
    assert [event["proxy_op"] for event in journal.of("nccl_proxy_op_ended")] == [1, 2, 3]
    requests = [
        (e["proxy_op"], e["step"], e["qpn"], e["wr_id"], e.get("length")) for e in journal.of("nccl_wr")
    ]
    assert requests == [
        (1, 0, 0x11, 100, 524288), (2, 0, 0x12, 0, None), (1, 1, 0x11, 101, 524288), (2, 1, 0x12, 1, None),
        (4, 0, 0x11, 100, 524288),
    ]  # fmt: skip
    states = [event["state"] for event in journal.of("nccl_step") if event["proxy_op"] == 1]
    assert states == ["gpu_wait", "credit_wait", "send_wait", "ended"] * 2


def test_what_a_hanging_collective_waits_for_is_in_the_journal_of_a_killed_program(
    plugin: Path, tmp_path: Path
) -> None:
    program = host_program(tmp_path, 5, published=False)
    path = tmp_path / "x.journal.jsonl"
    environment = {**os.environ, "ROCEKIT_NCCL_JOURNAL": str(path), "ROCEKIT_NCCL_SYSFS": str(tmp_path)}
    with subprocess.Popen([program, plugin, "hang"], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"rocekit 9e\n"
        assert process.stdout.readline() == b"hangs\n"
        # A thread of the plug-in writes five times a second; nothing else tells when it has.
        while not path.exists() or b'"proxy_op":4,"step":0,"state":"send_wait"' not in path.read_bytes():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    analysis = rocekit.analyze(PCAPS / "rping-clean.pcap", journals=[path])
    assert analysis.journal is not None
    collectives = analysis.journal.collectives
    assert collectives is not None
    assert [op.ended_ns is None for op in collectives.operations] == [False, True, True]
    text = CliRunner().invoke(cli, ["analyze", str(PCAPS / "rping-clean.pcap"), "--journal", str(path)])
    assert (
        "not ended: Broadcast 0 of communicator 0xfedcba9876543210, rank 3; channel 1, send to rank 4: "
        in (text.output)
    )
    assert "step 0 is with the network" in text.output


def test_a_journal_that_cannot_be_written_stops_no_training(plugin: Path, tmp_path: Path) -> None:
    """NCCL goes on without a profiler if its init fails."""
    program = host_program(tmp_path, 5, published=False)
    environment = {
        **os.environ,
        "ROCEKIT_NCCL_JOURNAL": str(tmp_path / "no" / "x"),
        "ROCEKIT_NCCL_SYSFS": "/",
    }
    done = subprocess.run(
        [program, plugin], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 3
    assert "cannot be written: No such file or directory" in done.stderr


@pytest.fixture
def training(plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two soft devices; whose client posts, calls the plug-in before each WRITE as NCCL does.

    Three collectives of four steps each; one packet is lost.
    """
    n = os.getpid() % 60_000
    ips = (f"127.{n >> 8}.{n & 0xFF}.6", f"127.{n >> 8}.{n & 0xFF}.7")
    gids = tmp_path / "sys" / "soft0" / "ports" / "1" / "gids"
    gids.mkdir(parents=True)
    gids.joinpath("0").write_text("fe80:0000:0000:0000:0000:00ff:fe00:0001\n")
    a, b, c, d = (int(part) for part in ips[1].split("."))
    gids.joinpath("1").write_text(f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}\n")
    host = NcclHost(plugin, tmp_path / "x.nccl.journal.jsonl", tmp_path / "sys")
    posted = 0
    operation = None
    post = endpoint_connection.Connection.post_send

    def told(self: endpoint_connection.Connection, *wrs: SendWr) -> None:
        nonlocal posted, operation
        steps = []
        for wr in wrs:
            if wr.opcode != "RDMA_WRITE" or self.endpoint.ip != ips[1]:
                continue
            if posted % 4 == 0:
                operation = host.send_op(host.collective("AllReduce", posted // 4), posted // 4, 4)
            step = host.step(operation, posted % 4)
            host.tell_wr(step, self.qpn, wr.wr_id, wr.length)
            steps.append(step)
            posted += 1
        post(self, *wrs)
        for step in steps:
            host.sent(step)
            host.stop(step)
        if steps and posted % 4 == 0:
            host.stop(operation)

    monkeypatch.setattr(endpoint_connection.Connection, "post_send", told)
    fault = Fault("drop", qpn=1, psn=4)
    talk(
        Plan("blast-write", 3000, 12, window=1), tmp_path, server_ip=ips[0], client_ip=ips[1], faults=(fault,)
    )
    host.finalize()
    assert posted == 12
    return {"folder": tmp_path, "ips": ips}


def test_each_transfer_of_a_collective_is_known_with_the_programs_journal(training: dict[str, Any]) -> None:
    folder = training["folder"]
    journals = [folder / "client.journal.jsonl", folder / "x.nccl.journal.jsonl"]
    analysis = rocekit.analyze(folder / "x.pcapng", journals=journals)
    assert analysis.journal is not None
    collectives = analysis.journal.collectives
    assert collectives is not None
    assert [len(operation.transfers) for operation in collectives.operations] == [4, 4, 4]
    assert {request.matched_by for request in collectives.requests} == {"journal"}
    for request in collectives.requests:
        (transfer,) = request.transfers
        assert transfer.wr is not None
        assert transfer.wr.wr_id == request.event["wr_id"]
        assert transfer.bytes == request.length
    explanation = analysis.explain(collectives.operations[1].transfers[2])
    (note,) = [note for note in explanation.notes if note.startswith("collective: ")]
    assert note == (
        "collective: AllReduce 1 of communicator 0xabc, rank 0 (--collective 1): channel 1, send to rank 1, "
        "step 2; matched by recorder's work request"
    )
    document = analysis.to_dict()["journal"]["nccl"]
    assert [operation["transfers"] for operation in document["operations"]] == [
        [t.id for t in operation.transfers] for operation in collectives.operations
    ]
    assert (document["work_requests"], document["matched"]) == (12, 12)


def test_without_the_programs_journal_the_qps_number_and_the_devices_addresses_lead_to_the_transfers(
    training: dict[str, Any],
) -> None:
    folder = training["folder"]
    analysis = rocekit.analyze(folder / "x.pcapng", journals=[folder / "x.nccl.journal.jsonl"])
    assert analysis.journal is not None
    assert analysis.journal.nothing_because is None
    collectives = analysis.journal.collectives
    assert collectives is not None
    assert {request.matched_by for request in collectives.requests} == {"order"}
    assert [len(operation.transfers) for operation in collectives.operations] == [4, 4, 4]


def test_nothing_is_taken_by_order_where_one_transfer_more_or_less_is_there(
    training: dict[str, Any], tmp_path: Path
) -> None:
    """A capture that began later: which of equally long WRITEs is whose cannot be known."""
    folder = training["folder"]
    path = folder / "x.nccl.journal.jsonl"
    lines = path.read_text().splitlines()
    without = [line for line in lines if '"nccl_wr"' not in line]
    requests = [line for line in lines if '"nccl_wr"' in line]
    for kept in (requests[1:], [*requests, requests[-1]]):
        other = tmp_path / "other.jsonl"
        other.write_text("\n".join([*without, *kept]) + "\n")
        analysis = rocekit.analyze(folder / "x.pcapng", journals=[other])
        assert analysis.journal is not None
        assert analysis.journal.collectives is not None
        assert not any(request.transfers for request in analysis.journal.collectives.requests)


def test_a_collective_is_explained_down_to_its_transfers(training: dict[str, Any]) -> None:
    capture = str(training["folder"] / "x.pcapng")
    journals = ["--journal", str(training["folder"] / "x.nccl.journal.jsonl")]
    journals += ["--journal", str(training["folder"] / "client.journal.jsonl")]
    run = CliRunner().invoke
    summary = run(cli, ["analyze", capture, *journals])
    assert "NCCL: 1 rank, 3 operations, 3 proxy operations, 12 send work requests, 12 of them matched" in (
        summary.output
    )
    told = run(cli, ["explain", capture, *journals, "--collective", "0"])
    assert told.exit_code == 0, told.output
    assert told.output.startswith("AllReduce 0 of communicator 0xabc, rank 0\n")
    assert told.output.count("  acked  ") == 4
    assert "1 packet sent again" in told.output or "packets sent again" in told.output
    document = json.loads(
        run(cli, ["explain", capture, *journals, "--collective", "0", "--format", "json"]).output
    )
    assert len(document["transfers"]) == 4
    for wrong in (["--collective", "3"], ["--collective", "0", "--transfer", "1"]):
        assert run(cli, ["explain", capture, *journals, *wrong]).exit_code in (1, 2)
    plain = run(cli, ["explain", str(PCAPS / "rping-clean.pcap"), "--collective", "0"])
    assert (plain.exit_code, "record --nccl" in plain.output) == (1, True)


def test_record_loads_the_plugin_and_names_its_journals(plugin: Path, tmp_path: Path) -> None:
    """The stub host stands in for a training program; the interposer sees no verbs in it."""
    program = host_program(tmp_path, 5, published=False)
    from rocekit.record.build import interposer

    try:
        interposer()
    except RocekitError as error:
        pytest.skip(str(error))
    script = tmp_path / "train.sh"
    script.write_text(f'#!/bin/sh\nexec {program} "$NCCL_PROFILER_PLUGIN"\n')
    script.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "rocekit",
        "record",
        "--nccl",
        "-o",
        "x.journal.jsonl",
        "--",
        str(script),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("NCCL_PROFILER_PLUGIN", None)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    (journal,) = tmp_path.glob("x.nccl-*.journal.jsonl")
    assert journal.name in done.stderr
    assert len(read_journal(journal).of("nccl_operation")) == 3
