"""The work spread over a Dask cluster: one task a stream, and one task a pair of captures.

Tasks are submitted a few for each worker, so that ten thousand captures take the scheduler no more memory
than a hundred do.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocekit.errors import RocekitError, needs_extra
from rocekit.fleet.grow import grow_stream
from rocekit.fleet.work import Added, StreamId, add_stream

if TYPE_CHECKING:
    from rocekit.fleet.lake import Lake
    from rocekit.fleet.stream_tables import LakeSettings
    from rocekit.fleet.streams import Stream

#: Tasks given to the scheduler for each worker.
_AHEAD: Final = 3
#: Workers come and go: how often the scheduler is asked for them.
_ASK_S: Final = 1.0
#: How long a scheduler may take to answer.
ANSWER_S = 20
#: A task whose worker died so often is not tried again: the capture is probably what kills it.
ALLOWED_DEATHS: Final = 3


@dataclass(slots=True)
class FleetProgress:
    """How far a run is.

    Attributes:
        total: streams; done: of these; new: analysed now; unreadable: rows with an error.
        failed: streams without a row, each with the reason.
        troubles: what could not be read or failed, a line each, in the order in which it came.
        packets, bytes: of the captures analysed now.
    """

    total: int
    workers: int = 0
    what: str = "capture"
    done: int = 0
    new: int = 0
    unreadable: int = 0
    replaced: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    packets: int = 0
    bytes: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self.began, 1e-9)

    @property
    def left_s(self) -> float | None:
        """An estimate of the time that is left; None before anything is done.

        What was there took no time. It comes first where a run goes on, and says nothing of the rest.
        """
        slow = self.new or self.done
        return self.seconds / slow * (self.total - self.done) if slow else None

    def words(self) -> str:
        """``12 of 1,000 captures, 1.2 M packets/s, 2 workers, 1 unreadable, about 3 min left``."""
        from rocekit.wire.words import plural

        parts = [f"{self.done:,} of {plural(self.total, self.what)}"]
        if self.packets:
            parts.append(f"{self.packets / self.seconds:,.0f} packets/s")
        parts.append(plural(self.workers, "worker") if self.workers else "waiting for a worker")
        if self.unreadable:
            parts.append(f"{self.unreadable:,} unreadable")
        if self.failed:
            parts.append(f"{len(self.failed):,} failed")
        left = self.left_s
        if left is not None and self.done < self.total:
            parts.append(f"about {left:,.0f} s left" if left < 120 else f"about {left / 60:,.0f} min left")
        return ", ".join(parts)


@contextmanager
def cluster(scheduler: str | None, workers: int | None, memory: str) -> Iterator[Any]:
    """A client of the scheduler's cluster, or of one on this machine that ends with the block.

    Args:
        workers: processes on this machine; None: one for each processor.
        memory: bytes of each of them ("4GiB"), above which Dask stops the worker; "auto": a share of the
            machine's.

    Raises:
        RocekitError: Dask is not installed, or the scheduler does not answer.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError:
        raise needs_extra("fleet needs", "dask", "fleet") from None
    quiet = {
        "distributed.scheduler.allowed-failures": ALLOWED_DEATHS,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.profile.enabled": False,  # it looks at every worker a hundred times a second
        "distributed.logging.distributed": "critical",
        "distributed.nanny.pre-spawn-environ.POLARS_MAX_THREADS": 1,
        "distributed.nanny.pre-spawn-environ.OPENBLAS_NUM_THREADS": 1,
    }
    with dask.config.set(quiet):
        if scheduler is not None:
            try:
                client = Client(scheduler, timeout=ANSWER_S)
            except (OSError, ValueError, TimeoutError) as error:
                words = str(error) or type(error).__name__
                raise RocekitError(f"{scheduler}: the scheduler does not answer: {words}") from None
            with client:
                yield client
            return
        with _own_cluster(LocalCluster, workers, memory) as own, _ends_with_us(Client(own)) as client:
            yield client


@contextmanager
def _own_cluster(make: Any, workers: int | None, memory: str) -> Iterator[Any]:
    """Workers on this machine. Ctrl-C of a terminal is for this process: they end with it."""
    import logging

    from distributed.utils import LoopRunner

    runner = LoopRunner()
    _start_tracker()
    # Threads, and processes that they start, have the mask of the thread that starts them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        runner.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    own = make(
        n_workers=workers or os.cpu_count() or 1,
        threads_per_worker=1,
        processes=True,
        memory_limit=memory,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        silence_logs=logging.CRITICAL,
        loop=runner.loop,
    )
    with _ends_with_us(own):
        yield own
    runner.stop()


@contextmanager
def _ends_with_us(one: Any) -> Iterator[Any]:
    """Close a cluster or client, unless a signal ends this process.

    To close them takes seconds. Workers end by themselves where the process that started them is gone, and
    what they were writing is taken away by the next run.
    """
    try:
        yield one
    except BaseException as error:
        if isinstance(error, Exception):
            one.close()
        raise
    one.close()


