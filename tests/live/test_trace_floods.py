"""A trace under a flood of connections: bounded, said, and ended when its user asks."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from capture_bytes import Frame, pcap
from talk import Talk
from test_metrics import SCRAPE, Scraped
from test_trace import live

import rocekit
from rocekit.analysis import conclude
from rocekit.commands import trace_lines
from rocekit.files.frames import FrameBatch, empty_batch
from rocekit.live import tracing
from rocekit.wire.build import build_frame


def flood(count: int) -> list[bytes]:
    return [
        build_frame(
            "RC_SEND_ONLY", src=f"10.7.{n >> 8}.{n & 255}", dst="10.8.0.1", dest_qpn=0x1000 + n, psn=n
        )
        for n in range(count)
    ]


def mixed() -> list[bytes]:
    """One connection in use all the time, and 600 others."""
    talk = Talk()
    for n in range(60):
        talk.send(10 * n, 2)
        talk.packet("RC_ACKNOWLEDGE", 10 * n + 1, by="b", syndrome=0x1F, msn=n + 1)
    others = flood(600)
    used = [frame.data for frame in talk.frames]
    return [data for n in range(60) for data in (*used[3 * n : 3 * n + 3], *others[10 * n : 10 * n + 10])]


def test_connections_that_are_let_go_are_reported_and_the_one_in_use_stays(
    root: None, tmp_path: Path
) -> None:
    told = live(
        tmp_path,
        """
        traced = trace("--format", "json", "--max-connections", "40")
        send(0, pause_s=0.002)
        until(lambda: "evicted" in printed())
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        mixed(),
    )
    assert told["status"] == 0, told["err"]
    lines = [json.loads(line) for line in told["out"].splitlines()]
    connections = [line for line in lines if line["type"] == "connection"]
    [mine] = [c for c in connections if c["a"]["ip"] == "10.9.0.1"]
    assert "evicted" not in mine
    assert (mine["transfers"], mine["packets"]) == (60, 180)
    gone = [c for c in connections if c.get("evicted")]
    evictions = [line for line in lines if line["type"] == "evicted"]
    assert len(gone) == sum(e["connections"] for e in evictions) == lines[-1]["evicted_connections"]
    assert len(connections) == 601
    # The numbers of connections change with each eviction, as its line says.
    number = None
    for line in lines:
        if line["type"] == "transfer" and line["requester"]["ip"] == "10.9.0.1":
            number = line["connection"] if number is None else number
            assert (line["connection"], line["status"]) == (number, "acked")
        elif line["type"] == "evicted" and number is not None:
            number = dict(line["renumbered"]).get(number, number)
    assert mine["id"] == number


def test_the_text_says_how_many_were_let_go(root: None, tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace("--quiet", "--max-connections", "40")
        send(0, pause_s=0.002)
        time.sleep(0.3)
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        mixed(),
    )
    assert told["status"] == 0, told["err"]
    assert "connections let go (--max-connections), what follows is of those that stayed" in told["out"]
    assert "10.9.0.1 QP 0x11  ⇄  10.9.0.2 QP 0x12" in told["out"]


