"""The schema of a journal's lines: the events, their keys, and the kind of value of each key.

The names of opcodes, statuses and CM events are those of ``ibv_wr_opcode``, ``ibv_wc_status``,
``ibv_wc_opcode`` and ``rdma_cm_event_type``, without their prefixes.

``rocekit record`` writes more keys of each event, and further events: what was destroyed, ``recording`` (a
program started or ended), and what the journal does *not* contain: ``records_lost`` and ``not_recorded``.
"""

from __future__ import annotations

from types import MappingProxyType

TYPE_CHECKING = False  # to import typing or dataclasses takes longer than to write a short program's journal
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

CLOCK = "realtime"
_END_64 = 1 << 64


class Kind:
    """A kind of value. ``words`` describe it, for the message when ``accepts`` returns False."""

    __slots__ = ("accepts", "words")

    def __init__(self, words: str, accepts: Callable[[object], bool]) -> None:
        self.words, self.accepts = words, accepts


def _is_uint(value: object) -> bool:
    return _fits(value, 0, _END_64)


def _fits(value: object, first: int, end: int) -> bool:
    """Whether it is a whole number from ``first`` to before ``end``."""
    return isinstance(value, int) and not isinstance(value, bool) and first <= value < end


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
    return isinstance(value, dict) and _is_str(value.get("device")) and _fits(value.get("qpn"), 0, 1 << 24)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_sges(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(sge, dict)
        and _is_uint(sge.get("addr"))
        and all(_fits(sge.get(key), 0, 1 << 32) for key in ("length", "lkey"))
        for sge in value
    )


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_str(name) and _is_uint(n) for name, n in value.items())


def _whole(first: int, last: int, words: str) -> Kind:
    return Kind(
        f"a whole number {words}",
        # Two calls for each number of a journal would be a good part of the time that it takes to read.
        lambda value: isinstance(value, int) and not isinstance(value, bool) and first <= value <= last,
    )


def _bits(bits: int) -> Kind:
    return _whole(0, (1 << bits) - 1, f"from 0, of {bits} bits")


#: What a C int has: an errno, a status.
INT = _whole(-(1 << 31), (1 << 31) - 1, "with a sign, of 32 bits")
UINT = Kind("a whole number from 0, of 64 bits", _is_uint)
U8, U16, U24, U32 = map(_bits, (8, 16, 24, 32))
#: A local ACK timeout or RNR timer (9.7.5.2.8, 9.7.6.1.3).
CODE = _whole(0, 31, "from 0 to 31")
#: Nanoseconds since the epoch or a machine's start. Differences of two must fit columns of 64 bits with a
#: sign: to the year 2116.
TIME = _whole(0, (1 << 62) - 1, "from 0, of nanoseconds, below 2^62")
BOOL = Kind("true or false", lambda value: isinstance(value, bool))
STR = Kind("a string", _is_str)
HEX = Kind("a string of hexadecimal bytes", _is_hex)
QP = Kind('{"device": string, "qpn": number}', is_qp)
NAMES = Kind("a list of names", _is_names)
COUNTS = Kind('{"name of a counter": number}', _is_counts)
SGES = Kind('a list of {"addr", "length", "lkey"}', _is_sges)


COMMON: Mapping[str, Kind] = MappingProxyType(
    {"time_ns": TIME, "host": STR, "pid": U32, "clock": STR, "mono_ns": TIME, "thread": U32, "restated": BOOL}
)
MAY_LACK = frozenset({"clock", "mono_ns", "thread", "restated"})


class EventSchema:
    """The keys that an event must have, and further keys that it may have.

    Attributes:
        known: all of them, with those of every event.
        needed: those that must be there, with those of every event.
    """

    __slots__ = ("known", "needed", "optional", "required")

    def __init__(
        self,
        required: Mapping[str, Kind],
        optional: Mapping[str, Kind],
        known: Mapping[str, Kind],
        needed: frozenset[str],
    ) -> None:
        self.required, self.optional, self.known, self.needed = required, optional, known, needed

    def kind(self, key: str) -> Kind | None:
        return self.required.get(key) or self.optional.get(key)

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Whether nothing is wrong with an event's keys that are not null."""
        if not self.needed <= values.keys():
            return False
        known = self.known
        for key, value in values.items():
            kind = known.get(key)
            if kind is not None and not kind.accepts(value):
                return False
        return bool(values.get("clock", CLOCK) == CLOCK)


def _schema(required: dict[str, Kind], optional: dict[str, Kind]) -> EventSchema:
    return EventSchema(
        MappingProxyType(required),
        MappingProxyType(optional),
        {**optional, **required, **COMMON},
        frozenset(required) | COMMON.keys() - MAY_LACK,
    )