def _start_tracker() -> None:
    """Start the process that looks after semaphores, which would unblock signals where it is started.

    It warns of those that a process left that was ended by a signal, and removes them.
    """
    from multiprocessing import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def add_streams(
    client: Any,
    lake: Lake,
    streams: Sequence[Stream],
    settings: LakeSettings,
    tell: Callable[[FleetProgress], None] = lambda progress: None,
    growing: Growth | None = None,
) -> FleetProgress:
    """Add streams to a LAKE.

    Args:
        growing: of the streams, rotations that grow; it is told who keeps their analysis.

    Raises:
        RocekitError: the LAKE cannot be written.
    """
    progress = FleetProgress(len(streams))
    waiting: deque[tuple[Stream, StreamId | None]] = deque((stream, None) for stream in streams)
    split: dict[Stream, _Split] = {}

    def submit(item: tuple[Stream, StreamId | None]) -> Any:
        folder, stream = str(lake.folder.resolve()), item[0]
        if growing is None or stream not in growing.streams:
            return client.submit(add_stream, folder, stream, settings, item[1], pure=False)
        keeper = growing.keepers.get((stream.point, stream.key))
        where = {} if keeper is None else {"workers": [keeper], "allow_other_workers": True}
        return client.submit(grow_stream, folder, stream, settings, pure=False, **where)

    for (stream, _), outcome in in_turn(client, waiting, submit, progress, tell):
        if isinstance(outcome, BaseException):
            progress.failed.append((stream.name, reason(outcome)))
            progress.troubles.append(f"failed: {stream.name}: {reason(outcome)}")
        elif outcome.parts:
            split[stream] = _Split(outcome.captures, len(outcome.parts))
            waiting.extendleft(reversed(outcome.parts))
            progress.total += len(outcome.parts) - 1
            continue
        else:
            _note(outcome, lake, progress)
            if outcome.keeper is not None and growing is not None:
                growing.keepers[stream.point, stream.key] = outcome.keeper
            whole = split.get(stream._replace(part=None))
            if whole is None:
                progress.replaced += lake.forget_others(stream, outcome.captures)
            else:
                whole.left -= 1
                if not whole.left:
                    progress.replaced += lake.forget_others(stream, whole.captures)
        progress.done += 1
        tell(progress)
    return progress


@dataclass(slots=True)
class Growth:
    """Rotations that grow.

    Attributes:
        streams: those that have grown now.
        keepers: by point and key, the worker that keeps the analysis.
    """

    streams: Collection[Stream] = ()
    keepers: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(slots=True)
class _Split:
    """A capture in parts: the ids of all parts, and how many are still to be added."""

    captures: frozenset[str]
    left: int


def _note(done: Added, lake: Lake, progress: FleetProgress) -> None:
    if done.full is not None:
        raise RocekitError(
            f"{lake.folder}: cannot be written: {done.full}; complete captures stay, run it again"
        )
    progress.new += done.new
    progress.packets += done.packets
    progress.bytes += done.bytes if done.new else 0
    if done.error is not None:
        progress.unreadable += 1
        progress.troubles.append(f"unreadable: {done.error}")


def in_turn(
    client: Any,
    waiting: deque[Any],
    submit: Callable[[Any], Any],
    progress: FleetProgress,
    tell: Callable[[FleetProgress], None],
) -> Iterator[tuple[Any, Any]]:
    """Each item with its task's result or exception, as they end; a few are at the scheduler at a time.

    Items are taken from ``waiting``, to which the caller may add while this goes on. Progress is told before
    the first one ends, too: there may be no worker yet.
    """
    from distributed import as_completed

    running: dict[Any, Any] = {}
    ended = as_completed()
    asked = 0.0

    def count_workers() -> None:
        progress.workers = len(client.scheduler_info(n_workers=-1)["workers"])

    def fill() -> None:
        nonlocal asked
        if (now := time.monotonic()) - asked >= _ASK_S or not running:
            asked = now
            count_workers()
        while len(running) < _AHEAD * max(progress.workers, 1):
            if not waiting:
                return
            item = waiting.popleft()
            future = submit(item)
            running[future.key] = item
            ended.add(future)

    fill()
    if not running:
        return
    tell(progress)
    for future in ended:
        item = running.pop(future.key)
        if not progress.workers:  # there was none yet when the item was submitted
            count_workers()
        outcome = future.exception() if future.status == "error" else future.result()
        future.release()
        yield item, outcome
        fill()


def reason(error: BaseException) -> str:
    """Why a task came to no result, in words."""
    if type(error).__name__ == "KilledWorker":
        return f"its workers died {ALLOWED_DEATHS + 1} times, probably of memory: give more with --memory"
    return " ".join(f"{type(error).__name__}: {error}".split())
