"""`rocekit trace --metrics`: what Prometheus scrapes while a trace runs is what the capture holds."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from places import ROOT
from test_trace import frames, live, shots, soft_frames

import rocekit
from rocekit import cli

pytest.importorskip("prometheus_client", reason="no prometheus-client (pip install 'rocekit[metrics]')")

from prometheus_client.parser import text_string_to_metric_families

from rocekit.live import metrics_server
from rocekit.live.metrics import BUCKETS_S, Histogram
from rocekit.live.metrics_server import CLIENTS, MetricsServer, parse_address

DASHBOARD = ROOT / "contrib" / "grafana-rocekit.json"

SCRAPE = """
import re, urllib.request

def scrape(*options):
    traced = trace("--quiet", "--metrics", "127.0.0.1:0", "--write", "x.pcapng", *options)
    until(lambda: b"metrics on port" in open("err", "rb").read())
    port = int(re.search(r"port ([0-9]+)", open("err").read())[1])
    send(pause_s=0.0005)
    url = f"http://127.0.0.1:{port}/metrics"
    sent = len(parts[0])
    answer = lambda: urllib.request.urlopen(url, timeout=240).read().decode()
    until(lambda: f"rocekit_packets_total {sent}.0" in answer())
    until(lambda: "connection=" in answer())  # a batch is counted before it is tracked
    scraped = answer()
    traced.send_signal(signal.SIGINT)
    status = traced.wait(100)
    print(json.dumps({"status": status, "out": printed(), "err": open("err").read(), "scraped": scraped}))
"""


def find_promtool() -> str:
    """Prometheus' own judge; scripts/test puts it beside this Python."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.prefix) / "bin")))
    found = shutil.which("promtool", path=path)
    if found is None:
        pytest.skip("no promtool (scripts/test fetches it from the Debian package prometheus)")
    return found


class Scraped:
    """A scrape's samples, as Prometheus' own parser reads them."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def __call__(self, metric: str, **labels: str) -> float:
        """The sum of the samples with this name and these labels."""
        found = [s.value for s in self.samples if s.name == metric and labels.items() <= s.labels.items()]
        assert found, metric
        return sum(found)

    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


@pytest.fixture(scope="module")
def scraped(
    root: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Scraped, rocekit.Analysis, dict[str, Any]]:
    """A scrape behind a soft run with losses and two connections of rxe's, and what its capture holds."""
    folder = tmp_path_factory.mktemp("metrics")
    sent = soft_frames(folder, 11, {"drop": 0.04, "bit-error": 0.02})
    sent += frames(ROOT / "pcaps" / "blast-sr-rnr.pcap") + frames(ROOT / "pcaps" / "blast-sr-corruption.pcap")
    told = live(folder, SCRAPE + "\nscrape()", sent)
    assert told["status"] == 0, told["err"]
    assert frames(folder / "x.pcapng") == sent
    return Scraped(told["scraped"]), rocekit.analyze(folder / "x.pcapng"), told


def test_what_is_counted_of_all_is_what_the_capture_holds(
    scraped: tuple[Scraped, rocekit.Analysis, dict[str, Any]],
) -> None:
    seen, analysis, _ = scraped
    counts = analysis.capture.counts
    assert seen("rocekit_packets_total") == counts.roce_packets
    assert seen("rocekit_icrc_errors_total") == counts.bad_icrc > 0
    assert seen("rocekit_frames_received_total") >= counts.roce_packets
    assert seen("rocekit_frames_dropped_total") == 0
    assert seen("rocekit_connections") == len(analysis.connections)
    acked = analysis.transfers.where(status="acked")
    for operation in {t.operation for t in acked}:
        mine = acked.where(operation=operation)
        assert seen("rocekit_transfers_total", operation=operation, status="acked") == len(mine)
    for message in {r.message for r in analysis.cm}:
        assert seen("rocekit_cm_messages_total", message=message) == len(analysis.cm.where(message=message))
    for cause in ("nak", "timeout", "rnr"):
        told = [
            e
            for t in analysis.transfers
            for e in t.events
            if e.kind == "repeat" and e.opens and e.cause == cause
        ]
        assert seen("rocekit_gobacks_total", cause=cause) == len(told)


