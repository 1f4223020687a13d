"""A redacted event of a journal can be read and has no address, key or path of the original."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rocekit import wire
from rocekit.edit.redact import Redactor
from rocekit.edit.redact_journal import redact_event
from rocekit.journal import JournalEvent
from rocekit.journal.schema import CODE, INT, SCHEMA, TIME, U8, U16, U24, U32, UINT

SECRET = b"for tests only, always the same."
OPCODES = [o for o in wire.OPCODES.values() if o.transport != "CNP"]


def redactor() -> Redactor:
    return Redactor(SECRET)


def _some(kind_words: str, key: str) -> Any:
    return {
        INT.words: -5,
        **dict.fromkeys((UINT.words, TIME.words), 0x7F11_2233_4455),
        **dict.fromkeys((U8.words, U16.words, U24.words, U32.words, CODE.words), 7),
        "true or false": True,
        "a string": "10.77.66.55" if key.endswith(("ip", "gid")) else "/home/alice/secret-10.77.66.55",
        "a string of hexadecimal bytes": "a1b2c3d4e5f60718",
        '{"device": string, "qpn": number}': {"device": "rxe0", "qpn": 17},
        '{"name of a counter": number}': {"10.77.66.55": 7, "/home/alice/secret": 7, "tc 8001: drops": 7},
        "a list of names": ["10.77.66.55", "/home/alice/secret"],
        'a list of {"addr", "length", "lkey"}': [
            {"addr": 0x7F11_2233_4455, "length": 64, "lkey": 0x5A5B5C5D}
        ],
    }[kind_words]


@pytest.mark.parametrize("name", list(SCHEMA))
def test_a_redacted_event_of_any_kind_can_be_read_and_tells_no_address_key_or_path(name: str) -> None:
    keys = {**SCHEMA[name].required, **SCHEMA[name].optional}
    fields = {key: _some(kind.words, key) for key, kind in keys.items() if key != "qp"}
    for key in ("lkey", "rkey", "old_rkey", "mr_rkey", "mr_lkey", "invalidate_rkey", "qkey", "imm"):
        if key in fields:
            fields[key] = 0x5A5B5C5D
    fields["unheard_of"] = "10.77.66.55"
    event = JournalEvent(1, name, "alices-laptop", 5, ("rxe0", 17) if "qp" in keys else None, fields)
    text = json.dumps(redact_event(event, redactor()).to_dict())
    for secret in ("alice", "10.77.66.55", "/home", "a1b2c3d4", str(0x5A5B5C5D)):
        assert secret not in text
    for key in ("addr", "host_addr", "remote_va", "cm_id", "listen_id", "wr_id", "compare", "swap_add"):
        assert f'"{key}": {0x7F11_2233_4455}' not in text
