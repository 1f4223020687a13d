"""A journal is read as it was written; of a damaged one, the good lines are used."""

from __future__ import annotations

import gzip
import io
import json
import signal
import threading
from pathlib import Path

import pytest
from amount import examples
from hypothesis import given
from hypothesis import strategies as st

from rocekit.errors import JournalError
from rocekit.journal import Journal, JournalEvent, JournalWriter, merge, read_journal
from rocekit.journal.records import parse_event
from rocekit.journal.schema import CLOCK, COMMON, SCHEMA, check
from rocekit.machine.limits import JOURNAL_LINE_BYTES, choose_limit, usual_limits

QP = ("rxe0", 17)


def line(**changes: object) -> str:
    event = {
        "time_ns": 5,
        "clock": "realtime",
        "host": "a",
        "pid": 1,
        "event": "wc_polled",
        "qp": {"device": "rxe0", "qpn": 17},
        "wr_id": 3,
        "status": "SUCCESS",
    }
    return json.dumps({key: value for key, value in (event | changes).items() if value is not ...}) + "\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl"
    sges = [{"addr": 4096, "length": 65536, "lkey": 7}]
    with JournalWriter(path, host="a", pid=9) as writer:
        writer.write("qp_created", time_ns=1, qp=QP, transport="RC", max_send_wr=16, sq_sig_all=True)
        writer.write("wr_posted", time_ns=2, qp=QP, wr_id=1, opcode="SEND", length=65536, sges=sges, imm=None)
    journal = read_journal(path)
    assert journal.problems == []
    assert journal.events == [
        JournalEvent(1, "qp_created", "a", 9, QP, {"transport": "RC", "max_send_wr": 16, "sq_sig_all": True}),
        JournalEvent(
            2, "wr_posted", "a", 9, QP, {"wr_id": 1, "opcode": "SEND", "length": 65536, "sges": sges}
        ),
    ]


def test_every_line_is_a_json_object_with_the_agreed_head() -> None:
    out = io.StringIO()
    JournalWriter(out, host="a", pid=9).write("async_event", time_ns=1, qp=QP, type="QP_FATAL")
    assert json.loads(out.getvalue()) == {
        "time_ns": 1,
        "clock": "realtime",
        "host": "a",
        "pid": 9,
        "event": "async_event",
        "qp": {"device": "rxe0", "qpn": 17},
        "type": "QP_FATAL",
    }


@given(st.lists(st.tuples(st.integers(0, 2**62 - 1), st.integers(0, 2**64 - 1)), min_size=1))
def test_an_event_survives_the_round_trip_whatever_its_numbers(rows: list[tuple[int, int]]) -> None:
    out = io.StringIO()
    writer = JournalWriter(out, host="h", pid=0)
    for time_ns, wr_id in rows:
        writer.write("recv_posted", time_ns=time_ns, qp=QP, wr_id=wr_id)
    assert [json.loads(text)["wr_id"] for text in out.getvalue().splitlines()] == [wr_id for _, wr_id in rows]


def test_events_are_sorted_by_time_and_equal_times_keep_the_files_order(tmp_path: Path) -> None:
    text = (
        line(time_ns=9, wr_id=1)
        + line(time_ns=4, wr_id=2)
        + line(time_ns=9, wr_id=3)
        + line(time_ns=4, wr_id=4)
    )
    journal = read_journal(written(tmp_path / "j", text))
    assert [event["wr_id"] for event in journal] == [2, 4, 1, 3]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("{oops\n", "not JSON"),
        ("[1]\n", "expected a JSON object"),
        ("\xff\n", "not JSON"),
        (line(event="wc_seen"), "event 'wc_seen': expected one of mr_registered"),
        (line(event=...), "no event: expected one of"),
        (line(time_ns="5"), "time_ns of wc_polled: expected a whole number from 0"),
        (line(time_ns=5.0), "time_ns of wc_polled: expected a whole number from 0"),
        (line(pid=True), "pid of wc_polled: expected a whole number from 0"),
        (line(host=...), "wc_polled without host: expected a string"),
        (line(clock="boottime"), "clock of wc_polled: expected 'realtime'"),
        (line(qp={"device": "rxe0"}), "qp of wc_polled: expected"),
        (line(qp=...), "wc_polled without qp: expected"),
        (line(status=...), "wc_polled without status: expected a string"),
        (line(byte_len=-1), "byte_len of wc_polled: expected a whole number from 0"),
    ],
)
def test_a_bad_line_is_reported_and_the_others_are_used(tmp_path: Path, bad: str, expected: str) -> None:
    path = tmp_path / "j"
    path.write_bytes((line(wr_id=1) + bad + line(wr_id=2)).encode("latin-1"))
    journal = read_journal(path)
    assert [event["wr_id"] for event in journal] == [1, 2]
    (problem,) = journal.problems
    assert (problem.file, problem.line) == (str(path), 2)
    assert expected in problem.expected
    assert str(problem).startswith(f"{path}: line 2: ")


