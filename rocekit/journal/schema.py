"""The schema of a journal's lines: the events, their keys, and the kind of value of each key.

The names of opcodes, statuses and CM events are those of ``ibv_wr_opcode``, ``ibv_wc_status``,
``ibv_wc_opcode`` and ``rdma_cm_event_type``, without their prefixes.

``rocekit record`` writes more keys of each event, and further events: what was destroyed, ``recording`` (a
program started or ended), and what the journal does *not* contain: ``records_lost`` and ``not_recorded``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

CLOCK = "realtime"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value. ``words`` describe it, for the message when ``accepts`` returns False."""

    words: str
    accepts: Callable[[object], bool]


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_uint(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def _is_hex(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        bytes.fromhex(value)
    except ValueError:
        return False
    return True


def is_qp(value: object) -> bool:
    return isinstance(value, dict) and _is_str(value.get("device")) and _is_uint(value.get("qpn"))


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_sges(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(sge, dict) and all(_is_uint(sge.get(key)) for key in ("addr", "length", "lkey"))
        for sge in value
    )


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_str(name) and _is_uint(n) for name, n in value.items())


INT = Kind("a whole number", _is_int)
UINT = Kind("a whole number from 0", _is_uint)
BOOL = Kind("true or false", lambda value: isinstance(value, bool))
STR = Kind("a string", _is_str)
HEX = Kind("a string of hexadecimal bytes", _is_hex)
QP = Kind('{"device": string, "qpn": number}', is_qp)
NAMES = Kind("a list of names", _is_names)
COUNTS = Kind('{"name of a counter": number}', _is_counts)
SGES = Kind('a list of {"addr", "length", "lkey"}', _is_sges)


@dataclass(frozen=True, slots=True)
class EventSchema:
    """The keys that an event must have, and further keys that it may have."""

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind]

    def kind(self, key: str) -> Kind | None:
        return self.required.get(key) or self.optional.get(key)


def _schema(required: dict[str, Kind], optional: dict[str, Kind]) -> EventSchema:
    return EventSchema(MappingProxyType(required), MappingProxyType(optional))


_RECEIVE = {"device": STR, "srq": UINT, "errno": INT, "unfinished": BOOL}

#: A packet that the generator or the wire tells of.
_PACKET = {
    "device": STR,
    "local_ip": STR,
    "remote_ip": STR,
    "dest_qpn": UINT,
    "psn": UINT,
    "opcode": STR,
    "queue_bytes": UINT,
}

_CM = {
    "cm_id": UINT,
    "listen_id": UINT,
    "remote_qpn": UINT,
    "qkey": UINT,
    "responder_resources": UINT,
    "initiator_depth": UINT,
    "flow_control": UINT,
    "retry_count": UINT,
    "rnr_retry_count": UINT,
    "srq": UINT,
}

