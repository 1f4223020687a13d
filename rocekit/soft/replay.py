"""One run again from its seed: ``python -m rocekit.soft.replay SEED [--fault drop=5%]… [--transports RC]
[--out DIR]``.

Writes the capture and the journal, prints what was sent and why, and what ``rocekit analyze`` says otherwise.
A failing property test prints this command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rocekit.soft.fault_file import fault_from_words
from rocekit.soft.faults import Fault
from rocekit.soft.program import random_faults, random_program
from rocekit.soft.testbed import Run, run

#: What an analysis says of a transfer that the record knows too.
COMPARED = (
    *("operation", "immediate", "invalidate_rkey", "bytes", "packets", "first_psn", "last_psn", "remote_va"),
    *("rkey", "first_ns", "acked_ns", "status", "retransmitted_packets", "naks", "rnr_naks", "timeouts"),
)


def random_run(
    seed: int,
    folder: Path,
    *,
    faults: Iterable[Fault] | None = None,
    transports: tuple[str, ...] = ("RC",),
    journal: bool = True,
) -> tuple[Run, Path]:
    """The run of a seed, and its capture in ``folder``; ``faults`` in place of those drawn from the seed."""
    capture = folder / f"{seed}.pcapng"
    result = run(
        random_program(seed, transports=transports),
        random_faults(seed) if faults is None else faults,
        seed,
        capture=capture,
        journal=folder / f"{seed}.journal.jsonl" if journal else None,
    )
    return result, capture


def differences(
    truth: Iterable[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
    keys: Iterable[str] = COMPARED,
) -> list[str]:
    """Where an analysis' transfers differ from the record's, in words."""
    wanted = {_key(t): t for t in truth}
    got = {_key(t): t for t in found}
    out = [f"{_words(t)} is missing" for k, t in wanted.items() if k not in got]
    out += [f"{_words(t)} was never sent" for k, t in got.items() if k not in wanted]
    for k in wanted.keys() & got.keys():
        for key in keys:
            if key in _SIZES and _size_unseen(got[k]):
                continue
            if wanted[k][key] != got[k][key]:
                out.append(f"{_words(wanted[k])}: {key} is {wanted[k][key]}, not {got[k][key]}")
    return sorted(out)


_SIZES = frozenset({"packets", "last_psn"})


def _size_unseen(transfer: Mapping[str, Any]) -> bool:
    """Whether this is a READ that nobody answered: how many PSNs it takes, only the path MTU would tell."""
    unanswered = transfer["operation"] == "READ" and transfer["status"] != "acked"
    return unanswered and transfer["last_psn"] == transfer["first_psn"]


def _key(transfer: Mapping[str, Any]) -> tuple[Any, ...]:
    requester = transfer["requester"]
    return requester["ip"], requester["qpn"], transfer["first_psn"], transfer["first_ns"]


def _words(transfer: Mapping[str, Any]) -> str:
    requester = transfer["requester"]
    return (
        f"{transfer['operation']} of {requester['ip']} QP {requester['qpn']} at PSN {transfer['first_psn']}"
    )


def _show(result: Run) -> None:
    for truth in result.transfers():
        request = truth.request
        print(
            f"{request.requester.ip} QP {request.requester.qpn:#x}  {request.operation} "
            f"{request.bytes} bytes, "
            f"PSN {request.first_psn}–{request.last_psn}, {truth.status}, "
            f"WR {request.wr_id} {request.wc_status}"
        )
        for sent in request.requests:
            if sent.round:
                print(f"    {sent.time_ns}  PSN {sent.psn} again, round {sent.round}: {sent.cause}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m rocekit.soft.replay", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--fault", action="append", help="qpn=1,psn=4,type=drop or drop=2%%; default: the seed's"
    )
    parser.add_argument("--transports", default="RC", help="RC, UC, UD, with commas")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    faults = None if given.fault is None else [fault_from_words(words) for words in given.fault]
    result, capture = random_run(
        given.seed, given.out, faults=faults, transports=tuple(given.transports.split(","))
    )
    _show(result)
    for problem in result.check_data():
        print(f"wrong: {problem}")
    from rocekit.analysis import analyze

    for difference in differences(result.transfer_dicts(), analyze(capture).transfers.to_dicts()):
        print(f"analysis: {difference}")
    print(f"{capture}: {result.packets} packets, faults {result.faults_done}")


if __name__ == "__main__":
    main()