def test_each_connection_has_its_own_counters(
    scraped: tuple[Scraped, rocekit.Analysis, dict[str, Any]],
) -> None:
    seen, analysis, _ = scraped
    for connection in analysis.connections:
        labels = {"connection": str(connection.id), "transport": connection.transport}
        if None not in connection.qpns:
            labels["a"] = f"{connection.ips[0]} QP {connection.qpns[0]:#x}"
            labels["b"] = f"{connection.ips[1]} QP {connection.qpns[1]:#x}"
        for metric, value in (
            ("packets", connection.packets),
            ("retransmitted_packets", connection.retransmitted_packets),
            ("naks", connection.naks),
            ("rnr_naks", connection.rnr_naks),
        ):
            assert seen(f"rocekit_connection_{metric}_total", **labels) == value
        acked = [t for t in analysis.transfers if t.connection is connection and t.status == "acked"]
        if acked:
            assert seen("rocekit_connection_transfers_total", status="acked", **labels) == len(acked)


def test_times_are_told_in_seconds_and_every_message_is_in_a_bucket(
    scraped: tuple[Scraped, rocekit.Analysis, dict[str, Any]],
) -> None:
    seen, analysis, _ = scraped
    for operation in {t.operation for t in analysis.transfers.where(status="acked")}:
        ended = seen("rocekit_transfers_total", operation=operation)
        assert seen("rocekit_transfer_duration_seconds_count", operation=operation) == ended
        assert seen("rocekit_transfer_duration_seconds_bucket", operation=operation, le="+Inf") == ended
    lasted = sum(t.duration_ns for t in analysis.transfers.where(status="acked")) / 1e9
    assert seen("rocekit_transfer_duration_seconds_sum") == pytest.approx(lasted, rel=0.2)


def test_names_follow_prometheus_conventions(
    scraped: tuple[Scraped, rocekit.Analysis, dict[str, Any]],
) -> None:
    seen, _, told = scraped
    for family in seen.families:
        assert re.fullmatch(r"rocekit_[a-z_]+[a-z]", family.name)
        assert family.documentation
        assert not re.search(r"_(ms|us|ns|kb|bits)(_|$)", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
    promtool = find_promtool()
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=told["scraped"], text=True, capture_output=True, timeout=240
    )
    assert checked.returncode == 0, checked.stderr


def test_quiet_prints_no_line_a_transfer_and_the_summary(
    scraped: tuple[Scraped, rocekit.Analysis, dict[str, Any]],
) -> None:
    _, analysis, told = scraped
    assert "frames received" in told["out"]
    assert " acked" not in told["out"].split("va:")[0]
    assert len(analysis.transfers) > 20


def test_connections_beyond_the_bound_are_one_called_other(root: None, tmp_path: Path) -> None:
    ends = {"cd": (("10.0.0.3", 0x13), ("10.0.0.4", 0x14)), "ef": (("10.0.0.5", 0x15), ("10.0.0.6", 0x16))}
    lines = "".join(f"{a} RC_SEND_ONLY 5 {size}\n{b} ACK 5\n" for a, b, size in ("ab1", "cd2", "ef3", "cd4"))
    sent = shots(lines.replace("c RC_SEND_ONLY 5 4\nd ACK 5", "c RC_SEND_ONLY 6 4\nd ACK 6"), others=ends)
    told = live(tmp_path, SCRAPE + '\nscrape("--metrics-connections", "1")', sent)
    assert told["status"] == 0, told["err"]
    seen, analysis = Scraped(told["scraped"]), rocekit.analyze(tmp_path / "x.pcapng")
    assert len(analysis.connections) == 3
    names = {s.labels["connection"] for s in seen.samples if "connection" in s.labels}
    assert names == {"0", "other"}
    assert seen("rocekit_connection_packets_total", connection="other") == sum(
        c.packets for c in analysis.connections[1:]
    )
    assert seen("rocekit_connection_transfers_total", connection="other", status="acked") == 3
    assert seen("rocekit_connection_message_bytes_total", connection="other") == 2 + 3 + 4
    assert seen("rocekit_connection_message_bytes_total") == seen("rocekit_message_bytes_total") == 10


