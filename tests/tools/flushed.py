"""A capture and a journal in which many work requests are flushed."""

from __future__ import annotations

import json
from pathlib import Path


def dead_with_flushed(pcaps: Path, folder: Path, count: int) -> Path:
    """A WRITE to a silent peer; while it is tried again the program posts more, all of them flushed."""
    capture = folder / f"flushed-{count}.pcap"
    capture.write_bytes((pcaps / "ping-write-dead.pcap").read_bytes())
    events = [
        json.loads(line) for line in (pcaps / "ping-write-dead.client.journal.jsonl").read_text().splitlines()
    ]
    (post,) = (e for e in events if e["event"] == "wr_posted")
    (done,) = (e for e in events if e["event"] == "wc_polled" and e["status"] == "RETRY_EXC_ERR")
    for k in range(count):
        events.append(post | {"wr_id": 1000 + k, "time_ns": post["time_ns"] + (k + 1) * 1_000_000})
        late = {"wr_id": 1000 + k, "status": "WR_FLUSH_ERR", "time_ns": done["time_ns"] + 1000 + k}
        events.append(done | late)
    events.sort(key=lambda e: int(e["time_ns"]))
    beside = folder / f"flushed-{count}.client.journal.jsonl"
    beside.write_text("".join(json.dumps(e) + "\n" for e in events))
    return capture
