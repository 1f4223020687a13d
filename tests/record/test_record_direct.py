"""The claim about lines that are made straight from a record's bytes: they are those of the long way."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from rocekit.record import ring
from rocekit.record.lines import direct_lines
from rocekit.record.lines.journal_lines import JournalLines
from rocekit.record.lines.line_maker import TIME_BITS
from rocekit.record.lines.native import native
from rocekit.record.process import Process
from rocekit.record.ring import records

AH, OTHER_AH = 0x5500, 0x5600
"""Address handles that are known: of the second, the local address is not."""
KINDS = {ring.SEND: 100, ring.RECV: 400, ring.WC: 400}
"""How many of each kind are to go the short way."""


def lines_of(maker: JournalLines, raw: bytes) -> list[str]:
    (record,) = records(raw)
    return list(maker.of(record))


def maker() -> JournalLines:
    """A process with a QP of each kind, 1 to 6; of the even ones the first PSN is known."""
    process = Process('a "host"', 7, devices={0: "rxe0"})
    process.handles |= {AH: ("10.9.0.1", "10.9.0.2"), OTHER_AH: (None, "fd00:9::2")}
    made = JournalLines(process)
    for number in range(1, 7):
        body = ring.QP_BODY.pack((2, 4, 3)[number % 3], 1, 1, 1, 1, 0, 0, number > 3, 0, 0, 1)
        raw = ring.HEADER.pack(ring.QP_CREATED, 2, 0, 0, number, 1, 1) + body[:32] + bytes(16) + body[32:]
        lines_of(made, raw.ljust(128, b"\0"))
        process.qps[0, number].sq_psn = 0xFFFFF0 if number % 2 == 0 else None
    return made


def header(dice: random.Random, kind: int, slots: int) -> bytes:
    times = [dice.choice((5, 10**18 + dice.randrange(10**9), (1 << TIME_BITS) - 1)) for _ in range(2)]
    return ring.HEADER.pack(kind, slots, 0, dice.choice((0, 0, 3)), dice.randint(1, 7), *times)


def completion(dice: random.Random) -> bytes:
    status, opcode = dice.choice((0, 0, 0, 5)), dice.choice((0, 1, 2, 3, 4, 7, 128, 128, 129, 200))
    flags, source = dice.choice((0, 0, 2, 8, 1)), dice.choice((0, 9))
    body = ring.WC_BODY.pack(dice.randrange(1 << 64), 64, 0xABC, 0x88, source, flags, status, opcode)
    return (header(dice, ring.WC, 1) + body).ljust(64, b"\0")


def send(dice: random.Random) -> bytes:
    special = dice.choice((0, 0, ring.SEND_UD, ring.SEND_ATOMIC, ring.SEND_UD | ring.SEND_ATOMIC))
    opcode, items = dice.randrange(10), dice.choice((1, 1, 1, 2, 0)) + bool(special)
    length, flags = dice.choice((8, 8, 9)), special | dice.choice((0, 2, 2, 8, 10, 34, 1, 4))
    numbers = (dice.randrange(1 << 64), 0x7000, 0xABD, 0x123, length)
    body = ring.SEND_BODY.pack(*numbers, opcode, flags, items, dice.choice((0, 0, 0, 12)))
    before = dice.choice((0, 3, 0x20, ring.NO_PSN, ring.OVERLAPPED))
    first = ring.SGE.pack(dice.choice((0x1000, AH, OTHER_AH)), dice.choice((8, 8, 8, 0x77)), 5)
    more = before.to_bytes(8, "little") + first + ring.SGE.pack(0x2000, dice.choice((8, 8, 8, 1)), 6)
    return (header(dice, ring.SEND, 2) + body + bytes(8) + more).ljust(128, b"\0")


def receive(dice: random.Random) -> bytes:
    items, error, cut = dice.choice((1, 1, 1, 0, 2)), dice.choice((0, 0, 0, 12)), dice.choice((0, 0, 0, 1))
    body = ring.RECV_BODY.pack(dice.randrange(1 << 64), dice.choice((0, 0, 3)), items, error, cut)
    slots = 2 if items == 2 else 1
    raw = header(dice, ring.RECV, slots) + body + ring.SGE.pack(0x3000, 64, 7)
    return (raw + bytes(16) * (slots - 1) + ring.SGE.pack(0x4000, 1, 8) * (slots - 1)).ljust(
        64 * slots, b"\0"
    )


@pytest.fixture(params=["C", "Python"])
def language(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lines are made in C, as far as it makes them, or all in Python."""
    if request.param == "Python":
        monkeypatch.setattr(direct_lines, "line_in_c", None)
    elif direct_lines.line_in_c is None:
        pytest.skip(
            "the lines of records are not compiled here (pip install -e . does it, with a C compiler)"
        )
    return str(request.param)