SCHEMA: Mapping[str, EventSchema] = MappingProxyType(
    {
        "mr_registered": _schema(
            {"device": STR, "addr": UINT, "length": UINT, "lkey": UINT, "rkey": UINT},
            {"access": NAMES, "host_addr": UINT},
        ),
        "mr_deregistered": _schema({"device": STR, "lkey": UINT, "rkey": UINT}, {}),
        "qp_created": _schema(
            {"qp": QP, "transport": STR},
            {
                "max_send_wr": UINT,
                "max_recv_wr": UINT,
                "max_send_sge": UINT,
                "max_recv_sge": UINT,
                "max_inline": UINT,
                "sq_sig_all": BOOL,
                "local_ip": STR,
                "srq": UINT,
                "extended": BOOL,
            },
        ),
        "qp_destroyed": _schema({"qp": QP}, {}),
        "qp_modified": _schema(
            {"qp": QP},
            {
                "state": STR,
                "dest_qpn": UINT,
                "sq_psn": UINT,
                "rq_psn": UINT,
                "path_mtu": UINT,
                "timeout": UINT,
                "retry_cnt": UINT,
                "rnr_retry": UINT,
                "min_rnr_timer": UINT,
                "dest_gid": STR,
                "dest_ip": STR,
                "local_ip": STR,
                "qkey": UINT,
                "access": NAMES,
                "max_rd_atomic": UINT,
                "max_dest_rd_atomic": UINT,
                "port": UINT,
                "gid_index": UINT,
                "flow_label": UINT,
                "traffic_class": UINT,
                "hop_limit": UINT,
                "errno": INT,
            },
        ),
        "wr_posted": _schema(
            {"qp": QP, "wr_id": UINT, "opcode": STR, "length": UINT},
            {
                "sges": SGES,
                "remote_va": UINT,
                "rkey": UINT,
                "imm": UINT,
                "invalidate_rkey": UINT,
                "compare": UINT,
                "swap_add": UINT,
                "signaled": BOOL,
                "inline": BOOL,
                "fenced": BOOL,
                "solicited": BOOL,
                "dest_qpn": UINT,
                "dest_ip": STR,
                "qkey": UINT,
                "errno": INT,
                "unfinished": BOOL,
                "psn": UINT,
            },
        ),
        "recv_posted": _schema({"wr_id": UINT}, {"qp": QP, "sges": SGES, "length": UINT} | _RECEIVE),
        "wc_polled": _schema(
            {"qp": QP, "wr_id": UINT, "status": STR},
            {
                "opcode": STR,
                "byte_len": UINT,
                "vendor_err": UINT,
                "imm": UINT,
                "invalidate_rkey": UINT,
                "src_qpn": UINT,
            },
        ),
        "cm_event": _schema(
            {"type": STR},
            {
                "status": INT,
                "private_data": HEX,
                "local_ip": STR,
                "remote_ip": STR,
                "local_port": UINT,
                "remote_port": UINT,
                "qp": QP,
            }
            | _CM,
        ),
        "cm_called": _schema(
            {"call": STR},
            {
                "errno": INT,
                "private_data": HEX,
                "local_ip": STR,
                "remote_ip": STR,
                "local_port": UINT,
                "remote_port": UINT,
                "qp": QP,
            }
            | _CM,
        ),
        "kernel_cm": _schema(
            {"type": STR},
            {
                "process": STR,
                "text": STR,
                "cm_id": UINT,
                "local_id": UINT,
                "remote_id": UINT,
                "local_ip": STR,
                "remote_ip": STR,
                "local_port": UINT,
                "remote_port": UINT,
                "qpn": UINT,
                "device": STR,
                "state": STR,
                "reason": STR,
                "event_type": STR,
                "status": INT,
            },
        ),
        "async_event": _schema({"type": STR}, {"qp": QP, "device": STR, "port": UINT, "srq": UINT}),
        "counters": _schema(
            {},
            {
                "device": STR,
                "port": UINT,
                "driver": STR,
                "interface": STR,
                "addresses": NAMES,
                "took_ns": UINT,
                "captured_on": STR,
                "captured_to": STR,
                "hw_counters": COUNTS,
                "device_counters": COUNTS,
                "port_counters": COUNTS,
                "link": COUNTS,
                "tc": COUNTS,
                "ethtool": COUNTS,
                "pause": COUNTS,
                "left_out": NAMES,
            },
        ),
        "device_opened": _schema({"device": STR}, {"gids": NAMES}),
        "ah_created": _schema(
            {"device": STR}, {"dest_ip": STR, "local_ip": STR, "flow_label": UINT, "traffic_class": UINT}
        ),
        "srq_created": _schema({"device": STR, "srq": UINT}, {"max_wr": UINT, "max_sge": UINT}),
        "mw_allocated": _schema({"device": STR, "rkey": UINT}, {"type": UINT}),
        "mw_bound": _schema(
            {"qp": QP, "rkey": UINT},
            {
                "wr_id": UINT,
                "addr": UINT,
                "length": UINT,
                "old_rkey": UINT,
                "mr_rkey": UINT,
                "mr_lkey": UINT,
                "access": NAMES,
                "errno": INT,
            },
        ),
        "mw_deallocated": _schema({"device": STR, "rkey": UINT}, {}),
        "dm_allocated": _schema({"device": STR, "length": UINT}, {}),
        "recording": _schema(
            {"state": STR},
            {
                "program": STR,
                "arguments": NAMES,
                "forked_from": UINT,
                "status": INT,
                "signal": STR,
                "version": STR,
            }
            | {"redacted": BOOL},
        ),
        "traffic_started": _schema(
            {"seed": UINT, "duration_ns": UINT},
            {
                "program": STR,
                "link_bps": UINT,
                "delay_ns": UINT,
                "kmin_bytes": UINT,
                "kmax_bytes": UINT,
                "pmax_ppm": UINT,
                "buffer_bytes": UINT,
                "xoff_bytes": UINT,
                "xon_bytes": UINT,
            },
        ),
        "fault_injected": _schema({"type": STR}, _PACKET | {"delay_ns": UINT}),
        "packet_lost": _schema({"reason": STR}, _PACKET),
        "packet_marked": _schema({"reason": STR}, _PACKET),
        "packet_held": _schema({"reason": STR, "held_ns": UINT}, _PACKET),
        "packet_repeated": _schema({"qp": QP, "reason": STR, "psn": UINT}, {"round": UINT, "opcode": STR}),
        "link_paused": _schema(
            {"device": STR, "priority": UINT, "quanta": UINT}, {"reason": STR, "buffered_bytes": UINT}
        ),
        "queue_length": _schema({"device": STR, "priority": UINT, "queue_bytes": UINT}, {}),
        "rate_changed": _schema(
            {"qp": QP, "reason": STR, "rate_bps": UINT}, {"target_bps": UINT, "alpha_ppm": UINT}
        ),
        "flow_totals": _schema({"flow": STR, "totals": COUNTS}, {"local_ip": STR, "remote_ip": STR}),
        "records_lost": _schema(
            {"count": UINT},
            {"sends": UINT, "receives": UINT, "completions": UINT, "others": UINT, "since_ns": UINT},
        ),
        "not_recorded": _schema({"what": STR}, {"device": STR, "qp": QP}),
    }
)

