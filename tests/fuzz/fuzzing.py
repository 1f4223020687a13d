"""Hostile inputs to every reading command for so many minutes; `scripts/fuzz` runs this.

Most inputs go to the parsers of their kind alone, some to one command, so that many are tried. What fails is
made smaller and kept in tests/fuzz/corpus, whose files tests/fuzz/test_corpus.py runs through all commands.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]

from capture_bytes import pcap  # noqa: E402
from hostile_inputs import MAKERS, HostileInput, hostile_input  # noqa: E402
from reading_commands import COMMANDS, check_input  # noqa: E402

CORPUS = HERE / "corpus"
#: Of so many inputs of a kind one is given to a command; the others to parsers alone.
COMMAND_EVERY = {"capture": 4, "journal": 100, "packets": 50, "drill": 400, "expression": 1}
#: How often each kind comes: a cheap input more often.
SHARES = {"capture": 4, "journal": 16, "packets": 8, "drill": 12, "expression": 24}
SMALLER_S = 30
GARBAGE_EVERY = 200
"""A command keeps what it made until its process ends; here many commands share a process."""


def good_capture(folder: Path) -> Path:
    """A conversation without faults, for journals to go with."""
    from talk import Talk

    talk = Talk(a="10.0.0.1", b="10.0.0.2")
    for psn in range(0, 12, 3):
        talk.send(psn, 3, operation="RDMA_WRITE" if psn % 2 else "SEND")
        talk.packet("RC_ACKNOWLEDGE", psn + 2, by="b", syndrome=0x1F, msn=psn // 3 + 1)
    path = folder / "good.pcap"
    path.write_bytes(pcap(talk.frames))
    return path


def wrong_with(given: HostileInput, lines: tuple[str, ...], folder: Path, good: Path) -> str:
    """What is wrong with how an input is taken; empty: nothing."""
    try:
        check_input(given, lines, folder, good)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # panics of polars are no Exception
        return f"{type(error).__name__}: {error}"
    return ""


def sign_of(said: str) -> str:
    """What tells a failure from another one: of a defect, not which command met it."""
    return said[max(0, said.find("a defect of rocekit")) :][:120]


def smaller(given: HostileInput, lines: tuple[str, ...], folder: Path, good: Path, said: str) -> HostileInput:
    """A shorter input with the same fault, as far as some seconds allow."""
    sign, until, data = said.split(":")[0:2], time.monotonic() + SMALLER_S, given.data
    step = len(data) // 2
    while step >= 1 and time.monotonic() < until:
        at = 0
        while at < len(data) and time.monotonic() < until:
            shorter = HostileInput(given.kind, given.suffix, data[:at] + data[at + step :])
            if wrong_with(shorter, lines, folder, good).split(":")[0:2] == sign:
                data = shorter.data
            else:
                at += step
        step //= 2
    return HostileInput(given.kind, given.suffix, data)


def keep(given: HostileInput, corpus: Path) -> Path:
    """The file of an input that failed."""
    digest = hashlib.sha256(given.data).hexdigest()[:10]
    path = corpus / f"{given.kind}-{digest}{given.suffix}"
    path.write_bytes(given.data)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--seed", type=int, default=None, help="the first seed; one after the other is used")
    parser.add_argument("--inputs", type=int, default=None, help="end after so many, if the minutes allow it")
    parser.add_argument("--kinds", default=",".join(MAKERS), help="kinds of inputs, with commas")
    parser.add_argument("--commands-only", action="store_true", help="give every input to a command")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="the folder for what fails")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    seed = int.from_bytes(os.urandom(4), "little") if options.seed is None else options.seed
    print(f"seeds from {seed}", flush=True)
    until, counts, commands = time.monotonic() + options.minutes * 60, Counter[str](), Counter[str]()
    failures: dict[str, str] = {}
    order = [kind for kind in kinds for _ in range(SHARES[kind])]
    turns = {kind: itertools.cycle(COMMANDS[kind]) for kind in kinds if COMMANDS[kind]}
    said_at = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = good_capture(folder)
        for number in itertools.count(seed):
            if time.monotonic() >= until or sum(counts.values()) == options.inputs:
                break
            kind = order[number % len(order)]
            given = hostile_input(kind, number)
            lines: tuple[str, ...] = ()
            counts[kind] += 1
            if kind in turns and (options.commands_only or counts[kind] % COMMAND_EVERY[kind] == 0):
                lines = (next(turns[kind]),)
                commands[lines[0]] += 1
            if sum(counts.values()) % GARBAGE_EVERY == 0:
                gc.unfreeze()
                gc.collect()
            # A sanitizer ends the process at once: the input is here then.
            (folder / "last").write_bytes(given.data)
            said = wrong_with(given, lines, folder, good)
            if said:
                sign = sign_of(said)
                if sign not in failures:
                    failures[sign] = str(number)
                    print(f"\nFAILED {kind} {number} {lines}: {said[:600]}", flush=True)
                    print(
                        f"kept as {keep(smaller(given, lines, folder, good, said), options.corpus)}",
                        flush=True,
                    )
            if time.monotonic() - said_at > 60:
                said_at = time.monotonic()
                print(f"{sum(counts.values()):,} inputs, {len(failures)} failures", flush=True)
    print("\ninputs by kind:", dict(counts))
    least = min(commands.values(), default=0)
    print(f"runs of commands: {sum(commands.values()):,}, each at least {least} times")
    print(f"{sum(counts.values()):,} inputs, {len(failures)} different failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