def test_what_is_made_directly_is_what_is_made_the_long_way(language: str) -> None:
    dice = random.Random(22)
    short, long = maker(), maker()
    direct = dict.fromkeys(KINDS, 0)
    said = set()
    for _ in range(8000):
        raw = dice.choice((completion, send, receive))(dice)
        line = short.direct(raw)
        if line is not None:
            direct[raw[8]] += 1
            said |= json.loads(line).keys()
        assert ([line] if line is not None else lines_of(short, raw)) == lines_of(long, raw)
    assert all(direct[kind] > least for kind, least in KINDS.items()), direct
    assert said >= {"imm", "src_qpn", "dest_qpn", "dest_ip", "compare", "swap_add", "rkey", "psn", "inline"}
    assert {key: (qp.last_post_ns, qp.sq_psn) for key, qp in short.process.qps.items()} == {
        key: (qp.last_post_ns, qp.sq_psn) for key, qp in long.process.qps.items()
    }


def test_most_of_it_is_made_in_c(language: str) -> None:
    if direct_lines.line_in_c is None:
        return
    dice, made = random.Random(22), maker()
    found = dict.fromkeys(KINDS, 0)
    for _ in range(8000):
        raw = dice.choice((completion, send, receive))(dice)
        line = direct_lines.line_in_c(raw, made.process.qps, made._tail, made.process.handles)
        found[raw[8]] += line is not None
    assert all(found[kind] > least / 2 for kind, least in KINDS.items()), found


def test_c_and_python_make_the_same_of_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may overwrite its records by mistake: each byte of them may be any."""
    if direct_lines.line_in_c is None:
        pytest.skip("the lines of records are not compiled here")
    in_c, dice = direct_lines.line_in_c, random.Random(5)
    both, alone = maker(), maker()
    made = 0
    for _ in range(6000):
        raw = bytearray(dice.choice((completion, send, receive))(dice))
        for _ in range(dice.randrange(4)):
            raw[dice.randrange(len(raw))] = dice.choice((0, 1, 2, 3, 128, 255, dice.randrange(256)))
        if dice.random() < 0.1:
            raw = raw[: dice.randrange(9, len(raw))]
        line = in_c(bytes(raw), both.process.qps, both._tail, both.process.handles)
        monkeypatch.setattr(direct_lines, "line_in_c", None)
        if line is not None:
            made += 1
            assert line == alone.direct(bytes(raw))
        monkeypatch.setattr(direct_lines, "line_in_c", in_c)
    assert made > 1000
    wrong: tuple[Any, ...]
    for wrong in ((), (b"", {}, ""), (1, {}, "", {}), (b"", [], "", {}), (b"", {}, 1, {}), (b"", {}, "", ())):
        with pytest.raises(TypeError):
            in_c(*wrong)


def test_c_and_python_tell_the_same_records_apart() -> None:
    found, dice = native(), random.Random(7)
    if found is None:
        pytest.skip("what is done for each record is not compiled here")
    for _ in range(400):
        raw = bytearray(dice.randbytes(dice.randrange(700)))
        raw[9::64] = bytes(dice.choice((0, 1, 1, 2, 3, 255)) for _ in raw[9::64])
        assert found.tagged(bytes(raw), 5, "x") == ring.tagged(bytes(raw), 5, "x")


def test_c_stops_where_python_is_to_look() -> None:
    """At what is not alike, at what came after the time that is known, and at calls that did not return."""
    found, dice = native(), random.Random(11)
    if found is None:
        pytest.skip("what is done for each record is not compiled here")
    one, other = maker(), maker()
    raws = [dice.choice((completion, send, receive))(dice) for _ in range(600)]
    waiting, _ = ring.tagged(b"".join(raws), 0, one)
    until, stopped = 10**18 + 5 * 10**8, 0
    for k in range(0, len(waiting), 7):
        waiting[k] = (*waiting[k][:4], False)
    at, lines = 0, []
    while at < len(waiting):
        out: list[str] = []
        after, *counts = found.run(waiting, at, until, 16, out)
        assert sum(counts) == len(out) == after - at <= 16
        lines += out
        if after < len(waiting) and after < at + 16:
            stopped += 1
            after += 1
        at = after
    expected = [
        line
        for mono, _, raw, _, finished in waiting
        if mono <= until and finished and (line := _in_c(other, raw)) is not None
    ]
    assert lines == expected
    assert len(lines) > 50
    assert stopped > 50


def _in_c(made: JournalLines, raw: bytes) -> str | None:
    assert direct_lines.line_in_c is not None
    return direct_lines.line_in_c(raw, made.process.qps, made._tail, made.process.handles)


def test_names_that_c_cannot_write_are_left_to_python(language: str) -> None:
    """What JSON makes of a name is ASCII; a process may have a name that is too long for a line in C."""
    made = maker()
    dice = random.Random(3)
    raw = next(raw for _ in range(1000) if made.direct(raw := completion(dice)) is not None)
    for tail in (made._tail + "x" * 5000, made._tail + "µ"):
        made._tail = tail
        line = made.direct(raw)
        assert line is not None
        assert tail in line


def test_a_redacted_record_goes_the_long_way() -> None:
    from rocekit.journal.redaction import Redaction

    made = maker()
    made._redact = Redaction()
    dice = random.Random(1)
    assert all(made.direct(dice.choice((completion, send, receive))(dice)) is None for _ in range(200))


def test_an_address_handle_that_python_is_to_look_up_is_not_for_c() -> None:
    """One of the parent process, and one whose local address is not the QP's yet, which a line says."""
    if direct_lines.line_in_c is None:
        pytest.skip("the lines of records are not compiled here")
    made, parent = maker(), maker()
    made.process.parent = parent.process
    del made.process.handles[OTHER_AH]
    raws = [raw for raw in _datagrams() if _in_c(parent, raw) is not None]
    assert {raw[32 + 32 + 16 :][:2] for raw in raws} == {OTHER_AH.to_bytes(2, "little")}
    assert all(_in_c(made, raw) is None for raw in raws)
    for raw in raws:
        (line,) = lines_of(parent, raw)
        assert made.direct(raw) == line
        assert '"dest_ip":"fd00:9::2"' in line
    for qp in made.process.qps.values():
        qp.local_ip = "10.9.0.1"
    assert any(_in_c(made, raw) is not None for raw in _datagrams()), "the address is the QP's now"


