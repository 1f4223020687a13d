"""The claims that are numbers: counts, costs, transfers, and which losses are reported at all."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from truth_bench.judge import What
from truth_bench.scene import (
    OF_REQUESTS,
    OF_RESPONSES,
    RIGHT,
    SILENT,
    WRONG,
    Claim,
    Scene,
    case_of,
    is_seen,
    left_open,
)


def numbers(scene: Scene) -> Iterator[Claim]:
    """Every number of an analysis that can be judged."""
    yield from _counts(scene)
    yield from _costs(scene)
    yield from _transfers(scene)
    yield from _reported(scene)


def _counts(scene: Scene) -> Iterator[Claim]:
    """What is counted: losses against tc, NAKs and RNR NAKs against the captures, paths against both."""
    judge = scene.judge
    lost: dict[str, int] = defaultdict(int)
    for finding in scene.found["findings"]:
        rule, evidence = finding["rule"], finding["evidence"]
        if rule in OF_REQUESTS | OF_RESPONSES:
            src = _loser(scene, finding)
            if src is not None:
                said = evidence.get("lost_packets", evidence["count"])
                lost[src] += max(0, said - left_open(finding))
        elif rule == "duplicate" and "or_sent_again" not in evidence:
            twice = sum(p.twice + sum(t.doubled for t in p.sent) for p in judge.wire.paths.values())
            spare = "probably" in finding["title"]
            verdict = RIGHT if evidence["count"] <= twice else SILENT if spare else WRONG
            yield Claim("count", "duplicates", verdict, str(evidence["count"]), f"{twice} came twice")
        elif rule == "rnr":
            point = scene.points[0] if len(scene.points) == 1 else "both"
            seen = judge.rnr_naks(judge.wire.sides, point)
            total = sum(f["evidence"]["rnr_naks"] for f in scene.found["findings"] if f["rule"] == "rnr")
            yield Claim(
                "count", "rnr_naks", RIGHT if total == seen else WRONG, str(total), f"{seen} captured"
            )
    for src, said in lost.items():
        dropped = judge.lost_in_all(src)
        verdict = RIGHT if said <= dropped else WRONG
        yield Claim("count", "lost packets", verdict, f"{said} of {src}", f"{dropped} dropped or corrupted")
    for said_path in scene.found.get("paths", scene.found["capture"].get("paths", ())):
        path = judge.wire.paths.get((said_path["src"], said_path["dst"]))
        if path is None:
            continue
        if _disturbs_cm(scene):
            continue  # CM's packets come twice, or late, and the bench does not match them
        of_cm = _lost_by_cm(scene, path.src)
        for name, n in (("missing", path.missing + path.spoilt + of_cm), ("doubled", path.twice)):
            outside = said_path["outside"] if of_cm and name == "missing" else 0
            verdict = RIGHT if said_path[name] + outside in (n, n - path.spoilt) else WRONG
            if said_path.get("at_least") and said_path[name] < n:
                verdict = SILENT
            yield Claim("count", f"paths: {name}", verdict, f"{said_path[name]} from {path.src}", str(n))


def _disturbs_cm(scene: Scene) -> bool:
    """Whether a fault doubles or delays the connection manager's packets."""
    return any(
        fault.get("of", "").startswith("cm") and ("duplicate" in fault["how"] or "delay" in fault["how"])
        for fault in scene.truth["faults"]
    )


def _lost_by_cm(scene: Scene, src: str) -> int:
    """How many packets of the connection manager a host lost between the captures, as tc counted."""
    return sum(
        fault["counters"].get("drops", 0)
        for fault in scene.truth["faults"]
        if fault.get("of", "").startswith("cm")
        and fault["where"] == "between"
        and scene.truth["hosts"][fault["sender"]]["ip"] == src
    )


def _loser(scene: Scene, finding: dict[str, Any]) -> str | None:
    """The sender of the packets that a finding calls lost."""
    for case in finding["evidence"].get("cases", ()):
        side = case_of(scene, finding, case).side
        if side is not None:
            return side.src if finding["rule"] in OF_REQUESTS else side.dst
    return None


def _costs(scene: Scene) -> Iterator[Claim]:
    """No problem costs more time than there was: the capture's, and of all together the connection's."""
    capture = scene.found["capture"]
    if capture["first_ns"] is None:
        return  # the captures hold no packet
    span = capture["last_ns"] - capture["first_ns"]
    of_connection: dict[int, int] = defaultdict(int)
    for finding in scene.found["findings"]:
        added = finding["evidence"].get("added_ns")
        if added is None:
            continue
        said, lasts = f"{finding['rule']} cost {added / 1e9:.3f} s", f"the capture lasts {span / 1e9:.3f} s"
        yield Claim("cost", "a finding", RIGHT if added <= span else WRONG, said, lasts)
        if finding["connection"] is not None:
            of_connection[finding["connection"]] += added
    for connection in scene.found["connections"]:
        if connection["id"] not in of_connection:
            continue
        added, own = of_connection[connection["id"]], _span(scene, connection)
        said = f"all findings on connection {connection['id']} cost {added / 1e9:.3f} s"
        verdict = RIGHT if added <= own else WRONG
        yield Claim("cost", "all of a connection", verdict, said, f"it lasts {own / 1e9:.3f} s")


