"""Inputs with the structure of real ones and something wrong in them: captures, journals, YAML, expressions.

Each is made from a seed alone, so that a seed repeats it. Most of a file is right, so that what is wrong is
reached: frames have right checksums and ICRCs, journals have the keys of their events.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from hostile_captures import (
    HOSTS,
    NUMBERS,
    START_NS,
    TEXTS,
    HostileInput,
    capture_pcap,
    capture_pcapng,
    packed,
)

from rocekit.journal.schema import COMMON, COUNTS, HEX, NAMES, QP, SCHEMA, SGES, STR, Kind
from rocekit.packets import COLUMNS, HAS

__all__ = ["MAKERS", "HostileInput", "hostile_input"]

# ---------------------------------------------------------------------- journals


def value(rng: random.Random, kind: Kind, key: str) -> Any:
    """A value of a key: mostly one that it may have."""
    if rng.random() < 0.03:
        return rng.choice((None, True, "x", [], {}, 1.5, *NUMBERS, *TEXTS))
    if kind is STR:
        usual = {
            "transport": ("RC", "UC", "UD", "XX"),
            "opcode": ("SEND", "RDMA_WRITE", "RDMA_READ", "RECV", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "?"),
            "status": ("SUCCESS", "RETRY_EXC_ERR", "WR_FLUSH_ERR", "?"),
            "state": ("RTS", "ERR", "RESET", "started", "ended", "wait_gpu", "init", "?"),
            "local_ip": HOSTS,
            "remote_ip": HOSTS,
            "dest_ip": HOSTS,
            "dest_gid": ("::ffff:10.0.0.2", "x"),
        }.get(key, (*TEXTS[1:6], "rxe0", "CONNECT_REQUEST"))
        return rng.choice(usual)
    if kind is QP:
        return {"device": rng.choice(("rxe0", "rxe1")), "qpn": rng.choice((0x11, 0x12, 0x12, 1 << 23))}
    if kind is NAMES:
        return [rng.choice(TEXTS) for _ in range(rng.randrange(3))]
    if kind is COUNTS:
        return {
            rng.choice(("rcvd_pkts", "x", "duplicate_request", "\x1b")): rng.choice(NUMBERS[:8])
            for _ in range(rng.randrange(3))
        }
    if kind is HEX:
        return rng.randbytes(rng.randrange(6)).hex()
    if kind is SGES:
        return [
            {"addr": rng.choice(NUMBERS[:12]), "length": rng.choice(NUMBERS[:9]), "lkey": 5}
            for _ in range(rng.randrange(3))
        ]
    if kind.words.startswith("true"):
        return rng.random() < 0.5
    if key == "length":
        return rng.choice((0, 64, 1024, 4096, 1 << 31, (1 << 64) - 1))
    fitting = [n for n in (*NUMBERS, 3, 7, 0x11, 0x12, 17, 100) if kind.accepts(n)]
    return rng.choice(fitting) if fitting else 0


FREQUENT = (
    "wr_posted",
    "wc_polled",
    "recv_posted",
    "qp_created",
    "qp_modified",
    "mr_registered",
    "counters",
    "cm_event",
)


def journal(rng: random.Random) -> HostileInput:
    """Lines of all events, with keys that they may have."""
    lines, now = [], START_NS
    for _ in range(rng.choice((1, 5, 30))):
        now += rng.choice((0, 1_000, 1_000_000))
        name = rng.choice(FREQUENT) if rng.random() < 0.8 else rng.choice(list(SCHEMA))
        schema = SCHEMA[name]
        line: dict[str, Any] = {
            "time_ns": now,
            "clock": "realtime",
            "host": rng.choice(("a", "b", "\x1b]0;x")),
            "pid": 1,
            "event": name,
        }
        line |= {key: value(rng, kind, key) for key, kind in schema.required.items()}
        line |= {key: value(rng, kind, key) for key, kind in schema.optional.items() if rng.random() < 0.4}
        if rng.random() < 0.05:
            key = rng.choice(list(COMMON))
            line[key] = rng.choice((*NUMBERS, *TEXTS))
        text = json.dumps(line)
        if rng.random() < 0.03:
            text = rng.choice(
                (
                    text[: rng.randrange(len(text))],
                    text.replace("1", "NaN", 1),
                    text + ",",
                    "[" * 2000,
                    "\x00",
                    '{"a":' * 500,
                )
            )
        lines.append(text)
    suffix, data = packed(rng, ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"), ".journal.jsonl")
    return HostileInput("journal", ".journal.jsonl.gz" if suffix.endswith(".gz") else ".journal.jsonl", data)


# ---------------------------------------------------------------------- YAML

SCALARS: tuple[str, ...] = (
    "0",
    "1",
    "-1",
    "4294967296",
    "1e999",
    ".nan",
    "0x12",
    "RC_SEND_ONLY",
    "RC_RDMA_WRITE_FIRST",
    "CM_REQ",
    "64 zeros",
    "3 from 9",
)
SCALARS += (
    "text:a",
    "hex:zz",
    "10.0.0.1",
    "fd00::1",
    "bad",
    "2026-99-99",
    "~",
    "true",
    '"\\e[2J"',
    '"\\u202E"',
    "!!int x",
    "*a",
    "&a 5",
)
SCALARS += (
    "$rkey + 8",
    "5 ms",
    "4 ms .. 2 ms",
    "99999999999999999999 s",
    "[]",
    "{}",
    "'it''s'",
    "!!binary x",
    "!!timestamp y",
    "0 - 1",
)


def scalar(rng: random.Random) -> str:
    return rng.choice(SCALARS)


def mapping(rng: random.Random, keys: tuple[str, ...], least: tuple[str, ...] = ()) -> str:
    chosen = dict.fromkeys((*least, *rng.sample(keys, rng.randrange(min(5, len(keys))))))
    return "{" + ", ".join(f"{key}: {scalar(rng)}" for key in chosen) + "}"


FIELDS: tuple[str, ...] = (
    "op",
    "psn",
    "dest_qpn",
    "src_qpn",
    "payload",
    "rkey",
    "remote_va",
    "dma_length",
    "syndrome",
    "msn",
    "immediate",
    "src",
    "dst",
    "dscp",
)
FIELDS += (
    "ecn",
    "ttl",
    "sport",
    "icrc",
    "cut",
    "qkey",
    "ackreq",
    "padcount",
    "count",
    "mtu",
    "wait_us",
    "step",
    "vlan",
    "local_qpn",
)


def packets_yaml(rng: random.Random) -> HostileInput:
    """A file for ``craft``."""
    lines = [
        f"{key}: {scalar(rng)}"
        for key in rng.sample(("src", "dst", "psn", "defaults", "mtu"), rng.randrange(3))
    ]
    lines.append("packets:")
    lines += [f"  - {mapping(rng, FIELDS, ('op',))}" for _ in range(rng.randrange(1, 5))]
    text = "\n".join(lines) + "\n"
    text = text.replace("op: 0", "op: RC_SEND_ONLY").replace("op: 1,", "op: RC_ACKNOWLEDGE,")
    return HostileInput("packets", ".yaml", spoiled(rng, text).encode("utf-8", "surrogatepass"))


STEPS: dict[str, tuple[str, ...]] = {
    "send": ("op", *FIELDS),
    "message": ("op", "length", "psn"),
    "expect": ("op", *FIELDS, "length"),
    "acked": ("psn", "msn"),
    "completion": ("wr_id", "status", "opcode", "byte_len", "imm"),
    "memory": ("region", "at", "is"),
    "counters": ("duplicate_request",),
    "post": (
        "op",
        "wr_id",
        "length",
        "at",
        "remote_va",
        "rkey",
        "imm",
        "inline",
        "signaled",
        "compare",
        "qpn",
        "flush_length",
    ),
    "recv": ("wr_id", "length", "at", "count", "region"),
    "modify": ("state", "timeout", "sq_psn", "rq_psn", "path_mtu", "dest_qpn"),
    "fill": ("at", "bytes", "region"),
    "bind": ("region", "at", "length", "access"),
    "deregister": ("region",),
}
LIKELY: dict[str, tuple[str, ...]] = {
    "op": (
        "RC_SEND_ONLY",
        "RC_RDMA_WRITE_ONLY",
        "RC_RDMA_READ_REQUEST",
        "RC_ACKNOWLEDGE",
        "SEND",
        "RDMA_WRITE",
        "RDMA_READ",
    )
}
LIKELY |= {
    "state": ("RTS", "ERR", "SQD"),
    "region": ("main", "other"),
    "access": ("REMOTE_READ",),
    "syndrome": ("ACK", "RNR 3", "NAK PSN"),
}


def drill(rng: random.Random) -> HostileInput:
    """A drill: steps with right names and strange values."""
    lines = ["claim: It is so.", "clause: IBA 9.7"]
    if rng.random() < 0.3:
        lines.append(
            "device: "
            + mapping(
                rng,
                (
                    "transport",
                    "state",
                    "path_mtu",
                    "rq_psn",
                    "sq_psn",
                    "timeout",
                    "retry_cnt",
                    "srq",
                    "qkey",
                    "tclass",
                ),
            )
        )
    lines.append("steps:")
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice((*STEPS, "nothing", "ignore", "state"))
        if kind in STEPS:
            keys = dict.fromkeys(rng.sample(STEPS[kind], rng.randrange(1, min(5, len(STEPS[kind]) + 1))))
            if "op" in STEPS[kind]:
                keys = {"op": None} | keys
            usual = {
                k: rng.choice(LIKELY[k])
                if k in LIKELY and rng.random() < 0.9
                else rng.choice(("0", "1", "64", scalar(rng)))
                for k in keys
            }
            lines.append(f"  - {kind}: {{" + ", ".join(f"{k}: {v}" for k, v in usual.items()) + "}")
        else:
            lines.append(f"  - {kind}: {rng.choice(('5 ms', 'RTS', scalar(rng)))}")
    return HostileInput(
        "drill", ".yaml", spoiled(rng, "\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    )


def spoiled(rng: random.Random, text: str) -> str:
    if rng.random() < 0.9:
        return text
    at = rng.randrange(len(text))
    return (
        text[:at]
        + rng.choice(("\x00", "\t", "\x1b", ": ", "- ", "{", "*b", "\ufffe", "\ud800", "<<: *a", "\n\n"))
        + text[at:]
    )


# ---------------------------------------------------------------------- expressions

OPERATORS = (
    "==",
    "!=",
    "<",
    ">=",
    "in",
    "not in",
    "and",
    "or",
    "+",
    "-",
    "*",
    "//",
    "%",
    "&",
    "|",
    "<<",
    ">>",
    "&&",
    "||",
    "eq",
    "is",
    "**",
    "~",
)


def expression(rng: random.Random) -> HostileInput:
    """A filter of packets."""

    def operand(depth: int) -> str:
        if depth > 0 and rng.random() < 0.4:
            return f"({operand(depth - 1)} {rng.choice(OPERATORS)} {operand(depth - 1)})"
        kind = rng.randrange(6)
        if kind < 2:
            return rng.choice(list(COLUMNS))
        if kind == 2:
            return rng.choice((*HAS, "RC_SEND_ONLY", "SEND", "good", "ip.src", "infiniband.bth.psn", "valid"))
        if kind == 3:
            return str(rng.choice(NUMBERS))
        if kind == 4:
            return rng.choice(
                (
                    "10.0.0.1",
                    "10.0.0.0/8",
                    "fd00::/64",
                    "'x'",
                    "(1, 2)",
                    "()",
                    "not psn",
                    "-psn",
                    "f(1)",
                    "psn[0]",
                    "1.5",
                    "10.0.0.1/99",
                )
            )
        return rng.choice(("opcode", "src", "dst", "psn", "truncated", "malformed", "remote_va"))

    parts = [operand(2)]
    for _ in range(rng.randrange(3)):
        parts += [rng.choice(OPERATORS), operand(2)]
    return HostileInput("expression", ".txt", " ".join(parts).encode())


MAKERS: dict[str, tuple[Callable[[random.Random], HostileInput], ...]] = {
    "capture": (capture_pcap, capture_pcapng),
    "journal": (journal,),
    "packets": (packets_yaml,),
    "drill": (drill,),
    "expression": (expression,),
}


def hostile_input(kind: str, seed: int) -> HostileInput:
    """The input of a kind that this seed makes."""
    rng = random.Random(f"{kind} {seed}")
    return rng.choice(MAKERS[kind])(rng)