def _datagrams() -> list[bytes]:
    """Sends on an address handle that is known."""
    dice = random.Random(17)
    known = {handle.to_bytes(8, "little") for handle in (AH, OTHER_AH)}
    found = [send(dice) for _ in range(3000)]
    return [raw for raw in found if raw[61] & 0xE0 == ring.SEND_UD and raw[80:88] in known]


def device(number: int, name: bytes, *, thread: int = 0, kind: int = ring.DEVICE) -> bytes:
    head = ring.HEADER.pack(kind, 2, number, thread, 0, 10**18 + number, 10**18)
    name = name.ljust(64, b"\0")
    return (head + name[:32] + bytes(16) + name[32:]).ljust(128, b"\0")


@pytest.mark.parametrize("name", [b"rxe0", b"a" * 31, b"a" * 32, b"a" * 63, b'"\xff', b""])
def test_a_device_that_is_opened_again_has_the_same_line(name: bytes) -> None:
    process, other = Process("h", 7), Process("h", 7)
    asked: list[str] = []

    def gids(name: str) -> list[str]:
        asked.append(name)
        return ["10.9.0.1"]

    made, long_way = JournalLines(process, gids=gids), JournalLines(other, gids=gids)
    assert made.direct(device(0, name)) is None, "its addresses are asked for first"
    lines_of(made, device(0, name))
    lines_of(made, device(1, b"rxe1"))
    for number, thread in ((0, 0), (1, 3), (0, 1)):
        body = ring.QP_BODY.pack(2, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1)
        created = ring.HEADER.pack(ring.QP_CREATED, 2, number, 0, 9, 1, 1) + body[:32] + bytes(16) + body[32:]
        for maker_ in (made, long_way):
            lines_of(maker_, created.ljust(128, b"\0"))
        again = device(number, name, thread=thread)
        line = made.direct(again)
        assert (line is None) == (len(name) > 31)
        assert [line or lines_of(made, again)[0]] == lines_of(long_way, again)
        assert process.devices[number] == other.devices[number]
        assert set(process.qps) == set(other.qps)
    assert made.direct(device(2, name, kind=ring.DEVICE_FOUND)) is None


def test_a_device_whose_addresses_were_not_known_goes_the_long_way_again() -> None:
    made = JournalLines(Process("h", 7), gids=lambda _name: None)
    lines_of(made, device(0, b"rxe0"))
    assert made.direct(device(0, b"rxe0")) is None


@pytest.mark.parametrize(
    "value",
    [0, -1, 1 << 63, True, False, "", 'a "µ"\n\0', "\ud800", [], ["a", "µ"], {}, {"a": [1, None, True]}, 1.5],
)
def test_a_line_has_each_value_as_json_has_it(value: Any) -> None:
    made = JournalLines(Process("h", 7))
    record = ring.Record(ring.ASYNC, 0, 0, 0, 1, 2, b"")
    given = {"first": value, "left": None, "last": value}
    text = json.dumps({"first": value, "last": value}, separators=(",", ":"))
    assert made.event(record, "e", **given).endswith(f',"event":"e",{text[1:]}')
    assert made.event(record, "e", left=None).endswith(',"event":"e"}')