def test_a_last_line_cut_in_the_middle_is_a_problem_not_an_error(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path / "j", line() + line()[:40]))
    assert len(journal) == 1
    assert "cut off" in journal.problems[0].expected


def test_a_last_line_without_its_newline_is_used(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path / "j", line().rstrip()))
    assert len(journal) == 1
    assert journal.problems == []


def test_null_means_absent_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    journal = read_journal(written(tmp_path / "j", line(vendor_err=None, colour="red")))
    assert dict(journal.events[0].fields) == {"wr_id": 3, "status": "SUCCESS", "colour": "red"}


def test_gzip_is_read_and_of_an_incomplete_file_the_lines_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl.gz"
    with JournalWriter(path) as writer:
        for wr_id in range(3000):
            writer.write("recv_posted", qp=QP, wr_id=wr_id)
    assert len(read_journal(path)) == 3000
    with gzip.open(path) as unpacked:
        assert unpacked.readline().startswith(b'{"time_ns"')
    path.write_bytes(path.read_bytes()[:-200])
    journal = read_journal(path)
    assert 0 < len(journal) < 3000
    assert "cut off" in journal.problems[-1].expected


@pytest.mark.parametrize("text", ["", "\n\n", "no journal\n", line(event="x")])
def test_a_file_without_a_usable_line_is_an_error_that_contains_its_name(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "j", text)
    with pytest.raises(JournalError) as caught:
        read_journal(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="No such file"):
        read_journal(tmp_path / "none")
    with pytest.raises(JournalError, match="Is a directory"):
        read_journal(tmp_path)
    with pytest.raises(JournalError, match="cannot be written: No such file"):
        JournalWriter(tmp_path / "none" / "j")


def test_journals_of_two_hosts_become_one_sorted_by_time() -> None:
    def event(time_ns: int, host: str) -> JournalEvent:
        return JournalEvent(time_ns, "async_event", host, 1, None, {"type": "COMM_EST"})

    both = merge([Journal([event(1, "a"), event(5, "a")]), Journal([event(1, "b"), event(3, "b")])])
    assert [(e.time_ns, e.host) for e in both] == [(1, "a"), (1, "b"), (3, "b"), (5, "a")]


@pytest.mark.parametrize(
    ("event", "fields", "message"),
    [
        ("wr_sent", {}, "expected one of"),
        ("wc_polled", {"wr_id": 1, "status": "SUCCESS", "colour": "red"}, "wc_polled has no colour"),
        ("wc_polled", {"wr_id": 1}, "without status"),
        ("wc_polled", {"wr_id": "1", "status": "SUCCESS"}, "wr_id of wc_polled"),
        ("mr_registered", {"device": "d", "addr": 0, "length": 1, "lkey": 1, "rkey": 1}, "has no qp"),
    ],
)
def test_writing_what_the_schema_does_not_have_is_a_value_error(
    event: str, fields: dict[str, object], message: str
) -> None:
    out = io.StringIO()
    with pytest.raises(ValueError, match=message):
        JournalWriter(out).write(event, qp=QP, **fields)  # type: ignore[arg-type]
    assert out.getvalue() == ""


