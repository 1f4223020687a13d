"""Timelines for other tools: Perfetto's traces, read with its own messages; and qlog.

Traces are read with Perfetto's message definitions and held to the rules by which its trace processor takes
them; what the processor itself says of them is in test_perfetto_ui.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from places import PCAPS, ROOT

import rocekit
from rocekit.cli import rocekit as cli
from rocekit.explanation.packets import CAUSES, ROLES
from rocekit.report.happenings import KINDS
from rocekit.report.timelines.padded_messages import PaddedMessages, placeholder, varint

pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

LOSS = PCAPS / "ping-write-loss-behind.pcap"
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def export(capture: Path, kind: str, out: Path) -> str:
    result = CliRunner().invoke(cli, ["export", str(capture), "--to", kind, "-o", str(out)])
    assert result.exit_code == 0, result.output
    return result.output


def trace_of(capture: Path, tmp_path: Path) -> Any:
    export(capture, "perfetto", tmp_path / "x.perfetto-trace")
    trace = pb.Trace()
    trace.ParseFromString((tmp_path / "x.perfetto-trace").read_bytes())
    return trace


class Tracks:
    """A trace's tracks and events, as the trace processor puts them together."""

    def __init__(self, trace: Any) -> None:
        self.names: dict[int, str] = {}
        self.parents: dict[int, int] = {}
        self.hosts: dict[int, str] = {}
        self.interned: dict[int, str] = {}
        self.events: dict[int, list[Any]] = defaultdict(list)
        for packet in trace.packet:
            assert packet.trusted_packet_sequence_id == 1
            assert packet.sequence_flags & 2
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.names
                self.names[track.uuid] = track.name or track.process.process_name
                self.parents[track.uuid] = track.parent_uuid
            elif packet.HasField("track_event"):
                assert packet.track_event.track_uuid in self.names, "a track is described before its events"
                self.events[packet.track_event.track_uuid].append(packet)
            self.interned |= {entry.iid: entry.name for entry in packet.interned_data.event_names}
        assert trace.packet[0].sequence_flags & 1

    def of(self, name: str) -> list[Any]:
        return [e for uuid, found in self.events.items() if self.names[uuid].startswith(name) for e in found]

    def name(self, packet: Any) -> str:
        event = packet.track_event
        return event.name or self.interned[event.name_iid]


@pytest.mark.parametrize(
    "capture",
    ["ping-write-loss-behind.pcap", "mesh-loss.pcap", "ib_send_bw-ud-clean.pcap", "blast-sr-rnr.pcap"],
)
def test_slices_nest_and_every_packet_of_a_connection_is_there(capture: str, tmp_path: Path) -> None:
    tracks = Tracks(trace_of(PCAPS / capture, tmp_path))
    for uuid, events in tracks.events.items():
        depth = 0
        for packet in sorted(events, key=lambda p: p.timestamp):
            kind = packet.track_event.type
            depth += (kind == BEGIN) - (kind == END)
            assert 0 <= depth <= 1, tracks.names[uuid]
        assert depth == 0
    analysis = rocekit.analyze(PCAPS / capture)
    stories = rocekit.packet_stories(analysis)
    known = (stories.connection >= 0) & (stories.sender >= 0)
    sent = tracks.of("packets sent")
    assert len(sent) == known.sum()
    names = {1: "frame", 2: "psn", 3: "bytes", 4: "round"}
    told = [{names[a.name_iid]: a.uint_value for a in p.track_event.debug_annotations} for p in sent]
    assert sorted(t["frame"] for t in told) == sorted(stories.packets.frame[known].tolist())
    psn_of = dict(zip(stories.packets.frame.tolist(), stories.packets.psn.tolist(), strict=True))
    time_of = dict(zip(stories.packets.frame.tolist(), stories.packets.time_ns.tolist(), strict=True))
    assert all(psn_of[t["frame"]] == t["psn"] for t in told)
    assert all(time_of[t["frame"]] == p.timestamp for t, p in zip(told, sent, strict=True))


def test_arrows_lead_from_the_work_request_over_packets_and_ack_to_the_completion(tmp_path: Path) -> None:
    tracks = Tracks(trace_of(LOSS, tmp_path))
    transfer = rocekit.analyze(LOSS).transfers[16]
    flow = [
        p
        for found in tracks.events.values()
        for p in found
        if list(p.track_event.flow_ids) == [transfer.id + 1]
    ]
    names = [tracks.name(p) for p in sorted(flow, key=lambda p: p.timestamp)]
    assert names[0] == "WR 8 RDMA_WRITE 8,192 bytes"
    assert names[-1] == "WC 8 SUCCESS"
    assert names[-2] == "RC_ACKNOWLEDGE"
    assert Counter(names)["RC_RDMA_WRITE_MIDDLE"] == 6
    assert Counter(names)["RC_RDMA_WRITE_MIDDLE (2nd time)"] == 2


def test_waits_recoveries_and_counters_have_tracks_below_their_qp(tmp_path: Path) -> None:
    tracks = Tracks(trace_of(LOSS, tmp_path))
    waits = tracks.of("waits")
    begins = [p for p in waits if p.track_event.type == BEGIN]
    ends = [p for p in waits if p.track_event.type == END]
    longest = max(e.timestamp - b.timestamp for b, e in zip(begins, ends, strict=True))
    assert longest == max(e.waited_ns for t in rocekit.analyze(LOSS).transfers for e in t.events)
    assert len([p for p in tracks.of("recoveries") if p.track_event.type != END]) == 9
    counter = tracks.of("outstanding bytes")
    assert max(p.track_event.counter_value for p in counter) == 8192
    assert counter[-1].track_event.counter_value == 0
    qp = tracks.parents[waits[0].track_event.track_uuid]
    assert "10.9.0.1 QP 0x14 → 10.9.0.2 QP 0x14" in tracks.names[qp]
    assert tracks.names[tracks.parents[qp]] == "host 10.9.0.1"