def test_many_connections_within_the_limit_are_all_summed_up(root: None, tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        import threading
        import rocekit.live.tracing as tracing
        tracing.SUMMED_UP = 40
        trace = tracing.Trace("va", duration_s=1.5)
        threading.Thread(target=send).start()
        seen = [type(item).__name__ for item in trace]
        print(json.dumps({
            "let_go": [trace.evicted, seen.count("Evicted")], "connections": len(trace.analysis.connections),
        }))
        """,
        flood(300),
    )
    assert told == {"let_go": [0, 0], "connections": 300}


def test_metrics_of_connections_that_were_let_go_are_in_other(root: None, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    evicted = "float(re.search(r'evicted_connections_total ([0-9.]+)', answer())[1])"
    later = SCRAPE.replace('until(lambda: "connection=" in answer())', f"until(lambda: {evicted} > 400)")
    assert evicted in later
    options = '"--metrics-connections", "5", "--max-connections", "40"'
    told = live(tmp_path, f"{later}\nscrape({options})", mixed())
    assert told["status"] == 0, told["err"]
    seen = Scraped(told["scraped"])
    assert seen("rocekit_connections") > 500
    assert seen("rocekit_evicted_connections_total") > 400
    assert len({s.labels["connection"] for s in seen.samples if "connection" in s.labels}) <= 6
    # What waits for its pair when the metrics are asked for belongs to no connection yet.
    assert 700 <= seen("rocekit_connection_packets_total") <= 780


def test_frames_that_come_after_the_end_are_not_waited_for(root: None, tmp_path: Path) -> None:
    """A kernel that always has another block ready, as under a flood."""
    told = live(
        tmp_path,
        """
        from rocekit.files.frames import empty_batch
        from rocekit.files.interface import LiveCapture
        capture = LiveCapture("va")
        def batch(blocks):
            capture.frames += 1
            return empty_batch(0)
        capture._ready, capture._batch, capture._release = lambda: 1, batch, lambda blocks: None
        for count, _ in enumerate(capture):
            if count == 3:
                capture.stop()
            if count > 3_000_000:
                raise SystemExit("it does not end")
        print(json.dumps({"status": 0}))
        """,
    )
    assert told["status"] == 0


def test_no_garbage_is_searched_for_while_a_trace_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among what a flood leaves that takes more time than all else, and somebody waits for the end."""

    class Ended:
        linktype, received, dropped, hurry = 1, 0, 0, False

        def __init__(self, *_: object, **__: object) -> None: ...
        def __iter__(self) -> Iterator[FrameBatch]:
            yield empty_batch(0)

        def close(self) -> None: ...

    searched: list[bool] = []

    def concluded(*given: Any) -> Any:
        searched.append(gc.isenabled())
        return conclude(*given)

    monkeypatch.setattr(tracing, "LiveCapture", Ended)
    monkeypatch.setattr(tracing, "frames_carried", lambda _: None)
    monkeypatch.setattr(tracing, "conclude", concluded)
    assert list(tracing.Trace("va")) == []
    assert (searched, gc.isenabled()) == ([False], True)


def test_the_summary_of_a_flood_lists_so_many_connections_and_counts_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for each of 95,000 took longer than Ctrl-C may."""
    path = tmp_path / "flood.pcap"
    path.write_bytes(pcap([Frame(data) for data in flood(40)]))
    monkeypatch.setattr(trace_lines, "SHOWN_CONNECTIONS", 10)
    trace = SimpleNamespace(received=40, dropped=0, carried=None, evicted=0, forgot=False)
    trace.matched_until_ns = None
    trace_lines.TextLines().end(rocekit.analyze(path), trace)  # type: ignore[arg-type]
    shown = [line for line in capsys.readouterr().out.splitlines() if "10.7.0." in line and " RC " in line]
    assert len(shown) == 10
    trace_lines.JsonLines().end(rocekit.analyze(path), trace)  # type: ignore[arg-type]
    assert capsys.readouterr().out.count('"type":"connection"') == 40


def test_what_ends_with_the_trace_is_printed_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A flood leaves many open transfers; one that was printed before and has changed comes again."""
    path = tmp_path / "x.pcap"
    path.write_bytes(pcap([Frame(frame, n * 1000) for n, frame in enumerate(flood(20))]))
    analysis = rocekit.analyze(path)
    trace: Any = SimpleNamespace(received=20, carried=None, evicted=0, matched_until_ns=None)
    printer = trace_lines.JsonLines()
    printer.items([analysis.transfers[0]])
    analysis.transfers[0].bytes = 9
    printer.items(list(analysis.transfers)[1:], final=True)
    printer.end(analysis, trace)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines if line["type"] == "transfer"] == [*range(20), 0]
    assert sum(line["type"] == "connection" for line in lines) == 20
