"""How long a fleet's analysis would take with more workers, from the tasks of a run with one.

The model, whose terms all come from Dask's task stream of that run:

- A task takes as long as it took there: storage and memory are not shared by more workers.
- Tasks go in the same order to whichever worker is free; three for each worker are under way.
- Each result takes the client and the scheduler some processor time, one result after the other.
- What lies before, between and after the tasks (start, matching of witnesses, judgement) takes as long.
"""

from __future__ import annotations

import heapq
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from psutil import NoSuchProcess, Process  # type: ignore[import-untyped]

from rocekit.fleet.run import cluster

#: As rocekit.fleet.run gives each worker.
AHEAD: Final = 3
_SAMPLE_S: Final = 0.1


class Task(NamedTuple):
    """A task of the stream: what it did, and when, in seconds of the epoch."""

    kind: str
    start: float
    stop: float


class Phase(NamedTuple):
    """Tasks of a kind, how long each took, and what each of them costs in turn."""

    kind: str
    start: float
    stop: float
    durations: tuple[float, ...]
    in_turn_s: float

    def makespan(self, workers: int) -> float:
        """How long the tasks would take on so many workers."""
        free = [0.0] * workers
        ready = [0.0] * min(AHEAD * workers, len(self.durations))
        results: list[float] = []
        handed = end = 0.0
        for number, duration in enumerate(self.durations):
            if number >= len(ready):
                # The client takes the first result that is there, and submits the next task.
                handed = max(handed, heapq.heappop(results)) + self.in_turn_s
                ready.append(handed)
            began = max(heapq.heappop(free), ready[number])
            end = max(end, began + duration)
            heapq.heappush(free, began + duration)
            heapq.heappush(results, began + duration)
        while results:
            handed = max(handed, heapq.heappop(results)) + self.in_turn_s
        return max(end, handed)


@dataclass
class Run:
    """A run with one worker: when it began and ended, and its tasks."""

    began: float
    ended: float
    phases: list[Phase]

    @property
    def alone_s(self) -> float:
        """What lies outside of the phases."""
        return self.ended - self.began - sum(phase.stop - phase.start for phase in self.phases)

    def predict(self, workers: int) -> float:
        return self.alone_s + sum(phase.makespan(workers) for phase in self.phases)

    def words(self) -> str:
        terms = [
            f"{len(p.durations):,} {p.kind} of {sum(p.durations) / len(p.durations) * 1e3:.1f} ms "
            f"(longest {max(p.durations):.2f} s), {p.in_turn_s * 1e3:.2f} ms in turn for each"
            for p in self.phases
        ]
        return f"{'; '.join(terms)}; {self.alone_s:.1f} s outside of them"


@dataclass
class Watch:
    """The processor time of processes, sampled while they run."""

    pids: Sequence[int]
    samples: list[tuple[float, float]] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        processes = [Process(pid) for pid in self.pids]
        while not self._stop.wait(_SAMPLE_S):
            try:
                used = sum(sum(process.cpu_times()[:2]) for process in processes)
            except NoSuchProcess:
                return
            self.samples.append((time.time(), used))

    def used(self, start: float, stop: float) -> float:
        """Processor time between two times."""
        within = [cpu for at, cpu in self.samples if start <= at <= stop]
        return within[-1] - within[0] if len(within) > 1 else 0.0


def phases(stream: Sequence[Mapping[str, Any]], watch: Watch) -> list[Phase]:
    """The phases of a task stream: streams are added before conversations."""
    kinds: dict[str, list[Task]] = {}
    for entry in stream:
        kind = str(entry["key"]).rpartition("-")[0].partition("-")[0]
        times = [(s["start"], s["stop"]) for s in entry["startstops"] if s["action"] == "compute"]
        kinds.setdefault(kind, []).append(Task(kind, times[0][0], times[-1][1]))
    found = []
    for kind, tasks in kinds.items():
        tasks.sort(key=lambda task: task.start)
        start, stop = tasks[0].start, max(task.stop for task in tasks)
        # On one worker the rest of the time between two tasks is the worker's own.
        ends = [*(task.start for task in tasks[1:]), stop]
        whole = tuple(end - task.start for task, end in zip(tasks, ends, strict=True))
        found.append(Phase(kind, start, stop, whole, watch.used(start, stop) / len(tasks)))
    return sorted(found, key=lambda phase: phase.start)


def run_on_one_worker(command: Sequence[str]) -> tuple[str, Run]:
    """What `rocekit fleet analyze` says with a cluster of one worker, whose scheduler is in this process."""
    began = time.time()
    with cluster(None, 1, "auto") as client:
        client.get_task_stream()
        address = client.scheduler_info()["address"]
        own = subprocess.Popen(
            [*command, "--scheduler", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with own, Watch([own.pid, os.getpid()]) as watch:
            said = own.communicate()[0]
        if own.returncode:
            raise SystemExit(f"rocekit fleet ended with status {own.returncode}")
        found = phases(client.get_task_stream(), watch)
    return said, Run(began, time.time(), found)