def test_without_a_journal_transfers_are_slices(tmp_path: Path) -> None:
    tracks = Tracks(trace_of(PCAPS / "rping-clean.pcap", tmp_path))
    begun = [p for p in tracks.of("transfers") if p.track_event.type == BEGIN]
    transfers = rocekit.analyze(PCAPS / "rping-clean.pcap").transfers
    assert sorted(p.timestamp for p in begun) == sorted(t.first_ns for t in transfers)
    assert not tracks.of("work requests")


@given(st.lists(st.integers(0, 2**35 - 1), min_size=1, max_size=30))
def test_padded_numbers_read_as_what_they_are(values: list[int]) -> None:
    template = pb.Trace()
    template.packet.add().timestamp = placeholder(5, 0)
    messages = PaddedMessages(template.SerializeToString(), {"time": varint(placeholder(5, 0))})
    trace = pb.Trace()
    trace.ParseFromString(messages.fill({"time": np.array(values)}))
    assert [p.timestamp for p in trace.packet] == values


def test_a_number_that_does_not_fit_is_refused() -> None:
    messages = PaddedMessages(varint(placeholder(2, 0)), {"x": varint(placeholder(2, 0))})
    with pytest.raises(ValueError, match="needs more than 2 bytes"):
        messages.fill({"x": np.array([1 << 14])})


def qlog_of(capture: Path, tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    said = export(capture, "qlog", tmp_path / "x.sqlog")
    text = (tmp_path / "x.sqlog").read_text()
    records = text.split("\x1e")
    assert records[0] == ""
    assert all(record.endswith("\n") and record.count("\n") == 1 for record in records[1:])
    head, *events = map(json.loads, records[1:])
    assert f"{len(events):,} events" in said
    return head, events


def test_qlog_has_its_head_and_events_in_the_order_of_time(tmp_path: Path) -> None:
    head, events = qlog_of(LOSS, tmp_path)
    assert head["file_schema"] == "urn:ietf:params:qlog:file:sequential"
    assert head["serialization_format"] == "application/qlog+json-seq"
    assert head["trace"]["event_schemas"] == ["urn:x-rocekit:qlog:events:roce-1"]
    times = [e["data"]["time_ns"] for e in events]
    assert times == sorted(times)
    assert all(abs(e["time"] * 1e6 - e["data"]["time_ns"]) < 1000 for e in events)


def test_qlog_tells_a_transfer_from_its_post_to_its_completion(tmp_path: Path) -> None:
    _, events = qlog_of(LOSS, tmp_path)
    own = [e for e in events if e["data"].get("transfer") == 16]
    names = [e["name"] for e in own]
    assert names[0] == "verbs:wr_posted"
    assert names[1] == "roce:transfer_begun"
    assert names[-2:] == ["roce:transfer_ended", "verbs:wc_polled"]
    assert [e["data"]["frame"] for e in own if e["name"] == "roce:nak"] == [198]
    again = [e["data"] for e in own if e["name"] == "roce:packet" and e["data"].get("round") == 2]
    assert [(p["frame"], p["cause"]) for p in again] == [(199, "nak"), (200, "nak")]
    counts = Counter(e["name"] for e in events)
    assert counts["roce:packet"] == 236
    assert counts["cm:message"] == 5
    assert counts["roce:finding"] == 2


@pytest.mark.parametrize(
    "capture",
    ["failures-each.pcap", "ping-read-response-loss.pcap", "blast-sr-rnr.pcap", "ib_send_bw-ud-clean.pcap"],
)
def test_the_documentation_has_every_event_with_its_fields_and_words(capture: str, tmp_path: Path) -> None:
    table = (ROOT / "docs" / "formats.md").read_text().partition("\n## qlog\n")[2].partition("\n## ")[0]
    described: dict[str, str] = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            names, _, data = line.strip("|").split(" | ")
            described |= dict.fromkeys(re.findall(r"`([a-z]+:\w+)`", names), data)
    assert {f"roce:{kind}" for kind in KINDS} - {"roce:cm", "roce:failed"} <= set(described)
    assert all(f"`{word}`" in described["roce:packet"] for word in (*ROLES, *filter(None, CAUSES)))
    for event in qlog_of(PCAPS / capture, tmp_path)[1]:
        words = described[event["name"]]
        if "of the JSON" not in words:  # else the JSON's own test holds them
            assert all(f"`{name}`" in words for name in event["data"].keys() - {"time_ns"}), event


@pytest.mark.parametrize("kind", ["perfetto", "qlog"])
def test_what_a_timeline_cannot_do_is_one_line(kind: str, tmp_path: Path) -> None:
    def says(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, ["export", "--to", kind, *arguments])
        return result.exit_code, result.output

    code, said = says(str(LOSS), "--table", "packets")
    assert code == 2
    assert "--table is for tables" in said
    code, said = says("-")
    assert code == 1
    assert "standard input" in said
    code, said = says(str(LOSS), "-o", str(tmp_path / "no" / "x"))
    assert code == 1
    assert "there is no folder" in said