def test_threads_may_share_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with JournalWriter(path) as writer:

        def work(start: int) -> None:
            for wr_id in range(start, start + 500):
                writer.write("recv_posted", qp=QP, wr_id=wr_id)

        threads = [threading.Thread(target=work, args=(start,)) for start in (0, 500, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    journal = read_journal(path)
    assert journal.problems == []
    assert sorted(event["wr_id"] for event in journal) == list(range(1500))


def test_a_writer_that_was_interrupted_can_be_closed(tmp_path: Path) -> None:
    """Ctrl-C comes anywhere in a write. close() does not wait for ever for the lock."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for n in range(0, 2000, 2000 // examples(2000)):
            writer = JournalWriter(tmp_path / "interrupted.jsonl", host="a", pid=1)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + n * 1e-6)
                while True:
                    writer.write_lines(["{}"])
            except KeyboardInterrupt:  # as a with block does: the interrupted frames are still there
                closing = threading.Thread(target=writer.close, daemon=True)
                closing.start()
                closing.join(120)
                assert not closing.is_alive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_schema_has_the_agreed_events() -> None:
    assert set(SCHEMA) >= {
        *("mr_registered", "qp_created", "qp_modified", "wr_posted", "recv_posted", "wc_polled"),
        *("cm_event", "async_event"),
    }


@pytest.mark.parametrize(
    ("key", "largest"),
    [
        *(("dest_qpn", 2**24 - 1), ("sq_psn", 2**24 - 1), ("rq_psn", 2**24 - 1), ("qkey", 2**32 - 1)),
        *(("timeout", 31), ("min_rnr_timer", 31), ("retry_cnt", 255), ("path_mtu", 2**16 - 1)),
        *(("time_ns", 2**62 - 1), ("mono_ns", 2**62 - 1), ("pid", 2**32 - 1)),
    ],
)
def test_a_number_that_no_field_of_its_kind_can_have_is_damage(key: str, largest: int) -> None:
    qp = {"device": "rxe0", "qpn": 17}
    good = {"time_ns": 1, "host": "h", "pid": 1, "event": "qp_modified", "qp": qp, key: largest}
    assert parse_event(good)
    for wrong in (largest + 1, -1, 10**31):
        with pytest.raises(ValueError, match=f"^{key} of qp_modified: expected a whole number from 0"):
            parse_event(good | {key: wrong})


def test_every_number_of_a_journal_has_a_bound() -> None:
    for name, schema in SCHEMA.items():
        for key, kind in {**COMMON, **schema.required, **schema.optional}.items():
            assert not kind.accepts(10**31), f"{key} of {name}"


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_end_is_damage_and_costs_no_memory(tmp_path: Path, packed: bool) -> None:
    choose_limit(JOURNAL_LINE_BYTES, 1000)
    try:
        path = tmp_path / "x.journal.jsonl"
        good = b'{"time_ns": 1, "host": "h", "pid": 1, "event": "async_event", "type": "X"}\n'
        data = good + b"[" * 5000 + b"\n" + good + b" " * 100_000 + b"\n" + good
        path.write_bytes(gzip.compress(data) if packed else data)
        journal = read_journal(path)
        rest = "nothing more is read); --limit journal-line-bytes=N raises that"
        assert len(journal) == 2  # behind what is more than 16 lines long nothing is read
        assert [(p.line, p.expected) for p in journal.problems] == [
            (n, f"a line of more than 1,000 bytes (behind 16,000 {rest}") for n in (2, 4)
        ]
    finally:
        usual_limits()


#: What some kinds of value accept, and what others do not.
_VALUES: tuple[object, ...] = (
    0,
    -1,
    True,
    1 << 24,
    1 << 62,
    1 << 64,
    1.5,
    "00",
    "no hex",
    [],
    ["a"],
    {},
    {"a": 1},
)


@pytest.mark.parametrize("event", SCHEMA)
def test_an_event_fits_exactly_if_nothing_of_it_is_refused(event: str) -> None:
    """What is fast and what names the first key that is wrong say the same."""
    schema = SCHEMA[event]
    assert not COMMON.keys() & (schema.required.keys() | schema.optional.keys())
    values = (*_VALUES, {"device": "d", "qpn": 1}, [{"addr": 1, "length": 2, "lkey": 3}], CLOCK)
    kinds = {**COMMON, **schema.required, **schema.optional}
    whole = {key: next(value for value in values if kind.accepts(value)) for key, kind in kinds.items()}
    whole |= {"clock": CLOCK, "of a later version": 1}
    assert check({"event": event, **whole})[0] == event
    for key in whole:
        less = {name: value for name, value in whole.items() if name != key}
        for line in (less, *({**less, key: value} for value in values)):
            refused = ""
            try:
                check({"event": event, **line})
            except ValueError as error:
                refused = str(error)
            assert bool(refused) != schema.fits(line), (line, refused)
