"""Repeat a run from its seed, and compare an analysis of it with the truth.

``python -m rocekit.soft.testbed.replay SEED [--fault drop=5%]… [--transports RC] [--out DIR]``

It writes the capture and the journal, and prints what was sent again and why, and where ``rocekit analyze``
differs. A failing property test prints this command.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rocekit.soft.engine.record import TransferRecord
from rocekit.soft.testbed.check import check_run
from rocekit.soft.testbed.program import random_faults, random_program
from rocekit.soft.testbed.result import ProgramRun
from rocekit.soft.testbed.runner import run
from rocekit.soft.wires.fault_file import fault_from_words
from rocekit.soft.wires.faults import Fault
from rocekit.track.transfers import Transfer
from rocekit.wire.psn import MASK

#: The keys of a transfer in an analysis that the record knows too.
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
) -> tuple[ProgramRun, Path]:
    """The run of a seed, and its capture in ``folder``; ``faults`` replace those drawn from the seed."""
    capture = folder / f"{seed}.pcapng"
    result = run(
        random_program(seed, transports=transports),
        random_faults(seed) if faults is None else faults,
        seed,
        capture=capture,
        journal=folder / f"{seed}.journal.jsonl" if journal else None,
    )
    return result, capture


class RecordComparison(NamedTuple):
    """An analysis compared with the record.

    Attributes:
        differences: in words.
        sure, doubtful: go-backs with one possible cause in the analysis, and with two.
    """

    differences: list[str]
    sure: int
    doubtful: int


def compare(
    result: ProgramRun, transfers: Iterable[Transfer], *, timers_known: bool = True
) -> RecordComparison:
    """Compare an analysis with the record: all transfers, and why each of their packets was sent again.

    If the analysis names two possible causes, the recorded one must be among them. Without a journal,
    ``timers_known`` is False. Then an analysis cannot know timeouts, the number of response packets of a READ
    without response, and the QPN of a requester to which nothing was sent; over IPv6, where packets have no
    identification, it cannot distinguish a packet sent again from one duplicated by the network.
    """
    transfers = list(transfers)
    keys = [key for key in COMPARED if key != "timeouts"]
    unsized = () if timers_known else _SIZES
    found = [t.to_dict() for t in transfers]
    if not timers_known:
        _fill_in_requesters(result, found)
        _count_duplicates_as_repeats(result, transfers, found)
    out = differences(result.transfer_dicts(), found, keys, unsized=unsized)
    sure = doubtful = 0
    if timers_known:
        records = {_record_key(t.request): t.request for t in result.transfers()}
        for transfer in transfers:
            record = records.get((*transfer.requester.values(), transfer.first_psn & MASK, transfer.first_ns))
            if record is not None:
                out += _cause_differences(record, transfer)
        opened = [e for t in transfers for e in t.events if e.kind == "repeat" and e.opens]
        doubtful = sum(e.doubt is not None for e in opened)
        sure = len(opened) - doubtful
    return RecordComparison(out, sure, doubtful)


def _fill_in_requesters(result: ProgramRun, found: list[dict[str, Any]]) -> None:
    """Fill in the QPNs of requesters to which nothing was sent: no packet contains them."""
    recorder = result.recorder
    addressed = {remote for _, _, remote in recorder.cnps}
    addressed |= {b for (_, b), flows in recorder.requests.items() if any(f.transfers for f in flows)}
    addressed |= {b for (_, b), flows in recorder.replies.items() if any(f.replies for f in flows)}
    requests = [t.request for t in result.transfers() if t.request.requester not in addressed]
    unnamed = {(r.requester.ip, r.first_psn & MASK, r.requests[0].time_ns): r.requester for r in requests}
    for transfer in found:
        key = transfer["requester"]["ip"], transfer["first_psn"], transfer["first_ns"]
        if transfer["requester"]["qpn"] is None and key in unnamed:
            transfer["requester"] = unnamed[key]._asdict()


def _count_duplicates_as_repeats(
    result: ProgramRun, transfers: Iterable[Transfer], found: Iterable[dict[str, Any]]
) -> None:
    """Count packets without identification that the analysis took for duplicates as the record does."""
    truth = {_key(t): t["retransmitted_packets"] for t in result.transfer_dicts()}
    for transfer, entry in zip(transfers, found, strict=True):
        repeats = truth.get(_key(entry), 0)
        least = transfer.retransmitted_packets
        if ":" in entry["requester"]["ip"] and least < repeats <= least + transfer.duplicates:
            entry["retransmitted_packets"] = repeats


def _record_key(record: TransferRecord) -> tuple[Any, ...]:
    return *record.requester, record.first_psn & MASK, record.requests[0].time_ns


def _cause_differences(record: TransferRecord, transfer: Transfer) -> list[str]:
    recorded = Counter(s.cause for s in record.requests if s.round)
    opened = record.timeouts
    words = f"{record.operation} of {record.requester.ip} QP {record.requester.qpn} at PSN {record.first_psn}"
    repeats = [e for e in transfer.events if e.kind == "repeat"]
    sure = Counter[str | None]()
    for event in repeats:
        if event.doubt is None:
            sure[event.cause] += event.count
    doubtful = [e for e in repeats if e.doubt is not None]
    for choice in product(*((e.cause, e.doubt) for e in doubtful)):
        said = sure.copy()
        for event, cause in zip(doubtful, choice, strict=True):
            said[cause] += event.count
        if said == recorded:
            break
    else:
        return [f"{words}: sent again {dict(recorded)}, not {dict(sure)} and {len(doubtful)} in doubt"]
    if not doubtful and opened != transfer.timeouts:
        return [f"{words}: timeouts is {opened}, not {transfer.timeouts}"]
    return []


def differences(
    truth: Iterable[Mapping[str, Any]],
    found: Iterable[Mapping[str, Any]],
    keys: Iterable[str] = COMPARED,
    *,
    unsized: Iterable[str] = (),
) -> list[str]:
    """The differences between the transfers of an analysis and those of the record, in words.

    Args:
        unsized: keys that are not compared for a READ without response.
    """
    wanted = {_key(t): t for t in truth}
    got = {_key(t): t for t in found}
    out = [f"{_words(t)} is missing" for k, t in wanted.items() if k not in got]
    out += [f"{_words(t)} was never sent" for k, t in got.items() if k not in wanted]
    for k in wanted.keys() & got.keys():
        for key in keys:
            if key in unsized and _size_unseen(got[k]):
                continue
            if wanted[k][key] != got[k][key]:
                out.append(f"{_words(wanted[k])}: {key} is {wanted[k][key]}, not {got[k][key]}")
    return sorted(out)


_SIZES = frozenset({"packets", "last_psn"})


def _size_unseen(transfer: Mapping[str, Any]) -> bool:
    """Whether this is a READ without response, whose number of PSNs depends on the unknown path MTU."""
    no_response = transfer["operation"] == "READ" and transfer["status"] != "acked"
    return no_response and transfer["last_psn"] == transfer["first_psn"]


def _key(transfer: Mapping[str, Any]) -> tuple[Any, ...]:
    requester = transfer["requester"]
    return requester["ip"], requester["qpn"], transfer["first_psn"], transfer["first_ns"]


def _words(transfer: Mapping[str, Any]) -> str:
    requester = transfer["requester"]
    return (
        f"{transfer['operation']} of {requester['ip']} QP {requester['qpn']} at PSN {transfer['first_psn']}"
    )


def _show(result: ProgramRun) -> None:
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
    parser = argparse.ArgumentParser(prog="python -m rocekit.soft.testbed.replay", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--fault", action="append", help="qpn=1,psn=4,type=drop or drop=2%%; default: the seed's"
    )
    parser.add_argument("--transports", default="RC", help="RC, UC, UD, with commas")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    faults = None if given.fault is None else [fault_from_words(words) for words in given.fault]
    given.out.mkdir(parents=True, exist_ok=True)
    result, capture = random_run(
        given.seed, given.out, faults=faults, transports=tuple(given.transports.split(","))
    )
    _show(result)
    for problem in check_run(result):
        print(f"wrong: {problem}")
    from rocekit.analysis import analyze

    for difference in compare(result, analyze(capture).transfers).differences:
        print(f"analysis: {difference}")
    print(f"{capture}: {result.packets} packets, faults {result.faults_done}")


if __name__ == "__main__":
    main()
