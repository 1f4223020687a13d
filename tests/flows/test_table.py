"""The table of flows says what counting packet by packet says, however the capture is cut into batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from rocekit import wire
from rocekit.capture import PcapngWriter, open_capture
from rocekit.craft.generate import OPERATIONS, Traffic, generate
from rocekit.decode import Decoder, Row
from rocekit.findings.survey import Survey
from rocekit.flows import RATE_NS
from rocekit.flows.observer import Observer
from rocekit.flows.view import FlowView
from rocekit.track.connections import Connection
from rocekit.wire.build import build_frame
from rocekit.wire.sorting import distinct, first_of_each, starts


def _seen(path: Path, batch_frames: int) -> tuple[Observer, list[Row]]:
    """The observer after the capture, and the packets as rows."""
    decoder, observer, rows = Decoder(), Observer(), []
    with open_capture(path, batch_frames=batch_frames) as reader:
        for batch in reader:
            packets = decoder.decode(batch)
            observer.feed(packets)
            rows += list(packets.rows())
    return observer, rows


def _counted(rows: list[Row]) -> dict[tuple[str, str, int, int], FlowView]:
    """The flows, one packet after the other."""
    views: dict[tuple[str, str, int, int], FlowView] = {}
    ecn = False
    for row in rows:
        opcode = wire.OPCODES[wire.OPCODE_NAMES[str(row["opcode"])]]
        key = str(row["src"]), str(row["dst"]), int(str(row["dest_qpn"])), 0
        time_ns, frame = int(str(row["time_ns"])), int(str(row["frame"]))
        payload, codepoint = int(str(row["payload_length"])), int(str(row["ecn"]))
        view = views.setdefault(key, FlowView(*key[:3], first_ns=time_ns))
        view.packets += 1
        view.payload += payload
        view.last_ns = time_ns
        view.opcodes[opcode.value] = view.opcodes.get(opcode.value, 0) + 1
        kind = "cnp" if opcode.name == "CNP" else "response" if opcode.response else "request"
        seen = view.dscps.setdefault(kind, {})
        n, first = seen.get(int(str(row["dscp"])), (0, frame))
        seen[int(str(row["dscp"]))] = (n + 1, first)
        view.sports.add(int(str(row["udp_sport"])))
        view.roce_versions.add(int(str(row["roce_version"])))
        if kind == "request" and view.first_psn is None:
            view.first_psn, view.first_frame = int(str(row["psn"])), frame
        if kind == "cnp":
            view.cnps.append((time_ns, frame))
            view.cnp_count += 1
        elif codepoint == 3 and payload:
            view.marked.append((time_ns, frame))
            view.marked_count += 1
        if opcode.operation == "ACK":
            refusal = wire.syndrome_kind(int(str(row["syndrome"])))
            view.naks += refusal not in (wire.ACK, wire.RNR_NAK)
            view.rnr_naks += refusal == wire.RNR_NAK
        view.notified += kind != "cnp" and bool(row["becn"])
        ecn = ecn or codepoint > 0 or kind == "cnp"
        if ecn and payload:
            span = time_ns // RATE_NS
            view.rate[span] = view.rate.get(span, 0) + payload
    return views


def _same(observer: Observer, rows: list[Row]) -> None:
    expected = _counted(rows)
    assert observer.flows.keys() == expected.keys()
    for key, view in observer.flows.items():
        known = expected[key]
        for name in FlowView.__slots__:
            if name not in ("full_sizes", "rate"):
                assert getattr(view, name) == getattr(known, name), (key, name)
        assert all(view.rate.get(span, 0) >= n for span, n in known.rate.items())
    for src, dst in {key[:2] for key in expected}:
        assert observer.heard[src, dst] == max(v.last_ns for k, v in expected.items() if k[:2] == (src, dst))


def _same_at_once(observer: Observer) -> None:
    """What is asked of all flows' columns is what their views say one by one."""
    views, table = observer.flows, observer.table
    low, high = table.classes()
    size = table.sizes()
    for key, view in views.items():
        number = observer.number(*key)
        assert number is not None
        dscps = [d for kind in ("request", "response") for d in view.dscps.get(kind, ())]
        assert not dscps or (low[number], high[number]) == (min(dscps), max(dscps))
        assert dscps or low[number] > high[number]
        sizes = set(view.full_sizes)
        assert size[number] == (-2 if len(sizes) > 1 else min(sizes, default=-1))
        assert table.column("marked")[number] == view.marked_count
        assert table.column("cnps")[number] == view.cnp_count
    assert observer.number("10.9.9.9", "10.0.0.1", 2) is None
    asking = [v for v in views.values() if "request" in v.dscps and 2 in v.roce_versions]
    asked = list(table.requesters())
    assert [(src, dst, scope) for src, dst, scope, _, _ in asked] == list(
        dict.fromkeys((v.src, v.dst, 0) for v in asking)
    )
    for src, dst, _, frames, ports in asked:
        own = [v for v in asking if (v.src, v.dst) == (src, dst)]
        assert frames == [v.first_frame for v in own]
        assert ports == {port for v in own for port in v.sports}
    for least in (2, 3):
        assert list(table.requesters(least)) == [one for one in asked if len(one[3]) >= least]

    ends = sorted({key[:2] for key in views})
    qpns = [(a, b) for a in (None, 2, 3) for b in (2, 3, 4)]
    connections = [
        Connection(i, "RC", list(ips), list(pair))
        for i, (ips, pair) in enumerate((ips, pair) for ips in ends for pair in qpns)
    ]
    survey = Survey(connections, observer)
    sides = [(c, [observer.flow(c, 0), observer.flow(c, 1)]) for c in connections]
    seen = [(c, [v for v in both if v is not None]) for c, both in sides]
    kinds = ("request", "response")
    assert survey.several_classes() == [
        c for c, own in seen if len({d for v in own for kind in kinds for d in v.dscps.get(kind, ())}) > 1
    ]
    assert survey.several_sizes() == [c for c, own in seen if len({n for v in own for n in v.full_sizes}) > 1]
    assert survey.sending("marked", 1) == [c for c, own in seen if any(v.marked_count for v in own)]
    assert survey.sending("cnps", 2) == [c for c, own in seen if any(v.cnp_count >= 2 for v in own)]