COMMON: Mapping[str, Kind] = MappingProxyType(
    {"time_ns": UINT, "host": STR, "pid": UINT, "clock": STR, "mono_ns": UINT, "thread": UINT}
)
MAY_LACK = frozenset({"clock", "mono_ns", "thread"})


def check(line: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """An event's name and its keys; keys that are null are left out.

    Raises:
        ValueError: what was expected.
    """
    values = {key: value for key, value in line.items() if value is not None}
    name = values.pop("event", None)
    schema = SCHEMA.get(name) if isinstance(name, str) else None
    if schema is None:
        shown = "no event" if name is None else f"event {name!r}"
        raise ValueError(f"{shown}: expected one of {', '.join(SCHEMA)}")
    for key, kind in COMMON.items():
        if key not in values:
            if key in MAY_LACK:
                continue
            raise ValueError(f"{name} without {key}: expected {kind.words}")
        if not kind.accepts(values[key]):
            raise ValueError(f"{key} of {name}: expected {kind.words}")
    if values.pop("clock", CLOCK) != CLOCK:
        raise ValueError(f"clock of {name}: expected {CLOCK!r}")
    for key, kind in schema.required.items():
        if key not in values:
            raise ValueError(f"{name} without {key}: expected {kind.words}")
    for key, value in values.items():
        known = schema.kind(key)
        if known is not None and not known.accepts(value):
            raise ValueError(f"{key} of {name}: expected {known.words}")
    return name, values
