"""What every output says of one capture agrees: JSON, text, statistics, the table of packets, the page.

Each number is counted twice here: by the output, and from the packets' own fields and roles.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any, Final

import pytest
from capture_bytes import Frame, pcap
from doubled_capture import frames_of
from places import PCAPS

import rocekit
from rocekit.explanation.packets import packet_stories
from rocekit.report.collector import Collector
from rocekit.report.document import document
from rocekit.report.lane_columns import build_lanes
from rocekit.report.text import summary

pytest.importorskip("polars", reason="no polars (pip install 'rocekit[export]')")

from rocekit.report.tables.packet_table import packets_table

NAMES: Final = (
    "blast-sr-loss.pcap",
    "blast-sr-rnr.pcap",
    "blast-sr-corruption.pcap",
    "ping-read-response-loss.pcap",
    "ping-write-duplication.pcap",
    "ping-write-loss-behind.pcap",
    "atomic-response-loss.pcap",
    "failures-each.pcap",
    "ib_send_bw-clean.pcap",
    "mesh-loss.pcap",
    "ud-clean.pcap",
)
#: The packets of a message: what statistics call data frames.
_DATA: Final = ("request", "response", "datagram")


def _responder(frames: list[Frame]) -> list[Frame]:
    """The direction of the second sender only."""
    senders = list(dict.fromkeys(f.data[6:12] for f in frames))
    return [f for f in frames if f.data[6:12] == senders[1]]


SPOILED: Final = {
    "whole": lambda frames: frames,
    "second half": lambda frames: frames[len(frames) // 2 :],
    "every second": lambda frames: frames[::2],
    "hole": lambda frames: [*frames[: len(frames) // 4], *frames[3 * len(frames) // 4 :]],
    "responder": _responder,
}


@pytest.fixture(scope="module", params=[(name, how) for name in NAMES for how in SPOILED], ids="-".join)
def analysis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> rocekit.Analysis:
    name, how = request.param
    path = tmp_path_factory.mktemp("spoiled") / "x.pcap"
    path.write_bytes(pcap(SPOILED[how](frames_of(PCAPS / name)), unit="ns"))
    return rocekit.analyze(path, journals=())


Rows = list[dict[str, Any]]


def _of_connections(rows: Rows) -> dict[int | None, Rows]:
    """The packets of each connection, without CM messages and what receivers drop."""
    found: dict[int | None, Rows] = defaultdict(list)
    for row in rows:
        if row["role"] not in ("cm", "ignored"):
            found[row["connection"]].append(row)
    return found


def _rows(analysis: rocekit.Analysis) -> Rows:
    rows: Rows = packets_table(packet_stories(analysis)).to_dicts()
    return rows


def test_the_json_counts_the_packets_of_the_table(analysis: rocekit.Analysis) -> None:
    rows = _rows(analysis)
    assert analysis.capture.counts.roce_packets == len(rows)
    packets = _of_connections(rows)
    transfers: dict[int, list[Any]] = defaultdict(list)
    for transfer in analysis.transfers:
        transfers[transfer.connection.id].append(transfer)
    for c in analysis.connections:
        told, own = c.to_dict(), transfers[c.id]
        roles = Counter(row["role"] for row in packets[c.id])
        again = sum(row["round"] > 1 for row in packets[c.id] if row["role"] in _DATA)
        assert told["packets"] == len(packets[c.id])
        assert told["retransmitted_packets"] == again == sum(t.retransmitted_packets for t in own)
        assert (told["transfers"], told["bytes"]) == (len(own), sum(t.bytes for t in own))
        assert (told["naks"], told["rnr_naks"], told["cnps"]) == (
            *(sum(_refusal(row) == kind for row in packets[c.id]) for kind in ("nak", "rnr")),
            roles["cnp"],
        )


def _refusal(row: dict[str, Any]) -> str | None:
    """Whether a packet is a NAK or RNR NAK, by its bytes."""
    if row["opcode"] != "RC_ACKNOWLEDGE":
        return None
    return {1: "rnr", 2: "nak", 3: "nak"}.get(row["syndrome"] >> 5 & 3)


def test_the_statistics_count_the_packets_of_the_table(analysis: rocekit.Analysis) -> None:
    packets = _of_connections(_rows(analysis))
    for flow in analysis.statistics().flows:
        counts, c, mine = flow.counts, flow.connection, "ab"[flow.side]
        sent = [row for row in packets[c.id] if row["sender"] == mine]
        got = [row for row in packets[c.id] if row["sender"] != mine]
        data = [row for row in sent if row["role"] in _DATA]
        acks = sum(row["opcode"] == "RC_ACKNOWLEDGE" and _refusal(row) is None for row in got)
        refused = Counter(map(_refusal, got))
        for name, truth in (
            ("data_frames_tx", len(data)),
            ("tx_bytes", sum(row["payload_bytes"] for row in data)),
            ("ack_rx", acks),
            ("nak_rx", refused["nak"]),
            ("rnr_nak_rx", refused["rnr"]),
        ):
            assert counts[name] in (None, truth), name


def test_the_statistics_lose_what_the_findings_lose(analysis: rocekit.Analysis) -> None:
    flows = {(f.connection.id, f.side): f for f in analysis.statistics().flows}
    for finding in analysis.findings:
        if (
            finding.connection is None
            or finding.rule != "loss"
            or "or_missed_by_capture" in finding.evidence
            or "robably" in finding.title
        ):
            continue
        connection = finding.connection
        (side,) = (s for s in (0, 1) if connection.way(s) in finding.title)
        told = flows[connection.id, side].counts["frame_delta"]
        assert told is not None
        assert told >= finding.evidence["lost_packets"]


def test_the_text_says_the_numbers_of_the_json(analysis: rocekit.Analysis) -> None:
    text = summary(analysis)
    for c in analysis.connections:
        (line,) = re.findall(rf"^  +{c.id}  {c.transport}  .*$", text.partition("\nConnections\n")[2], re.M)[
            :1
        ]
        said = {
            word: int(number.replace(",", ""))
            for number, word in re.findall(r"([\d,]+) (packet|transfer|sent again|NAK|RNR)", line)
        }
        assert said["packet"] == c.packets
        assert said["transfer"] == c.transfers
        assert said.get("sent again", 0) == c.retransmitted_packets
        assert said.get("NAK", 0) == c.naks
    for finding in analysis.findings:
        assert finding.title in text


def test_the_page_says_the_numbers_of_the_json(analysis: rocekit.Analysis) -> None:
    collector = Collector()
    again = rocekit.analyze(analysis.capture.files[0], journals=(), watch=collector)
    meta, _ = document(again, build_lanes(collector, again))
    for told, c in zip(meta["connections"], analysis.connections, strict=True):
        assert c.to_dict().items() <= told.items()
    titles = [one["title"] for one in meta["findings"]]
    assert all(f.title in titles for f in analysis.findings) or len(titles) < len(analysis.findings)
