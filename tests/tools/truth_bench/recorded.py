"""What the journals of two programs say, beside what an analysis makes of them (the truth bench).

Work requests of an RC QP become messages in the order in which they were posted, each with the PSNs behind
those of the one before (IBA Vol. 1, 9.7.2); completions come in that order, too (10.8.3), and so do those of
the peer's receives. All programs and captures of an experiment are of one machine: there is only one clock.
It shares no code with rocekit's journal.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rocekit.analysis import Analysis
from rocekit.journal.work_requests import WorkCompletion
from truth_bench.packets import PSN_MASK
from truth_bench.scene import RIGHT, SILENT, WRONG, Claim

_MTUS: Final = (256, 512, 1024, 2048, 4096)
#: Of one packet, whatever their length.
_ATOMICS: Final = ("CMP_SWAP", "FETCH_ADD", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
#: How much the captures' own times may be wrong: a packet is stamped some moments before or after it goes.
_STAMPS_NS: Final = 1_000_000

Line = dict[str, Any]


@dataclass(eq=False)
class Qp:
    """A QP of a program: its lines, in the order of the journal."""

    local_ip: str = ""
    remote: tuple[str, int] = ("", -1)
    sq_psn: int | None = None
    mtu: int | None = None
    transport: str = ""
    posted: list[Line] = field(default_factory=list)
    completed: list[Line] = field(default_factory=list)
    received: list[Line] = field(default_factory=list)

    def take(self, line: Line) -> None:
        event = line["event"]
        if event == "qp_created":
            self.transport = line.get("transport", "")
        elif event == "qp_modified":
            self.local_ip = line.get("local_ip") or self.local_ip
            self.sq_psn = line.get("sq_psn", self.sq_psn)
            self.mtu = line.get("path_mtu") or self.mtu
            self.remote = line.get("dest_ip") or self.remote[0], line.get("dest_qpn", self.remote[1])
        elif event == "wr_posted" and not line.get("errno"):
            self.posted.append(line)
        elif event == "wc_polled":
            is_receive = str(line.get("opcode", "")).startswith("RECV")
            (self.received if is_receive else self.completed).append(line)

    def by_psn(self) -> dict[int, int]:
        """Which work request has a PSN; empty where the journal does not say where the QP began."""
        if self.sq_psn is None or self.mtu not in _MTUS:
            return {}
        found, psn = {}, self.sq_psn
        for i, line in enumerate(self.posted):
            one = any(atomic in line["opcode"] for atomic in _ATOMICS)
            for _ in range(1 if one else max(1, -(-line["length"] // self.mtu))):
                found[psn & PSN_MASK] = i
                psn += 1
        return found

    def completions(self) -> dict[int, Line]:
        """The completion of each work request that has one, up to the first that failed."""
        asked = [i for i, line in enumerate(self.posted) if line.get("signaled")]
        found = {}
        for i, line in zip(asked, self.completed, strict=False):
            if line["status"] != "SUCCESS":
                break  # of unsignaled ones there are completions from here on
            found[i] = line
        return found

    def receives(self) -> list[int]:
        """Those of its work requests that take a receive of the peer, in order."""
        opcodes = [line["opcode"] for line in self.posted]
        return [i for i, opcode in enumerate(opcodes) if "SEND" in opcode or "IMM" in opcode]


class Programs:
    """The journals of an experiment."""

    def __init__(self, folder: Path) -> None:
        qps: dict[tuple[str, str, int], Qp] = defaultdict(Qp)
        for path in sorted(folder.glob("*.journal.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text)
                if isinstance(line.get("qp"), dict):
                    key = path.name, line["qp"]["device"], line["qp"]["qpn"]
                    if line["event"] == "qp_created":
                        qps.pop(key, None)
                    qps[key].take(line)
        self.qps = {(qp.local_ip, qpn): qp for (_, _, qpn), qp in qps.items() if qp.local_ip}

    def claims(self, analysis: Analysis, found: dict[str, Any], *, clocks: bool) -> Iterator[Claim]:
        """What an analysis says of work requests, completions, receives and clocks.

        Args:
            found: the analysis as JSON, which has no receives.
            clocks: whether the captures have the machine's clock.
        """
        for transfer, told in zip(found["transfers"], analysis.transfers, strict=True):
            qp = self.qps.get((transfer["requester"]["ip"], transfer["requester"]["qpn"]))
            if qp is not None and (by_psn := qp.by_psn()):
                yield from self._of_transfer(transfer, told.recv_wc, qp, by_psn.get(transfer["first_psn"]))
        for clock in (found["journal"] or {}).get("clocks", ()) if clocks else ():
            low, high = clock["low_ns"], clock["high_ns"]
            fits = (low is None or low <= _STAMPS_NS) and (high is None or high >= -_STAMPS_NS)
            yield Claim(
                "journal",
                "clock",
                RIGHT if fits and abs(clock["offset_ns"]) <= _STAMPS_NS else WRONG,
                f"{clock['host']} is {clock['offset_ns']} ns ahead ({low} to {high})",
                "it is the captures' own",
            )

    def _of_transfer(
        self, transfer: dict[str, Any], received: WorkCompletion | None, qp: Qp, at: int | None
    ) -> Iterator[Claim]:
        psn = transfer["first_psn"]
        truth = None if at is None else qp.posted[at]
        yield _same("wr", transfer["wr"], "posted_ns", truth, psn)
        if transfer["wr"] is None or at is None:
            return
        if at not in qp.completions() and any(c["status"] != "SUCCESS" for c in qp.completed):
            return  # completions that failed tell of no order
        yield _same("wc", transfer["wc"], "polled_ns", qp.completions().get(at), psn)
        peer = self.qps.get(qp.remote)
        receives = qp.receives()
        if peer is None or at not in receives or any(c["status"] != "SUCCESS" for c in peer.received):
            return
        if qp.transport == "UC" and len(receives) != len(peer.received):
            return  # which of them were lost, nobody says
        n = receives.index(at)
        come = peer.received[n] if n < len(peer.received) else None
        yield _same("receive", None if received is None else received.to_dict(), "polled_ns", come, psn)


def _same(what: str, said: dict[str, Any] | None, key: str, truth: Line | None, psn: int) -> Claim:
    """Whether an analysis names the line of a journal that it is."""
    true = "none" if truth is None else f"wr_id {truth['wr_id']} at {truth['time_ns']}"
    if said is None:
        return Claim("journal", what, SILENT if truth is not None else RIGHT, "none", true, psn)
    same = truth is not None and said["wr_id"] == truth["wr_id"] and said[key] == truth["time_ns"]
    return Claim(
        "journal", what, RIGHT if same else WRONG, f"wr_id {said['wr_id']} at {said[key]}", true, psn
    )