_RECEIVE = {"device": STR, "srq": U32, "errno": INT, "unfinished": BOOL}

#: Whose records are missing, and how many of each kind.
_MISSING = {
    "qp": QP,
    "device": STR,
    "srq": U32,
    "sends": UINT,
    "receives": UINT,
    "completions": UINT,
    "since_ns": TIME,
}

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
    "remote_qpn": U24,
    "qkey": U32,
    "responder_resources": U8,
    "initiator_depth": U8,
    "flow_control": U8,
    "retry_count": U8,
    "rnr_retry_count": U8,
    "srq": U32,
}

#: What a QP was made with.
_QP_MADE = {
    "max_send_wr": U32,
    "max_recv_wr": U32,
    "max_send_sge": U32,
    "max_recv_sge": U32,
    "max_inline": U32,
    "sq_sig_all": BOOL,
    "srq": U32,
}

#: What it is set to.
_QP_ATTRIBUTES = {
    "state": STR,
    "dest_qpn": U24,
    "sq_psn": U24,
    "rq_psn": U24,
    "path_mtu": U16,
    "timeout": CODE,
    "retry_cnt": U8,
    "rnr_retry": U8,
    "min_rnr_timer": CODE,
    "dest_gid": STR,
    "dest_ip": STR,
    "local_ip": STR,
    "qkey": U32,
    "access": NAMES,
    "max_rd_atomic": U32,
    "max_dest_rd_atomic": U32,
    "port": U32,
    "gid_index": U32,
    "flow_label": U32,
    "traffic_class": U8,
    "hop_limit": U8,
}

