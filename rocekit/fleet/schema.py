"""The tables of a LAKE: their columns, with types and meanings.

Times are ns since the epoch (UTC) on the clock of the capture. Names have their units, and are those of the
JSON and of ``rocekit export`` where these have the value too. Tables of one capture also have ``day`` and
``point``, the partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: The version of tables and folders. A LAKE of another one is not added to.
SCHEMA: Final = "rocekit-fleet/3"

_INT, _TEXT, _YES = "Int64", "String", "Boolean"
_ID: Final = {"capture": (_TEXT, "the capture's id: the hash of its bytes and names")}
_ENDS: Final = {
    "src": (_TEXT, "the address that sends what was lost or sent again"),
    "dst": (_TEXT, "the address that it goes to"),
}

TABLES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "captures": {
        **_ID,
        "source": (_TEXT, "what a command takes as its FILE: a path, a URL, `rotated:…` or `part:…`"),
        "part": (_TEXT, "which part of a very large capture, such as `2/4`; null: it is whole"),
        "files": (_INT, "how many files it is in"),
        "journals": (_TEXT, "journals beside it, as a JSON list"),
        "bytes": (_INT, "size of its files; of parts, the first has all"),
        "error": (_TEXT, "why it could not be read; null if it could"),
        "damage": (_TEXT, "what of it could not be read; null if nothing"),
        "frames": (_INT, "frames; of parts, those without RoCE are in the first"),
        "roce_packets": (_INT, "RoCE v2 packets"),
        "first_ns": (_INT, "its first frame"),
        "last_ns": (_INT, "its last frame"),
        "dropped": (_INT, "packets that the capturing machine says it dropped; null: it does not say"),
        "taken_at": (_TEXT, "the host at which it was taken; null: between hosts, or unknown"),
        "taken_surely": (_YES, "whether `taken_at` is certain"),
        "connections": (_INT, "connections"),
        "transfers": (_INT, "transfers, with those that the table `transfers` leaves out"),
        "findings": (_INT, "findings"),
        "notice": (_TEXT, "what keeps it from being judged; null if nothing"),
    },
    "connections": {
        **_ID,
        "connection": (_INT, "its number in `rocekit analyze`"),
        "transport": (_TEXT, "RC, UC, UD …"),
        "a_ip": (_TEXT, "one end"),
        "a_qpn": (_INT, "its QPN; null: nothing reveals it"),
        "b_ip": (_TEXT, "the other end"),
        "b_qpn": (_INT, "its QPN"),
        "paired_by": (_TEXT, "what says that both directions belong together"),
        "path_mtu_bytes": (_INT, "path MTU"),
        "used_by": (_TEXT, "the application, if something shows it"),
        "first_ns": (_INT, "its first packet"),
        "last_ns": (_INT, "its last packet"),
        **{
            name: (_INT, meaning)
            for name, meaning in (
                ("packets", "packets"),
                ("bytes", "payload of its transfers"),
                ("transfers", "transfers"),
                ("retransmitted_packets", "packets sent again"),
                ("naks", "NAKs, without RNR NAKs"),
                ("rnr_naks", "RNR NAKs"),
                ("cnps", "CNPs"),
                ("ce_marked", "packets marked CE"),
                ("duplicates", "packets that came twice, without a repeat"),
                ("bad_icrc_packets", "packets with a wrong ICRC"),
            )
        },
    },
    "transfers": {
        **_ID,
        "transfer": (_INT, "its number, for `rocekit explain FILE --transfer N`"),
        "connection": (_INT, "its connection"),
        "requester_ip": (_TEXT, "who asked"),
        "requester_qpn": (_INT, "its QPN"),
        "responder_ip": (_TEXT, "who answered"),
        "responder_qpn": (_INT, "its QPN"),
        "operation": (_TEXT, "SEND, WRITE, READ …"),
        "status": (_TEXT, "acked, unacknowledged, nak:…, incomplete, sent"),
        "bytes": (_INT, "payload"),
        "packets": (_INT, "packets, each once"),
        "first_ns": (_INT, "its first packet"),
        "last_ns": (_INT, "its last packet"),
        "acked_ns": (_INT, "its last acknowledgement; null: none seen"),
        "retransmitted_packets": (_INT, "packets sent again"),
        "naks": (_INT, "NAKs"),
        "rnr_naks": (_INT, "RNR NAKs"),
        "timeouts": (_INT, "repeats after a timeout"),
        "wr_id": (_TEXT, "the work request's id; null: no journal, or no match"),
        "wc_status": (_TEXT, "the completion's status"),
        "troubled": (_YES, "whether anything out of the ordinary happened to it"),
    },
    "findings": {
        **_ID,
        "finding": (_INT, "its place in `rocekit analyze --all`, from 0"),
        "rule": (_TEXT, "its rule, as `rocekit rules` lists it"),
        "severity": (_TEXT, "error, warning, info"),
        "title": (_TEXT, "what happened"),
        "connection": (_INT, "its connection; null: it concerns none, or all"),
        "transfer": (_INT, "the transfer of its worst case"),
        "a_ip": (_TEXT, "one end of the connection"),
        "b_ip": (_TEXT, "the other end"),
        "first_ns": (_INT, "its first sign; null: unknown"),
        "first_frame": (_INT, "the first of its frames"),
        "lost_packets": (_INT, "packets lost, at least; null: the rule is of no loss"),
        "probably_lost_packets": (_INT, "how many of them are only probable"),
        "added_ns": (_INT, "time without progress; null: unknown"),
        "evidence": (_TEXT, "its evidence, as JSON"),
        "advice": (_TEXT, "what to do next"),
    },
    "troubles": {
        **_ID,
        "time_ns": (_INT, "its first sign"),
        "rule": (_TEXT, "what it is: loss, tail-loss, ack-loss, implied-nak, reordering, rnr …"),
        "connection": (_INT, "its connection"),
        **_ENDS,
        "requester_ip": (_TEXT, "who asked"),
        "lost_packets": (_INT, "packets lost, at least; 0: none; probable ones where not `certain`"),
        "place": (_TEXT, "`before` or `behind` the capture point, on the way to dst; null: unknown"),
        "certain": (_YES, "false: the packets allow another explanation"),
        "repeated_packets": (_INT, "packets sent again"),
        "added_ns": (_INT, "time without progress that no earlier trouble caused"),
        "transfer": (_INT, "the transfer, for `rocekit explain FILE --transfer N`; null: none"),
        "frame": (_INT, "its first frame"),
    },
    "rates": {
        **_ID,
        "second": (_INT, "the second, since the epoch"),
        "connection": (_INT, "the connection; null: of none"),
        "src": (_TEXT, "who sent"),
        "dst": (_TEXT, "to whom"),
        "dst_qpn": (_INT, "to which QP"),
        "packets": (_INT, "packets in this second"),
        "bytes": (_INT, "payload in this second, repeats included"),
        "ce_marked": (_INT, "packets marked CE"),
        "cnps": (_INT, "CNPs"),
        "naks": (_INT, "NAKs, RNR NAKs included"),
    },
    "counters": {
        **_ID,
        "host": (_TEXT, "the machine of the journal"),
        "device": (_TEXT, "its RDMA device"),
        "interface": (_TEXT, "its interface"),
        "counter": (_TEXT, "the counter's name"),
        "went_up_by": (_INT, "between the first and the last snapshot"),
        "predicted": (_INT, "what the packets say; null: they say nothing"),
        "verdict": (_TEXT, "what follows"),
        "words": (_TEXT, "the same in a sentence"),
        "from_ns": (_INT, "the first snapshot"),
        "to_ns": (_INT, "the last snapshot"),
    },
    "cm": {
        **_ID,
        "frame": (_INT, "its frame"),
        "time_ns": (_INT, "when"),
        "message": (_TEXT, "REQ, REP, RTU, REJ, DREQ, DREP …"),
        "src": (_TEXT, "who sent it"),
        "dst": (_TEXT, "to whom"),
        "connection": (_INT, "the connection that it belongs to"),
        "transaction_id": (_TEXT, "its transaction, in hexadecimal"),
        "fields": (_TEXT, "all fields, as JSON"),
    },
    "fingerprints": {
        **_ID,
        "fingerprint": ("UInt64", "the hash of what no switch changes of a packet"),
        "time_ns": (_INT, "when the capture has it"),
        "src": (_TEXT, "who sent it"),
        "dst": (_TEXT, "to whom"),
        "level": (_INT, "of 2^level packets one is kept, by its fingerprint"),
    },
    "matches": {
        **_ID,
        "point": (_TEXT, "where it was taken"),
        "other": (_TEXT, "the capture that has the same packets"),
        "other_point": (_TEXT, "where that one was taken"),
        "a_ip": (_TEXT, "one host of the common traffic"),
        "b_ip": (_TEXT, "the other host"),
        "common": (_INT, "packets that the other has in common with one of these captures"),
        "offset_ns": (_INT, "the other's clock − this one's"),
        "bound_ns": (_INT, "how far the true offset may be from it; null: one direction only"),
        "error": (_TEXT, "why they could not be analysed together; null if they could"),
        "command": (_TEXT, "the command that shows it"),
    },
    "paths": {
        **_ID,
        "other": (_TEXT, "the capture at the second point"),
        "src": (_TEXT, "who sent"),
        "dst": (_TEXT, "to whom"),
        "first_point": (_TEXT, "the capture point that packets pass first"),
        "second_point": (_TEXT, "the one that they pass then"),
        "packets": (_INT, "seen at the first"),
        "missing": (_INT, "lost between the two, exactly"),
        "overtaken": (_INT, "overtaken between the two"),
        "doubled": (_INT, "came once more at the second than at the first"),
        "corrupted": (_INT, "arrived with a changed bit"),
        "only_second": (_INT, "missed by the first capture"),
        "missed_second": (_INT, "missed by the second capture"),
        "order_by": (_TEXT, "what tells which point comes first; `files`: nothing, so nothing is known lost"),
        "command": (_TEXT, "the command that shows it"),
    },
    "placed_findings": {
        **_ID,
        "others": (_TEXT, "the other captures, as a JSON list"),
        "rule": (_TEXT, "the rule"),
        "severity": (_TEXT, "error, warning, info"),
        "title": (_TEXT, "what happened, and between which captures"),
        "a_ip": (_TEXT, "one end of the connection"),
        "b_ip": (_TEXT, "the other end"),
        "first_ns": (_INT, "its first sign, on the clock of `capture`; null: unknown"),
        "lost_packets": (_INT, "packets lost, at least"),
        "added_ns": (_INT, "time without progress"),
        "evidence": (_TEXT, "its evidence, as JSON; a frame `i:n` is of the i-th file of the command"),
        "advice": (_TEXT, "what to do next"),
        "command": (_TEXT, "the command that shows it"),
    },
    "ways": {
        "src": (_TEXT, "who sent"),
        "dst": (_TEXT, "to whom"),
        "packets": (_INT, "packets, as the capture point that has most of them"),
        "lost_packets": (_INT, "packets lost, as the point that shows most, or as counted between two"),
        "added_ns": (_INT, "time without progress, as the point that shows most"),
        "troubles": (_INT, "troubles, likewise"),
        "points": (_INT, "capture points that have this traffic"),
        "first_ns": (_INT, "the first loss; null: none"),
        "capture": (_TEXT, "the capture that shows most losses"),
    },
    "hosts": {
        "host": (_TEXT, "an address that stands out"),
        "way": (_TEXT, "`to`: packets to it are lost; `from`: packets from it"),
        "peers": (_INT, "hosts that send to it (to which it sends)"),
        "lossy_peers": (_INT, "those whose packets were lost"),
        "packets": (_INT, "packets this way"),
        "lost_packets": (_INT, "packets lost this way"),
        "first_ns": (_INT, "the first loss"),
        "words": (_TEXT, "the same in a sentence"),
    },
    "links": {
        "src": (_TEXT, "who sent"),
        "dst": (_TEXT, "to whom"),
        "packets": (_INT, "packets"),
        "lost_packets": (_INT, "packets lost; no host that stands out explains them"),
        "first_ns": (_INT, "the first loss"),
        "words": (_TEXT, "the same in a sentence"),
    },
}  # fmt: skip

#: Made of several captures of one conversation.
OF_PAIRS: Final = ("matches", "paths", "placed_findings")
#: Made of the whole LAKE, at the end of a run.
OF_ALL: Final = ("ways", "hosts", "links")


def polars_schema(table: str) -> dict[str, Any]:
    """The columns of a table with their polars types."""
    import polars as pl

    return {name: getattr(pl, kind) for name, (kind, _) in TABLES[table].items()}