def test_nothing_observed_stands_out() -> None:
    connection = Connection(0, "RC", ["10.0.0.1", "10.0.0.2"], [17, 18])
    for observer in (None, Observer()):
        survey = Survey([connection], observer)
        assert not survey.several_classes() + survey.several_sizes() + survey.sending("marked", 1)


@pytest.mark.parametrize("batch_frames", [1, 37, 100_000])
def test_synthetic_flows_are_counted_as_one_by_one(tmp_path: Path, batch_frames: int) -> None:
    path = tmp_path / "x.pcap"
    packets = 400 if batch_frames == 1 else 4000
    generate(path, Traffic(packets=packets, pairs=40, hosts=6, operations=OPERATIONS, ecn=0.1, loss=0.02))
    observer, rows = _seen(path, batch_frames)
    _same(observer, rows)
    _same_at_once(observer)


_PACKET = st.fixed_dictionaries(
    {
        "opcode": st.sampled_from(
            ["RC_SEND_FIRST", "RC_SEND_ONLY", "RC_ACKNOWLEDGE", "UC_SEND_MIDDLE", "CNP"]
        ),
        "src": st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        "dst": st.sampled_from(["10.0.0.1", "10.0.0.3"]),
        "dest_qpn": st.integers(2, 4),
        "psn": st.integers(0, 9),
        "dscp": st.integers(0, 2),
        "ecn": st.integers(0, 3),
        "becn": st.integers(0, 1),
        "sport": st.integers(0xC000, 0xC002),
        "size": st.sampled_from([0, 256, 1024]),
    }
)


@given(st.lists(_PACKET, min_size=1, max_size=40), st.integers(1, 50))
@settings(max_examples=examples(60))
def test_any_flows_are_counted_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, packets: list[dict[str, object]], batch_frames: int
) -> None:
    path = tmp_path_factory.mktemp("flows") / "x.pcapng"
    with PcapngWriter(path) as writer:
        for n, packet in enumerate(packets):
            fields = {k: v for k, v in packet.items() if k != "size"}
            small = fields["opcode"] in ("RC_ACKNOWLEDGE", "CNP")
            fields["payload"] = b"" if small else bytes(int(str(packet["size"])))
            if fields["opcode"] == "CNP":
                del fields["becn"]
            writer.write(build_frame(**fields), 1_700_000_000_000_000_000 + n * 400_000)  # type: ignore[arg-type]
    observer, rows = _seen(path, batch_frames)
    _same(observer, rows)
    _same_at_once(observer)
    for view in observer.flows.values():
        full = {"RC_SEND_FIRST", "UC_SEND_MIDDLE"}
        mine = [r for r in rows if (r["src"], r["dst"], r["dest_qpn"]) == (view.src, view.dst, view.dest_qpn)]
        sizes = Counter(r["payload_length"] for r in mine if r["opcode"] in full)
        # In a batch the smallest and the largest are kept.
        assert set(view.full_sizes) <= set(sizes)
        if sizes:
            assert {min(sizes), max(sizes)} <= set(view.full_sizes)


@given(st.lists(st.integers(-5, 5), max_size=30))
def test_sorted_runs(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == sorted(set(values))
    found, at = first_of_each(array)
    assert found.tolist() == sorted(set(values))
    assert at.tolist() == [values.index(v) for v in found.tolist()]
    ordered = np.sort(array)
    assert [ordered[i] for i in starts(ordered)] == sorted(set(values))