def test_the_dashboard_asks_only_for_what_is_there(
    scraped: tuple[Scraped, rocekit.Analysis, dict[str, Any]],
) -> None:
    seen, _, _ = scraped
    dashboard = json.loads(DASHBOARD.read_text())
    there = seen.names() | {family.name for family in seen.families}
    labels = {name for sample in seen.samples for name in sample.labels} | {"job", "instance"}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [v["query"]["query"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    assert len(expressions) > 20
    for expression in expressions:
        asked = set(re.findall(r"\brocekit_\w+", expression))
        assert asked, expression
        assert asked <= there, expression
        for names in re.findall(r"by \(([^)]*)\)", expression):
            assert {name.strip() for name in names.split(",")} <= labels, expression
        assert expression.count("(") == expression.count(")")
        for metric in asked if not expression.startswith("label_values") else ():
            counted = metric.endswith(("_total", "_bucket"))
            assert counted == bool(re.search(r"(rate|increase)\(" + metric, expression)), expression
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)


def test_prometheus_understands_every_question_of_the_dashboard(tmp_path: Path) -> None:
    promtool = find_promtool()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    rules: list[dict[str, str]] = []
    for expression in (target["expr"] for panel in panels for target in panel["targets"]):
        filled = re.sub(r"\$__\w+", "5m", expression).replace("$", "")
        rules.append({"record": f"rule_{len(rules)}", "expr": filled})
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


# ---------------------------------------------------------------------- the pieces


def test_a_time_falls_into_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for ns in (0, 2_000, 2_001, 10_000_000_000, 10_000_000_001):
        histogram.observe(ns)
    buckets = dict(histogram.buckets())
    assert list(buckets) == [*map(str, BUCKETS_S), "+Inf"]
    assert [buckets[k] for k in ("2e-06", "5e-06", "5.0", "10.0", "+Inf")] == [2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (":9464", "127.0.0.1", 9464),
        ("9464", "127.0.0.1", 9464),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:9464", "::1", 9464),
        ("localhost:9464", "localhost", 9464),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize("text", ["", ":", "soon", ":65536", "1.2.3.4", ":-1", ":٣", ":" + "9" * 5000])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        parse_address(text)


def run(*args: str) -> Result:
    return CliRunner().invoke(cli.rocekit, ["trace", "lo", *args])


def test_wrong_use_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("--metrics", f"127.0.0.1:{port}")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        f"rocekit: error: no metrics at 127.0.0.1:{port}: address already in use; name another"
    )
    result = run("--metrics", "soon")
    assert result.exit_code == 2
    assert "'soon' is not an address" in result.stderr
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    result = run("--metrics", "127.0.0.1:0")
    assert result.exit_code == 1
    how = f"{sys.executable} -m pip install 'rocekit[metrics]'"
    assert result.stderr == f"rocekit: error: metrics need prometheus-client: {how}\n"


def test_a_closed_server_gives_its_port_back() -> None:
    with MetricsServer("127.0.0.1:0") as server:
        port = server.port
    with MetricsServer(f"127.0.0.1:{port}") as again:
        assert again.port == port


def test_clients_that_say_nothing_keep_only_so_many_places_and_a_scrape_comes_through_when_one_goes() -> None:
    with MetricsServer("127.0.0.1:0") as server, ExitStack() as stack:
        server.start()
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=240))
            for _ in range(CLIENTS + 3)
        ]
        # The server takes them in order: the last ones find no place, and are hung up on.
        assert [client.recv(1) for client in silent[CLIENTS:]] == [b""] * 3
        silent[0].close()
        for _ in range(600):
            with socket.create_connection(("127.0.0.1", server.port), timeout=240) as client:
                try:
                    client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                    answer = client.recv(12)
                except ConnectionError:  # turned away: the place is not free yet
                    answer = b""
            if answer:
                break
            time.sleep(0.1)
        assert answer.startswith(b"HTTP/1.0 200")


def test_a_client_that_sends_a_byte_now_and_then_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "CLIENT_S", 0.2)
    with (
        MetricsServer("127.0.0.1:0") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=240) as slow,
        suppress(ConnectionError),
    ):
        server.start()
        slow.sendall(b"G")
        begun = time.monotonic()
        while time.monotonic() < begun + 60:
            slow.sendall(b"E")
            if select.select([slow], [], [], 0.02)[0]:
                break
        assert slow.recv(1) == b""