def _span(scene: Scene, connection: dict[str, Any]) -> int:
    """From a connection's first packet in a view to its last one."""
    ends = {(end["ip"], end["qpn"]) for end in (connection["a"], connection["b"])}
    times = [
        packet.time_ns
        for point, packets in zip(("va", "vb"), scene.judge.wire.captures, strict=True)
        for packet in packets
        if point in scene.points and (packet.dst, packet.dest_qpn) in ends
    ]
    if scene.cm is not None:  # a connection begins with its REQ
        times += [m.seen[point][1] for m in scene.cm.messages for point in scene.points if point in m.seen]
    return max(times) - min(times) if times else 0


_OPERATIONS: Final = {
    "ib_write_bw": "WRITE",
    "ib_send_bw": "SEND",
    "ib_read_bw": "READ",
    "ib_atomic_bw": "FETCH_ADD",
}


def _transfers(scene: Scene) -> Iterator[Claim]:
    """What perftest was told to do is what was transferred, if it ended well."""
    yield from _datagrams(scene)
    told = scene.truth["experiment"]["told"]
    operation = _OPERATIONS.get(told.get("program", ""))
    client = scene.truth["programs"].get("client", {})
    if operation is None or client.get("returncode") != 0 or "-c U" in told["options"]:
        return
    qps = re.search(r"-q (\d+)", told["options"])
    expected = told["count"] * (int(qps[1]) if qps else 1) * (2 if "-b" in told["options"].split() else 1)
    if "CMP_AND_SWAP" in told["options"]:
        operation = "CMP_SWAP"
    size = told["bytes"]
    found = [t for t in scene.found["transfers"] if t["operation"] == operation and t["bytes"] == size]
    is_open = any(  # "READs may be counted twice"
        f["evidence"].get("of_reads") for f in scene.found["findings"] if f["rule"] == "mtu-mismatch"
    )
    verdict = RIGHT if len(found) == expected else SILENT if is_open else WRONG
    yield Claim(
        "transfers", "number", verdict, f"{len(found)} {operation} of {size} bytes", f"{expected} made"
    )
    done = sum(t["status"] == "acked" for t in found)
    verdict = RIGHT if done == expected else SILENT if is_open else WRONG
    yield Claim("transfers", "acknowledged", verdict, f"{done} acknowledged", f"{expected} completed")


def _datagrams(scene: Scene) -> Iterator[Claim]:
    """Of UD each packet is a transfer, of which nobody says whether it arrived."""
    here = [("va", "vb").index(point) for point in scene.points]
    seen = sum(
        (t.sent is not None and scene.judge.wire.first_of(t.packet.src) in here)
        or (bool(t.arrived) and 1 - scene.judge.wire.first_of(t.packet.src) in here)
        for path in scene.judge.wire.paths.values()
        for t in path.sent
        if t.packet.is_datagram and not t.doubled
    )
    said = [t for c in scene.found["connections"] if c["transport"] == "UD" for t in _of(scene, c)]
    if not seen and not said:
        return
    words, truth = f"{len(said)} datagrams", f"{seen} captured"
    yield Claim("transfers", "datagrams", RIGHT if len(said) == seen else WRONG, words, truth)
    ends = sorted({t["status"] for t in said})
    yield Claim("transfers", "datagrams' end", RIGHT if ends == ["sent"] else WRONG, ", ".join(ends), "sent")


def _of(scene: Scene, connection: dict[str, Any]) -> list[dict[str, Any]]:
    return [t for t in scene.found["transfers"] if t["connection"] == connection["id"]]


def _reported(scene: Scene) -> Iterator[Claim]:
    """Each loss that drew a NAK which the view contains is in a finding; silent where it is in none."""
    said = {
        psn
        for finding in scene.found["findings"]
        for psn in (*finding["evidence"].get("psns", ()), *_psns(finding))
        if isinstance(psn, int)  # ``capture-gap`` has ranges
    }
    cut = any(
        len(f["evidence"].get("psns", ())) < f["evidence"].get("count", 0) for f in scene.found["findings"]
    )
    for side in scene.judge.wire.sides:
        for nak in side.responses:
            if not nak.packet.is_sequence_nak or nak.doubled or not is_seen(scene, nak):
                continue
            fate = scene.judge.after_nak(side, nak)
            if fate.what in (What.REQUEST, What.SPOILT) and (nak.psn in said or not cut):
                verdict = RIGHT if nak.psn in said else SILENT
                yield Claim(
                    "reported",
                    "loss with a NAK",
                    verdict,
                    "" if verdict == SILENT else "yes",
                    str(fate),
                    nak.psn,
                )


def _psns(finding: dict[str, Any]) -> Iterator[int]:
    """The PSNs that a finding names outside its list."""
    for case in finding["evidence"].get("cases", ()):
        yield case["psn"]
