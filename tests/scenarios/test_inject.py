"""The scenarios do what they say, check what they move, and tell how far they came.

They run here over an RDMA stack in memory; ``test_inject_lab.py`` runs the same over rxe.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from amount import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_endpoint import Fabric, MemoryConnection, MemoryEndpoint

from rocekit import inject
from rocekit.endpoint import LOCAL_WRITE, EndpointOptions, SendWr
from rocekit.errors import RocekitError, ScenarioError, VerbsError
from rocekit.inject import Outcome, Settings
from rocekit.journal import Journal, JournalWriter, merge, read_journal
from rocekit.scenarios import SCENARIOS
from rocekit.scenarios import both_sides as inject_both
from rocekit.scenarios.client_server import ENDED_EARLY
from rocekit.scenarios.measures import measures, percentile
from rocekit.scenarios.scenario import Pattern, Plan, Samples, pack_reply, unpack_reply
from rocekit.verbs.rdma_cm import ACCEPT_DATA_BYTES, CONNECT_DATA_BYTES

#: What the stack in memory can carry out; all scenarios run over soft devices in test_soft_backend.py.
IN_MEMORY = ("ping-sr", "blast-sr", "ping-write", "ping-read", "atomic")
SERVER, CLIENT, PORT = "127.0.0.1", "127.0.0.2", 18515


@dataclass
class Pair:
    """A server and a client of a scenario, in threads, over one fabric."""

    tmp: Path
    fabric: Fabric = field(default_factory=Fabric)
    serves: str | None = None
    """What the server runs, when it is not what the client asks for."""
    refuse: Callable[[SendWr], bool] = lambda wr: False
    timeout_s: float = 5.0
    client: Outcome | RocekitError | None = None
    server: Outcome | RocekitError | None = None
    endpoints: list[MemoryEndpoint] = field(default_factory=list)

    def run(self, plan: Plan) -> Pair:
        listening = threading.Event()
        base = Settings(port=PORT, timeout_s=self.timeout_s)

        def make(options: EndpointOptions, journal: JournalWriter | None) -> MemoryEndpoint:
            made = MemoryEndpoint(self.fabric, options.ip or "", journal, self.refuse)
            self.endpoints.append(made)
            return made

        def serve() -> None:
            ours = replace(base, endpoint=EndpointOptions(ip=SERVER), journal=self.tmp / "server")
            try:
                self.server = inject.serve(
                    self.serves or plan.scenario, ours, ready=lambda ip: listening.set(), make=make
                )
            except RocekitError as error:
                self.server = error

        thread = threading.Thread(target=serve)
        thread.start()
        assert listening.wait(120)
        try:
            ours = replace(base, endpoint=EndpointOptions(ip=CLIENT), journal=self.tmp / "client")
            self.client = inject.call(SERVER, plan, ours, make=make)
        except RocekitError as error:
            self.client = error
        finally:
            thread.join(120)
        assert not thread.is_alive()
        return self

    def journal(self) -> Journal:
        return merge([read_journal(self.tmp / "server"), read_journal(self.tmp / "client")])


def plans() -> Iterable[Plan]:
    for name in IN_MEMORY:
        for qps in (1, 3):
            yield Plan(name, 8 if name == "atomic" else 300, 40, qps=qps, window=8, receives=40)
    yield Plan("blast-sr", 100, 41, qps=2, window=8, receives=41, post_list=3, cq_mod=4)
    yield Plan("atomic", 8, 20, qps=3, atomic="CMP_AND_SWAP")


@pytest.mark.parametrize("plan", list(plans()), ids=str)
def test_a_scenario_runs_to_its_end_on_both_sides(tmp_path: Path, plan: Plan) -> None:
    pair = Pair(tmp_path).run(plan)
    assert isinstance(pair.client, Outcome), pair.client
    assert isinstance(pair.server, Outcome), pair.server
    # The server was told all that it needs to know.
    assert replace(pair.server.plan, post_list=plan.post_list, cq_mod=plan.cq_mod) == plan
    assert all(endpoint.closed for endpoint in pair.endpoints)


def requests(plan: Plan) -> dict[str, int]:
    """How many WRs of each opcode a scenario posts, by what its docstring says."""
    whole = plan.iterations * plan.qps
    return {
        "ping-sr": {"SEND": 2 * whole},
        "blast-sr": {"SEND": whole},
        "ping-write": {"RDMA_WRITE": 2 * whole},
        "ping-read": {"RDMA_READ": whole},
        "atomic": {"ATOMIC_FETCH_AND_ADD": whole},
    }[plan.scenario]


@pytest.mark.parametrize("name", IN_MEMORY)
def test_the_journal_has_every_request_and_its_completion(tmp_path: Path, name: str) -> None:
    plan = Plan(name, 8 if name == "atomic" else 64, 30, qps=2, window=8, receives=30, cq_mod=1)
    journal = Pair(tmp_path).run(plan).journal()
    assert journal.problems == []
    posted = journal.of("wr_posted")
    counts: dict[str, int] = {}
    for event in posted:
        counts[event["opcode"]] = counts.get(event["opcode"], 0) + 1
    assert counts == requests(plan)
    completed = {(event.qp, event["wr_id"]): event for event in journal.of("wc_polled")}
    assert len(completed) == len(journal.of("wc_polled"))
    for event in posted:
        completion = completed.pop((event.qp, event["wr_id"]))
        assert completion["status"] == "SUCCESS"
        assert completion.time_ns >= event.time_ns
    receives = {(event.qp, event["wr_id"]) for event in journal.of("recv_posted")}
    assert set(completed) <= receives
    assert len(completed) == counts.get("SEND", 0)


def test_of_a_stream_only_every_nth_completion_is_asked_for_and_the_last(tmp_path: Path) -> None:
    plan = Plan("blast-sr", 10, 10, window=8, receives=10, cq_mod=4)
    journal = Pair(tmp_path).run(plan).journal()
    assert [event["signaled"] for event in journal.of("wr_posted")] == [
        *(False, False, False, True),
        *(False, False, False, True),
        *(False, True),
    ]
    assert len([event for event in journal.of("wc_polled") if event["opcode"] == "SEND"]) == 3


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.integers(1, 30), st.integers(1, 2))
def test_no_choice_of_depth_list_and_signaling_stops_a_stream(
    window: int, post_list: int, cq_mod: int, iterations: int, qps: int
) -> None:
    plan = Plan(
        "blast-sr", 8, iterations, qps=qps, window=window, receives=30, post_list=post_list, cq_mod=cq_mod
    )
    with tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder)).run(plan)
        assert isinstance(pair.client, Outcome), pair.client
        posts: dict[object, int] = {}
        for event in read_journal(Path(folder) / "client").of("wr_posted"):
            posts[event.qp, event.time_ns] = posts.get((event.qp, event.time_ns), 0) + 1
        assert sum(posts.values()) == iterations * qps
        assert max(posts.values()) <= min(post_list, window)


def spoiling(which: int, byte: int) -> Callable[[int, bytes], bytes]:
    def spoil(n: int, data: bytes) -> bytes:
        if n != which:
            return data
        return data[:byte] + bytes([data[byte] ^ 0x10]) + data[byte + 1 :]

    return spoil


@pytest.mark.parametrize(
    ("name", "which", "side", "message"),
    [
        ("ping-sr", 4, "server", "message 2: byte 7 is"),  # messages 0, 2, 4 … are pings
        ("ping-sr", 5, "client", "message 2: byte 7 is"),
        ("blast-sr", 5, "server", "message 5: byte 7 is"),
        ("ping-write", 4, "server", "message 2: byte 7 is"),
        ("ping-read", 5, "client", "message 5: byte 7 is"),
    ],
)
def test_a_changed_byte_is_found_and_named(
    tmp_path: Path, name: str, which: int, side: str, message: str
) -> None:
    pair = Pair(tmp_path, Fabric(spoiling(which, 7)))
    pair.run(Plan(name, 64, 12, window=4, receives=12))
    error = getattr(pair, side)
    assert isinstance(error, ScenarioError)
    assert message in str(error)
    assert str(error).startswith(f"{name}, after ")
    assert all(endpoint.closed for endpoint in pair.endpoints)
    assert read_journal(tmp_path / side).of("wc_polled")  # written out, though the run failed


def test_an_atomic_that_is_not_atomic_is_found(tmp_path: Path) -> None:
    def stuck(n: int, data: bytes) -> bytes:
        return bytes(8) if n == 5 else data  # the value found is told as 0 a second time

    pair = Pair(tmp_path, Fabric(stuck)).run(Plan("atomic", 8, 10))
    assert isinstance(pair.client, ScenarioError)
    assert "a value twice" in str(pair.client)


def test_the_other_side_says_how_far_it_came_when_one_fails(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Fabric(spoiling(4, 0))).run(Plan("ping-sr", 64, 12))
    assert "ping-sr, after 2 of 12" in str(pair.client)
    assert "disconnected" in str(pair.client)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ("a receive was too short", "server: a receive was too short"),
        ("the peer disconnected", "RETRY_EXC_ERR"),
        (f"blast-write: message 3: byte 0 is 0x01; {ENDED_EARLY}", "RETRY_EXC_ERR"),
    ],
)
def test_of_both_sides_errors_the_cause_is_told(server: str, told: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        theirs.send({"error": server})
        assert told in str(inject_both._better(VerbsError("RETRY_EXC_ERR"), ours))


def test_a_server_of_another_scenario_turns_the_client_away(tmp_path: Path) -> None:
    pair = Pair(tmp_path, serves="ping-read").run(Plan("ping-sr", 64, 1))
    assert "this server does ping-read, not ping-sr" in str(pair.client)
    assert "this server does ping-read, not ping-sr" in str(pair.server)


def test_a_client_without_a_server_is_told(tmp_path: Path) -> None:
    ours = Settings(endpoint=EndpointOptions(ip=CLIENT))
    with pytest.raises(VerbsError, match="nobody listens"):
        inject.call(
            SERVER,
            Plan("ping-sr", 64, 1),
            ours,
            make=lambda options, journal: MemoryEndpoint(Fabric(), CLIENT, journal),
        )


def test_a_server_without_a_client_gives_up_in_time() -> None:
    ours = Settings(timeout_s=0.05)
    with pytest.raises(VerbsError, match="nobody asked to connect"):
        inject.serve("ping-sr", ours, make=lambda options, journal: MemoryEndpoint(Fabric(), SERVER, journal))


def test_a_refused_request_is_in_the_journal_with_its_errno_and_those_behind_it_are_not(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, refuse=lambda wr: wr.wr_id == 5)
    pair.run(Plan("blast-sr", 64, 12, window=12, receives=12, post_list=4))
    assert "refused WR 5 (SEND): EINVAL" in str(pair.client)
    posted = read_journal(tmp_path / "client").of("wr_posted")
    assert [(event["wr_id"], event.get("errno")) for event in posted] == [
        *((0, None), (1, None), (2, None), (3, None)),
        *((4, None), (5, 22)),
    ]


def test_the_server_keeps_no_more_receives_posted_than_it_was_told(tmp_path: Path) -> None:
    pair = Pair(tmp_path).run(Plan("blast-sr", 64, 40, window=4, receives=8))
    server = next(endpoint for endpoint in pair.endpoints if endpoint.ip == SERVER)
    (connection,) = server.connections.values()
    assert isinstance(connection, MemoryConnection)
    assert connection.most_posted == 8
    assert len(read_journal(tmp_path / "server").of("recv_posted")) == 40


def test_an_atomic_moves_eight_bytes_and_nothing_else() -> None:
    with pytest.raises(ScenarioError, match="8 bytes"):
        inject.call(SERVER, Plan("atomic", 64, 1), Settings())


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="no scenario 'pong'; there is ping-sr, ping-sr-0"):
        inject.serve("pong", Settings())


# What the sides tell each other

names = st.sampled_from(list(SCENARIOS))
counts = st.integers(1, 2**16 - 1)
any_plan = st.builds(
    Plan,
    scenario=names,
    size=st.integers(1, 2**32 - 1),
    iterations=st.integers(1, 2**32 - 1),
    qps=counts,
    window=counts,
    receives=counts,
    path_mtu=st.sampled_from([0, 256, 4096]),
    atomic=st.sampled_from(["FETCH_AND_ADD", "CMP_AND_SWAP"]),
)


@given(any_plan, st.integers(0, 2**16 - 1))
def test_a_plan_fits_into_a_request_s_private_data_and_is_read_back(plan: Plan, index: int) -> None:
    region = MemoryEndpoint(Fabric(), "").register(8, [LOCAL_WRITE])
    data = plan.pack(index, region)
    assert len(data) <= CONNECT_DATA_BYTES
    # The MAD carries private data with zeros behind it.
    told, place, peer = Plan.unpack(data.ljust(CONNECT_DATA_BYTES, b"\0"))
    assert (told, place) == (plan, index)
    assert (peer.addr, peer.rkey, peer.length) == (region.addr, region.rkey, 8)
    reply = pack_reply(region)
    assert len(reply) <= ACCEPT_DATA_BYTES
    assert unpack_reply(reply.ljust(ACCEPT_DATA_BYTES, b"\0")) == peer


@pytest.mark.parametrize(
    ("too_much", "said"),
    [
        ({"iterations": 2**32}, "-n is at most 4,294,967,295, not 4,294,967,296"),
        ({"qps": 2**16}, "-q is at most 65,535, not 65,536"),
        ({"window": 2**16}, "-t is at most 65,535, not 65,536"),
        ({"receives": 2**16}, "-r is at most 65,535, not 65,536"),
    ],
)
def test_what_cannot_be_told_is_refused_by_its_option(too_much: dict[str, int], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        Plan(**{"scenario": "ping-sr", "size": 8, "iterations": 1, **too_much})  # type: ignore[arg-type]


def test_memory_of_4_gib_is_told_as_much_as_fits() -> None:
    region = MemoryEndpoint(Fabric(), "").register(8, [LOCAL_WRITE])
    region.length = 2**32
    assert unpack_reply(pack_reply(region)).length == 2**32 - 1
    assert Plan.unpack(Plan("ping-write", 2**31, 1).pack(0, region))[2].length == 2**32 - 1


@given(st.binary(max_size=CONNECT_DATA_BYTES) | st.binary(max_size=52).map(lambda tail: b"rcki" + tail))
def test_private_data_of_anybody_is_a_plan_or_an_error_in_words(data: bytes) -> None:
    for read in (Plan.unpack, unpack_reply):
        try:
            read(data)
        except ScenarioError:
            pass


@given(st.integers(2, 5000), st.integers(0, 10_000))
def test_two_messages_in_a_row_differ(size: int, i: int) -> None:
    pattern = Pattern(size)
    assert len(pattern(i)) == size
    if size >= 8:
        assert pattern(i) != pattern(i + 1)


# What was measured


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_a_sample_that_so_many_do_not_exceed(times: list[int], percent: float) -> None:
    ordered = sorted(times)
    value = percentile(ordered, percent)
    assert value in ordered
    assert sum(time <= value for time in ordered) >= len(ordered) * percent / 100 - 1e-9


def test_perftest_s_numbers() -> None:
    told = measures(Samples("latency", (1000, 3000, 2000), 10_000, 6, 3))
    assert (told["t_min_us"], told["t_typical_us"], told["t_max_us"]) == (1.0, 2.0, 3.0)
    told = measures(Samples("bandwidth", (), 1_000_000_000, 125_000_000, 1_000_000))
    assert (told["bandwidth_gbps"], told["message_rate_mpps"]) == (1.0, 1.0)