SCHEMA: Mapping[str, EventSchema] = MappingProxyType(
    {
        "mr_registered": _schema(
            {"device": STR, "addr": UINT, "length": UINT, "lkey": U32, "rkey": U32},
            {"access": NAMES, "host_addr": UINT},
        ),
        "mr_deregistered": _schema({"device": STR, "lkey": U32, "rkey": U32}, {}),
        "qp_created": _schema({"qp": QP, "transport": STR}, _QP_MADE | {"local_ip": STR, "extended": BOOL}),
        "qp_destroyed": _schema({"qp": QP}, {}),
        "qp_modified": _schema({"qp": QP}, _QP_ATTRIBUTES | {"errno": INT}),
        "qp_found": _schema({"qp": QP, "transport": STR}, _QP_MADE | _QP_ATTRIBUTES),
        "wr_posted": _schema(
            {"qp": QP, "wr_id": UINT, "opcode": STR, "length": UINT},
            {
                "sges": SGES,
                "remote_va": UINT,
                "rkey": U32,
                "imm": U32,
                "invalidate_rkey": U32,
                "compare": UINT,
                "swap_add": UINT,
                "signaled": BOOL,
                "inline": BOOL,
                "fenced": BOOL,
                "solicited": BOOL,
                "dest_qpn": U24,
                "dest_ip": STR,
                "qkey": U32,
                "errno": INT,
                "unfinished": BOOL,
                "overlapped": BOOL,
                "psn": U24,
                "queue_index": UINT,
            },
        ),
        "recv_posted": _schema({"wr_id": UINT}, {"qp": QP, "sges": SGES, "length": UINT} | _RECEIVE),
        "wc_polled": _schema(
            {"qp": QP, "wr_id": UINT, "status": STR},
            {
                "opcode": STR,
                "byte_len": U32,
                "vendor_err": U32,
                "imm": U32,
                "invalidate_rkey": U32,
                "src_qpn": U24,
                "queue_index": UINT,
            },
        ),
        "cm_event": _schema(
            {"type": STR},
            {
                "status": INT,
                "private_data": HEX,
                "local_ip": STR,
                "remote_ip": STR,
                "local_port": U16,
                "remote_port": U16,
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
                "local_port": U16,
                "remote_port": U16,
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
                "local_id": U32,
                "remote_id": U32,
                "local_ip": STR,
                "remote_ip": STR,
                "local_port": U16,
                "remote_port": U16,
                "qpn": U24,
                "device": STR,
                "state": STR,
                "reason": STR,
                "event_type": STR,
                "status": INT,
            },
        ),
        "async_event": _schema({"type": STR}, {"qp": QP, "device": STR, "port": U32, "srq": U32}),
        "counters": _schema(
            {},
            {
                "device": STR,
                "port": U32,
                "driver": STR,
                "interface": STR,
                "addresses": NAMES,
                "took_ns": TIME,
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
        "device_opened": _schema({"device": STR}, {"gids": NAMES, "found": BOOL}),
        "ah_created": _schema(
            {"device": STR}, {"dest_ip": STR, "local_ip": STR, "flow_label": U32, "traffic_class": U8}
        ),
        "srq_created": _schema({"device": STR, "srq": U32}, {"max_wr": U32, "max_sge": U32}),
        "mw_allocated": _schema({"device": STR, "rkey": U32}, {"type": UINT}),
        "mw_bound": _schema(
            {"qp": QP, "rkey": U32},
            {
                "wr_id": UINT,
                "addr": UINT,
                "length": UINT,
                "old_rkey": U32,
                "mr_rkey": U32,
                "mr_lkey": U32,
                "access": NAMES,
                "errno": INT,
            },
        ),
        "mw_deallocated": _schema({"device": STR, "rkey": U32}, {}),
        "dm_allocated": _schema({"device": STR, "length": UINT}, {}),
        "recording": _schema(
            {"state": STR},
            {
                "program": STR,
                "arguments": NAMES,
                "forked_from": U32,
                "status": INT,
                "signal": STR,
                "version": STR,
                "redacted": BOOL,
                "rank": U32,
                "filter": STR,
            },
        ),
        "traffic_started": _schema(
            {"seed": UINT},
            {
                "duration_ns": UINT,
                "program": STR,
                "link_bps": UINT,
                "delay_ns": UINT,
                "kmin_bytes": UINT,
                "kmax_bytes": UINT,
                "pmax_ppm": UINT,
                "buffer_bytes": UINT,
                "xoff_bytes": UINT,
                "xon_bytes": UINT,
                "loss_ppm": UINT,
                "ecn_ppm": UINT,
            },
        ),
        "fault_injected": _schema({"type": STR}, _PACKET | {"delay_ns": UINT}),
        "packet_lost": _schema({"reason": STR}, _PACKET | {"captured": BOOL}),
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
        "nccl_communicator": _schema(
            {"state": STR, "communicator": STR, "rank": U32}, {"ranks": U32, "nodes": U32, "name": STR}
        ),
        "nccl_operation": _schema(
            {"operation": UINT, "kind": STR, "communicator": STR, "rank": U32, "function": STR},
            {
                "sequence": UINT,
                "count": UINT,
                "datatype": STR,
                "algorithm": STR,
                "protocol": STR,
                "channels": U32,
                "root": U32,
                "peer": U32,
            },
        ),
        "nccl_proxy_op": _schema(
            {"proxy_op": UINT, "send": BOOL},
            {
                "operation": UINT,
                "operation_pid": U32,
                "communicator": STR,
                "rank": U32,
                "channel": U32,
                "peer": U32,
                "steps": U32,
                "chunk_bytes": U32,
            },
        ),
        "nccl_proxy_op_ended": _schema({"proxy_op": UINT}, {}),
        "nccl_step": _schema({"proxy_op": UINT, "step": U32, "state": STR}, {"length": UINT}),
        "nccl_wr": _schema(
            {"proxy_op": UINT, "step": U32, "qpn": U24, "wr_id": UINT, "send": BOOL},
            {"opcode": STR, "length": UINT},
        ),
        "records_lost": _schema({"count": UINT}, _MISSING | {"others": UINT}),
        "records_filtered": _schema({"count": UINT}, _MISSING),
        "qp_totals": _schema({"qp": QP, "totals": COUNTS}, {"since_ns": TIME}),
        "file_began": _schema({"set": STR, "number": UINT}, {}),
        "not_recorded": _schema({"what": STR}, {"device": STR, "qp": QP}),
    }
)


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
    if not schema.fits(values):
        _refuse(name, schema, values)
    values.pop("clock", None)
    return name, values


def _refuse(name: str, schema: EventSchema, values: Mapping[str, Any]) -> None:
    """Raise what is wrong with an event's keys first."""
    for key, kind in COMMON.items():
        if key not in values:
            if key in MAY_LACK:
                continue
            raise ValueError(f"{name} without {key}: expected {kind.words}")
        if not kind.accepts(values[key]):
            raise ValueError(f"{key} of {name}: expected {kind.words}")
    if values.get("clock", CLOCK) != CLOCK:
        raise ValueError(f"clock of {name}: expected {CLOCK!r}")
    for key, kind in schema.required.items():
        if key not in values:
            raise ValueError(f"{name} without {key}: expected {kind.words}")
    for key, value in values.items():
        known = schema.kind(key)
        if known is not None and not known.accepts(value):
            raise ValueError(f"{key} of {name}: expected {known.words}")
