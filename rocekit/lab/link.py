"""The starter's side of the control channel: passes on what the command prints and waits for its end."""

from __future__ import annotations

import json
import os
import selectors
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, BinaryIO

from rocekit.lab.net import LabError

HAND_OVER_S = 120.0
"""How long each file of the output folder may take to come back, after the command has ended."""
UP_LIMIT_S = 120.0
"""How long modules, wire and devices may take after the agent's first message."""
SETTLE_S = 15.0
"""The time that the agent has after the command's limit to end it and to report."""


class DiedError(LabError):
    """The lab's process is gone, without a message."""


class NoHelloError(DiedError):
    """The agent sent no message at all: with KVM, a reason to try without."""


@dataclass
class Session:
    """The messages of a lab's agent so far. Times are seconds of the monotonic clock."""

    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)
    hello_at: float | None = None
    up_at: float | None = None
    ended_at: float | None = None
    handed_at: float | None = None
    """When the last file of the output folder was said to be there."""


def follow(
    *,
    control: int,
    streams: tuple[int, int],
    sinks: tuple[BinaryIO, BinaryIO],
    alive: Callable[[], bool],
    hello_limit_s: float,
    up_limit_s: float,
    timeout_s: float,
) -> Session:
    """Serve one agent from its first message to its last.

    Args:
        control: the control channel, read and written.
        streams: where the command's standard output and standard error arrive.
        sinks: where they go.
        alive: whether the process at the other end of the channels still runs.
        hello_limit_s: how long the agent's first message may take.
        up_limit_s: how long the devices may take after it.
        timeout_s: the command's own limit, which the agent enforces; here it only limits the wait.

    Raises:
        LabError: the set-up failed, or a limit passed without the message that was due.
    """
    session = Session()
    start = session.started_at
    selector = selectors.DefaultSelector()
    for number, descriptor in enumerate((control, *streams)):
        os.set_blocking(descriptor, False)
        selector.register(descriptor, selectors.EVENT_READ, number)
    counts = [0, 0]
    pending = b""
    interrupts = _Interrupts(control)
    with selector, interrupts.caught():
        while True:
            now = time.monotonic()
            ended = session.said.get("ended")
            if "bye" in session.said and ended is not None:
                # The last bytes of the streams may come after the last message.
                missing = [n for n, want in zip(counts, ended["streams"], strict=True) if n < want]
                if not missing or now > (session.ended_at or now) + SETTLE_S:
                    return session
            _check_limits(session, now, start, hello_limit_s, up_limit_s, timeout_s)
            events = selector.select(0.2)
            for key, _ in events:
                try:
                    data = os.read(key.fd, 65536)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(key.fd)
                elif key.data:
                    counts[key.data - 1] += len(data)
                    sinks[key.data - 1].write(data)
                    sinks[key.data - 1].flush()
                else:
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        _heard(session, json.loads(line))
            if "failed" in session.said:
                raise LabError(str(session.said["failed"]["message"]))
            if not events and not alive():
                raise _died(session)


def _heard(session: Session, message: dict[str, Any]) -> None:
    word = str(message.get("say"))
    session.said[word] = message
    now = time.monotonic()
    if word == "hello":
        session.hello_at = now
    elif word == "up":
        session.up_at = now
    elif word == "ended":
        session.ended_at = now
    elif word == "handing over":
        session.handed_at = now


def _check_limits(
    session: Session, now: float, start: float, hello_limit_s: float, up_limit_s: float, timeout_s: float
) -> None:
    if session.ended_at is not None:
        if now > (session.handed_at or session.ended_at) + HAND_OVER_S:
            raise LabError(f"nothing of the output folder came back for {HAND_OVER_S:.0f} s")
    elif session.up_at is not None:
        if now > session.up_at + timeout_s + SETTLE_S:
            raise LabError(
                f"the lab did not end its command within the limit of {timeout_s:g} s; it was killed"
            )
    elif session.hello_at is not None:
        if now > session.hello_at + up_limit_s:
            raise LabError(f"the two rxe devices were not there within {up_limit_s:g} s; the lab was killed")
    elif now > start + hello_limit_s:
        raise NoHelloError(f"the lab did not start within {hello_limit_s:g} s; it was killed")


def _died(session: Session) -> LabError:
    if session.ended_at is not None:
        return DiedError("the lab died after the command ended: the output folder may be incomplete")
    if session.up_at is not None:
        return DiedError("the lab died while the command ran: a kernel panic, or too little memory")
    if session.hello_at is not None:
        return DiedError("the lab died before its devices were there")
    return NoHelloError("the lab ended before it had started")


class _Interrupts:
    """Passes Ctrl-C on to the command, which may sum up; a second one, SIGTERM and SIGHUP end the lab."""

    def __init__(self, control: int) -> None:
        self._control = control
        self._seen = 0

    @contextmanager
    def caught(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGINT, self._interrupted),
                (signal.SIGTERM, _ended),
                (signal.SIGHUP, _ended),
            )
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._seen += 1
        if self._seen > 1:
            raise KeyboardInterrupt
        try:
            os.write(self._control, b'{"do": "interrupt"}\n')
        except OSError as error:
            raise KeyboardInterrupt from error


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def end_group(leader: int, reap: Callable[[float], bool]) -> None:
    """End a process group that this process started: SIGTERM, two seconds, SIGKILL.

    Args:
        leader: the process id of its leader, which is the group's id.
        reap: waits for the leader for so many seconds and says whether it is gone.
    """
    for number, seconds in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0)):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            break
        except PermissionError:
            pass
        if reap(seconds) and not _group_exists(leader):
            break
    reap(1.0)


def _group_exists(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
