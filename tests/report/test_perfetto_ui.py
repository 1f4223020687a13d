"""Perfetto's own trace processor takes our traces, and says of them what the analysis says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from perfetto_ui import Query, perfetto_ui
from places import PCAPS

import rocekit
from rocekit.cli import rocekit as cli

# Each process that runs some of them starts a Chromium.
pytestmark = pytest.mark.xdist_group("browser")

CAPTURES = ("ping-write-loss-behind.pcap", "mesh-loss.pcap")
PACKETS = """
    select slice.ts as ts, slice.name as name, args.flat_key as key, args.int_value as value, slice.id as id
    from slice join track on slice.track_id = track.id join args using (arg_set_id)
    where track.name = 'packets sent' and args.key in ('debug.frame', 'debug.psn')
"""


pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def load(traces: Path) -> Iterator[Callable[[str], Query]]:
    for capture in CAPTURES:
        out = traces / f"{Path(capture).stem}.perfetto-trace"
        result = CliRunner().invoke(cli, ["export", str(PCAPS / capture), "--to", "perfetto", "-o", str(out)])
        assert result.exit_code == 0, result.output
    with perfetto_ui(traces) as loaded:
        yield cache(lambda capture: loaded(f"{Path(capture).stem}.perfetto-trace"))


@pytest.mark.parametrize("capture", CAPTURES)
def test_the_trace_processor_takes_every_packet_and_finds_nothing_wrong(
    capture: str, traces: Path, load: Callable[[str], Query]
) -> None:
    ask = load(capture)
    assert ask("select name, value from stats where value > 0 and severity in ('error', 'data_loss')") == []
    assert ask("select name from slice where dur = -1") == [], "a slice without an end"
    trace = pb.Trace()
    trace.ParseFromString((traces / f"{Path(capture).stem}.perfetto-trace").read_bytes())
    kinds = [packet.track_event.type for packet in trace.packet if packet.HasField("track_event")]
    begin, instant, counter = 1, 3, 4  # TrackEvent.Type
    assert ask("select count(*) as n from slice")[0]["n"] == str(kinds.count(begin) + kinds.count(instant))
    assert ask("select count(*) as n from counter")[0]["n"] == str(kinds.count(counter))
    stories = rocekit.packet_stories(rocekit.analyze(PCAPS / capture))
    known = (stories.connection >= 0) & (stories.sender >= 0)
    packets = stories.packets
    told: dict[Any, dict[str, int]] = {}
    for row in ask(PACKETS):
        fields = told.setdefault(row["id"], {"time_ns": int(row["ts"])})
        fields[row["key"].removeprefix("debug.")] = int(row["value"])
    columns = (packets.frame, packets.psn, packets.time_ns)
    sent = zip(*(column[known].tolist() for column in columns), strict=True)
    assert sorted((t["frame"], t["psn"], t["time_ns"]) for t in told.values()) == sorted(sent)


def test_hosts_are_processes_and_arrows_lead_from_the_work_request_to_its_completion(
    load: Callable[[str], Query],
) -> None:
    ask = load(CAPTURES[0])
    hosts = [row["name"] for row in ask("select name from process where name is not null order by name")]
    assert hosts == ["host 10.9.0.1", "host 10.9.0.2"]
    steps = ask("""
        with recursive chain(id) as (
            select min(id) from slice where name = 'WR 8 RDMA_WRITE 8,192 bytes'
            union select slice_in from flow join chain on flow.slice_out = chain.id
        )
        select name from chain join slice using (id) order by slice.ts
    """)
    names = [row["name"] for row in steps]
    assert names[0] == "WR 8 RDMA_WRITE 8,192 bytes"
    assert names[-2:] == ["RC_ACKNOWLEDGE", "WC 8 SUCCESS"]
    assert names.count("RC_RDMA_WRITE_MIDDLE") == 6
    assert names.count("RC_RDMA_WRITE_MIDDLE (2nd time)") == 2
    most = ask(
        "select max(value) as most from counter join counter_track on counter.track_id = counter_track.id"
    )
    assert most == [{"most": 8192}]
