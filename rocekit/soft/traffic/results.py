"""The results of a run in the columns of the Open Traffic Generator's RoCE v2 metrics.

The names and units are those of ``rocev2_flow_metrics`` and of ``rocev2_ipv4_metrics`` and
``rocev2_ipv6_metrics`` (open-traffic-generator/models, result/rocev2flow.yaml, result/rocev2ipv4.yaml).
Columns of our own come behind them and have their units in their names.
"""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any

from rocekit.soft.traffic.run import FlowDone, TrafficRun
from rocekit.wire.text_table import safe_cell

_NS: int = 1_000_000_000


def flow_metrics(run: TrafficRun) -> list[dict[str, Any]]:
    """A row for each flow.

    Bytes are payload. Rates are payload in Gb/s over the time between a flow's first and last data frame.
    Latencies are of data frames that arrived, from the first bit sent to the last bit received. The flow
    completion time lasts from the first frame of the first message to the last frame or answer that arrived:
    OTG has it in whole milliseconds, and ``flow_completion_ns`` exactly.
    """
    return [_flow(f) for f in run.flows]


def peer_metrics(run: TrafficRun) -> list[dict[str, Any]]:
    """A row for each peer, or for each host where the plan has no peers: queue pairs, messages of the CM."""
    return [
        {"name": name, "qp_configured": q, "qp_up": up, "qp_down": q - up} | cm
        for name, q, up, cm in run.peers
    ]


def _flow(flow: FlowDone) -> dict[str, Any]:
    c = flow.counts
    version = "ipv6" if ":" in flow.addresses[0] else "ipv4"
    done = None if c.first_ns is None or c.last_ns is None else c.last_ns - c.first_ns
    total, least, most = c.latency_ns
    return {
        "flow_name": flow.name,
        "port_tx": flow.ports[0],
        "port_rx": flow.ports[1],
        "src_qp": flow.qpns[0],
        "dest_qp": flow.qpns[1],
        f"src_{version}": flow.addresses[0],
        f"dest_{version}": flow.addresses[1],
        "data_frames_tx": c.data_frames_tx,
        "data_frames_rx": c.data_frames_rx,
        "frame_delta": c.data_frames_tx - c.data_frames_rx,
        "data_frames_retransmitted": c.data_frames_retransmitted,
        "frame_sequence_error": c.frame_sequence_error,
        "tx_bytes": c.tx_bytes,
        "rx_bytes": c.rx_bytes,
        "data_tx_rate": _gbps(c.tx_bytes, c.first_tx_ns, c.last_tx_ns),
        "data_rx_rate": _gbps(c.rx_bytes, c.first_rx_ns, c.last_rx_ns),
        "message_tx": c.message_tx,
        "message_complete_rx": c.message_complete_rx,
        "message_fail": c.message_fail,
        "flow_completion_time": None if done is None else round(done / 1e6),
        "avg_latency": round(total / c.data_frames_rx) if c.data_frames_rx else None,
        "min_latency": least if c.data_frames_rx else None,
        "max_latency": most if c.data_frames_rx else None,
        "ecn_ce_rx": c.ecn_ce_rx,
        "cnp_tx": c.cnp_tx,
        "cnp_rx": c.cnp_rx,
        "ack_tx": c.ack_tx,
        "ack_rx": c.ack_rx,
        "nak_tx": c.nak_tx,
        "nak_rx": c.nak_rx,
        "first_timestamp": _stamp(c.first_ns),
        "last_timestamp": _stamp(c.last_ns),
        "flow_completion_ns": done,
        "frames_lost": c.frames_lost,
        "frames_held": c.frames_held,
        "held_ns": c.held_ns,
    }


def _gbps(count: int, first: int | None, last: int | None) -> float:
    if first is None or last is None or last <= first:
        return 0.0
    return round(count * 8 / (last - first), 6)


def _stamp(ns: int | None) -> str | None:
    if ns is None:
        return None
    return f"{datetime.fromtimestamp(ns // _NS, UTC):%Y-%m-%dT%H:%M:%S}.{ns % _NS:09d}Z"


def as_json(run: TrafficRun) -> str:
    """One document: the flows, the peers, and what the switch did."""
    document = {
        "rocev2_flow_metrics": flow_metrics(run),
        "rocev2_peer_metrics": peer_metrics(run),
        "switch": {
            "marked_packets": run.marked,
            "lost_packets": run.lost,
            "held_packets": run.held,
            "pause_frames": run.pause_frames,
            "most_queued_bytes": run.most_queued,
        },
    }
    return json.dumps(document, indent=2)


def as_csv(run: TrafficRun) -> str:
    """The flows, a line each; a value that there is not is empty."""
    rows = flow_metrics(run)
    text = io.StringIO()
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {key: safe_cell(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    )
    return text.getvalue().rstrip("\n")


#: The columns of the text, and their heads.
_SHOWN = (
    ("flow_name", "flow"),
    ("data_frames_tx", "frames tx"),
    ("data_frames_rx", "rx"),
    ("data_frames_retransmitted", "again"),
    ("message_complete_rx", "messages"),
    ("message_fail", "failed"),
    ("data_rx_rate", "Gb/s rx"),
    ("avg_latency", "latency ns"),
    ("max_latency", "most"),
    ("ecn_ce_rx", "CE"),
    ("cnp_rx", "CNP"),
    ("nak_rx", "NAK"),
    ("frames_lost", "lost"),
    ("frames_held", "held"),
)


def as_text(run: TrafficRun) -> str:
    """A table of the flows, and a line of the switch."""
    rows = [[head for _, head in _SHOWN]]
    for row in flow_metrics(run):
        rows.append([_shown(row[key]) for key, _ in _SHOWN])
    widths = [max(len(row[i]) for row in rows) for i in range(len(_SHOWN))]
    lines = [
        "  ".join(
            v.ljust(w) if i == 0 else v.rjust(w) for i, (v, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lost = ", ".join(f"{n:,} {reason.replace('_', ' ')}" for reason, n in sorted(run.lost.items()))
    longest = max(run.most_queued.items(), key=lambda item: item[1], default=None)
    lines.append(
        f"switch: {run.marked:,} packets marked, {sum(run.lost.values()):,} lost"
        + (f" ({lost})" if lost else "")
        + f", {run.held:,} held, {run.pause_frames:,} pause frames"
        + (f"; longest queue {longest[1]:,} bytes, to {longest[0]}" if longest else "")
    )
    return "\n".join(lines)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
