"""Both sides of a scenario on this machine, the server in a process of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rocekit.endpoint.waiting import CM_WAYS, CQ_WAYS, WaitWays
from rocekit.errors import JournalError, RocekitError, ScenarioError
from rocekit.files.outputs import Together
from rocekit.journal import merge, read_journal
from rocekit.journal.writing import whole_journal
from rocekit.scenarios.client_server import (
    ENDED_EARLY,
    MakeEndpoint,
    Outcome,
    Settings,
    call,
    make_endpoint,
    scenario_named,
    serve,
)
from rocekit.scenarios.scenario import Plan
from rocekit.scenarios.tcp_exchange import EXCHANGES, WAYS, TcpOutcome, exchange

_GRACE_S = 5.0
#: The least ACK timeout code (1.07 s) of a comparison: nothing is lost in it, but a busy machine may stop the
#: peer's process for longer than the usual timeout and its retries last.
_PATIENT = 18


def both(plan: Plan, server: Settings, client: Settings, *, make: MakeEndpoint = make_endpoint) -> Outcome:
    """Server and client on this machine, the server in a process of its own.

    When both name the same journal, it gets the events of both.

    Raises:
        RocekitError: what went wrong on either side.
    """
    scenario_named(plan.scenario).check(plan)
    shared = client.journal if isinstance(client.journal, Path) and client.journal == server.journal else None
    theirs_in = None if shared is None else _nameless(f"{shared}.server")
    before = None if shared is None else _inode(shared)
    if theirs_in is not None:
        server = replace(server, journal=theirs_in)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_apart, args=(plan.scenario, server, theirs, make))
    process.start()
    theirs.close()
    try:
        said = _hear(ours, process, client.timeout_s)
        try:
            outcome = call(said["ip"], plan, client, make=make)
        except RocekitError as error:
            # The server may know the cause: it saw the same end from the other side.
            raise _better(error, ours) from None
        return replace(outcome, server_usage=_hear(ours, process, client.timeout_s)["usage"])
    except JournalError:
        shared = None  # what was there before stays
        raise
    finally:
        process.join(_GRACE_S)
        if process.is_alive():
            process.terminate()
            process.join(_GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
        if shared is not None and theirs_in is not None:
            _join_journals(shared, theirs_in, written=_inode(shared) != before)


def compare(
    plan: Plan, server: Settings, client: Settings, *, make: MakeEndpoint = make_endpoint
) -> list[Outcome]:
    """A ping-pong with each of the nine ways of waiting, the same on both sides.

    Raises:
        RocekitError: what went wrong in one of them, or the scenario measures no round trip.
    """
    outcomes = []
    for cm in CM_WAYS:
        for cq in CQ_WAYS:
            sides = [
                replace(
                    side,
                    endpoint=replace(side.endpoint, ways=WaitWays(cm, cq)),
                    qp=replace(side.qp, timeout=side.qp.timeout and max(side.qp.timeout, _PATIENT)),
                )
                for side in (server, client)
            ]
            outcome = both(plan, *sides, make=make)
            if outcome.samples is None or outcome.samples.kind != "latency":
                raise ScenarioError(f"{plan.scenario} measures no round trip to compare")
            outcomes.append(outcome)
    return outcomes


def beside_tcp(
    plan: Plan, server: Settings, client: Settings, *, make: MakeEndpoint = make_endpoint
) -> tuple[list[Outcome], list[TcpOutcome]]:
    """A scenario, and the same exchange over TCP between the same addresses; busy polling, then blocking.

    Raises:
        RocekitError: what went wrong in one of them, or the scenario has no such exchange.
    """
    if plan.scenario not in EXCHANGES or plan.qps != 1:
        raise ScenarioError(f"--beside tcp is for {', '.join(EXCHANGES)} on one QP")
    outcomes = []
    for cq in ("poll", "channel"):
        sides = [
            replace(side, endpoint=replace(side.endpoint, ways=replace(side.endpoint.ways, cq=cq)))
            for side in (server, client)
        ]
        outcomes.append(both(plan, *sides, make=make))
    ends = outcomes[0].peer_ip or outcomes[0].ip, outcomes[0].ip
    return outcomes, [exchange(plan, *ends, way, client.timeout_s) for way in WAYS]


def _serve_apart(
    name: str, settings: Settings, pipe: multiprocessing.connection.Connection, make: MakeEndpoint
) -> None:
    # Ctrl-C reaches both processes; the parent tells this one to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with terminated_cleanly():
        try:
            outcome = serve(name, settings, ready=lambda ip: pipe.send({"ip": ip}), make=make)
            pipe.send({"usage": outcome.usage})
        except RocekitError as error:
            pipe.send({"error": str(error)})
        except BrokenPipeError:
            pass


def _hear(
    pipe: multiprocessing.connection.Connection,
    process: multiprocessing.process.BaseProcess,
    timeout_s: float,
) -> dict[str, Any]:
    if not pipe.poll(timeout_s + _GRACE_S):
        raise ScenarioError("the server's process sent no message")
    try:
        said: dict[str, Any] = pipe.recv()
    except EOFError:
        process.join(_GRACE_S)
        raise ScenarioError(f"the server's process ended with status {process.exitcode}") from None
    if "error" in said:
        raise ScenarioError(f"server: {said['error']}")
    return said


def _better(error: RocekitError, pipe: multiprocessing.connection.Connection) -> RocekitError:
    with contextlib.suppress(EOFError, OSError):
        if pipe.poll(_GRACE_S):
            said = pipe.recv()
            ended = ("disconnected", ENDED_EARLY)  # only the effect of the client's error
            if "error" in said and not any(words in said["error"] for words in ended):
                return ScenarioError(f"server: {said['error']}")
    return error


def _nameless(name: str) -> IO[str]:
    """A file that is in no folder and ends with the processes that have it open; errors call it ``name``."""
    with tempfile.TemporaryFile() as file:
        return open(name, "w+", encoding="utf-8", opener=lambda _name, _flags: os.dup(file.fileno()))


def _inode(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def _join_journals(journal: Path, other: IO[str], *, written: bool) -> None:
    """Put the events of both files into the first, by time, and close the second.

    Args:
        written: whether the first is of this run; else it was there before, and is replaced.
    """
    found = []
    for path in (*([journal] if written else []), Path(f"/proc/self/fd/{other.fileno()}")):
        with contextlib.suppress(RocekitError):
            found.append(read_journal(path))
    whole = merge(found)
    with Together() as together, whole_journal(together, journal) as writer:
        for event in whole:
            writer.write_event(event)
    other.close()


@contextlib.contextmanager
def terminated_cleanly() -> Iterator[None]:
    """Let SIGTERM end the program as an exception does: all is taken down, and journals are complete."""

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
