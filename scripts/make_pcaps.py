"""Make the captures in pcaps/ anew: in the lab, with the kernel's own rxe devices, or with soft ones.

    scripts/make-pcaps                    all of them
    scripts/make-pcaps ping-write-loss    some of them, by name
    scripts/make-pcaps --table            only the table in pcaps/README.md, from pcaps/manifest.json

Chance decides which packets netem meddles with. A run in which it meddled with none, or a clean run in which
a slow machine let a timer run out, is made again. Both are judged by the kernel's own counts, never by what
rocekit makes of the capture.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rocekit.capture import open_capture
from rocekit.errors import RocekitError
from rocekit.lab import run
from rocekit.lab.net import A, B, LabError

PCAPS = Path(__file__).resolve().parent.parent / "pcaps"
MANIFEST = PCAPS / "manifest.json"
README = PCAPS / "README.md"
BEGIN, END = "<!-- table: scripts/make-pcaps -->", "<!-- end of the table -->"
ROUNDS = 3
LIMIT_S = 240.0
PER_LAB = 20
"""Captures made in one boot: so that a lab that dies does not take all with it."""

#: Counters of rxe that stay where they are when nothing goes wrong.
TROUBLE = (
    *("completer_retry_err", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "rcvd_seq_err"),
    *("retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "send_rnr_err"),
)
NETEM = {
    "loss": "loss 5%",
    "reordering": "delay 2ms reorder 25% 50%",
    "duplication": "duplicate 10%",
    "corruption": "corrupt 5%",
}
CLEAN = "-u 18"
"""An acknowledgement timeout of 1 s: an emulated machine can be slower than perftest's 67 ms."""
FAULTY = "-u 16"
PATIENT = "--timeout 120"
"""On a busy machine a client has not asked to connect in the usual 30 s."""
#: Every packet of an RC connection (opcodes 0 to 31, at 20 bytes of IPv4 and 8 of UDP) dies on arrival.
DEAF = "u32 match ip protocol 17 0xff match u8 0x00 0xe0 at 28 action drop"
#: Every 13th RoCE packet dies on arrival, behind the capture.
BEHIND = "flower ip_proto udp dst_port 4791 action pass random determ drop 13"


@dataclass(frozen=True)
class Made:
    """A capture to make.

    Attributes:
        client, server: command lines; those of `rocekit inject` get a journal each.
        messages: (operation, bytes, how many) that the programs are told to move.
        about: what the manifest says of it.
        netem, netem_b: what befalls packets that rxe0 and rxe1 send, before the capture sees them.
        ingress: a tc filter at rxe1's end, which the packets meet after the capture saw them.
        strikes: "tc", or a counter that must have moved, else the fault did not happen; None: clean.
        fails: whether the client is to fail.
        traced: `rocekit trace --write` captures it, and the file is pcapng.
        soft: soft devices on a wire in memory, which needs no lab; the wire writes the capture.
        devices: how many the lab has; more than two hang on a bridge, and that is where they are captured.
    """

    name: str
    client: str
    server: str | None
    messages: tuple[tuple[str, int, int], ...]
    about: str
    transport: str = "RC"
    netem: str | None = None
    netem_b: str | None = None
    ingress: str | None = None
    capture_filter: str = "udp port 4791"
    strikes: str | None = None
    fails: bool = False
    traced: bool = False
    soft: bool = False
    devices: int = 2

    @property
    def clean(self) -> bool:
        return self.strikes is None and not self.fails


def _messages(scenario: str, size: int, iterations: int, qps: int) -> tuple[tuple[str, int, int], ...]:
    count = iterations * qps
    return {
        "ping-sr": (("SEND", size, 2 * count),),
        "blast-sr": (("SEND", size, count),),
        "ping-write": (("WRITE", size, 2 * count),),
        "ping-read": (("READ", size, count),),
        "atomic": (("FETCH_ADD", 8, count),),
        "atomic-cmp": (("CMP_SWAP", 8, count),),
        **{f"ping-sr-{n}": (("SEND", size, 2 * count),) for n in range(5)},
        "blast-write": (("WRITE", size, count),),
        "blast-read": (("READ", size, count),),
        "ud": (("SEND", size, 2 * count),),
        "uc": (("WRITE", size, 2 * count), ("SEND", 12, 2 * count)),
        # In turns, there and back.
        "immediate": (("SEND", size, count), ("WRITE", size, count)),
        "invalidate": (("SEND", 12, count), ("WRITE", size, count), ("SEND", 8, count)),
        "sge": tuple(("SEND", 16 + size - i * 37 % size, 2 * qps) for i in range(iterations)),
        "wr-list": (("SEND", size, count),),
        "srq": (("SEND", size, count),),
        "cq-ex": (("SEND", size, 2 * count),),
        "device-memory": (("WRITE", size, count - qps), ("READ", size, count)),
        # What comes of each mistake is told by tests/scenarios/test_failures.py.
        "failures": (),
    }[scenario]


#: What a scenario's server must be told by its user, or runs over, if not the usual.
TRANSPORTS = {"ud": "UD", "uc": "UC"}
MEET_BY_TCP = "udp port 4791 or tcp port 18515"


def inject(
    scenario: str,
    condition: str,
    about: str,
    *,
    size: int = 8192,
    iterations: int = 10,
    qps: int = 1,
    more: str = "",
    requester: str = "",
    addresses: tuple[str, str] = (A.ipv4, B.ipv4),
    netem: str | None = None,
    netem_b: str | None = None,
    ingress: str | None = None,
    server: bool = True,
    traced: bool = False,
    strikes: str | None = None,
    fails: bool = False,
    told: str = "",
) -> Made:
    """One of rocekit inject's scenarios; ``requester`` are options that each side's own requests go by,
    ``told`` those that a server needs to be told.
    """
    name = scenario.removesuffix("-cmp")
    faulty = bool(netem or netem_b or ingress)
    requester = requester or (FAULTY if faulty else CLEAN)
    ours, theirs = addresses
    call = ["rocekit inject", name, theirs, "--bind", ours, "-m 1024", f"-n {iterations}", requester, more]
    if name != "atomic":
        call.append(f"-s {size}")
    if qps > 1:
        call.append(f"-q {qps}")
    if scenario == "atomic-cmp":
        call.append("-A CMP_AND_SWAP")
    return Made(
        f"{scenario}-{condition}",
        " ".join(filter(None, call)),
        " ".join(filter(None, ("rocekit inject", name, "--bind", theirs, told, requester, PATIENT)))
        if server
        else None,
        () if fails else _messages(scenario, size, iterations, qps),
        about,
        transport=TRANSPORTS.get(name, "RC"),
        capture_filter=MEET_BY_TCP if name in TRANSPORTS or "--no-rdma_cm" in more else "udp port 4791",
        netem=netem,
        netem_b=netem_b,
        ingress=ingress,
        strikes=strikes or ("tc" if faulty else None),
        fails=fails,
        traced=traced,
    )


def perftest(
    program: str,
    condition: str,
    options: str,
    messages: tuple[tuple[str, int, int], ...],
    about: str,
    *,
    transport: str = "RC",
    netem: str | None = None,
    handshake: bool = False,
    strikes: str | None = None,
) -> Made:
    """One of perftest's programs."""
    options = f"-F -x 1 {options} {FAULTY if netem else CLEAN}"
    return Made(
        f"{program}-{condition}",
        f"{program} -d {A.device} {options} {B.ipv4}",
        f"{program} -d {B.device} {options}",
        messages,
        about,
        transport=transport,
        netem=netem,
        capture_filter="udp port 4791 or tcp port 18515" if handshake else "udp port 4791",
        strikes=strikes or ("tc" if netem else None),
    )


def _rping(rounds: int, name: str, address: str, source: str, about: str) -> Made:
    return Made(
        name,
        f"rping -c -a {address} -I {source} -C {rounds} -v",
        f"rping -s -a {address} -C {rounds} -v",
        (("SEND", 16, 4 * rounds), ("READ", 64, rounds), ("WRITE", 64, rounds)),
        about,
    )


def soft_pair(scenario: str, about: str, *, size: int, iterations: int) -> Made:
    """A scenario over two soft devices: rxe cannot do it, or it is about the program, not the packets."""
    return Made(
        f"{scenario}-soft",
        f"rocekit inject {scenario} --both --backend soft --seed 1 -n {iterations} -s {size} {CLEAN}",
        None,
        _messages(scenario, size, iterations, 1),
        about,
        soft=True,
    )


def group(scenario: str, about: str, lengths: dict[int, int], hosts: int = 4, size: int = 2048) -> Made:
    """One of the scenarios of n hosts, over soft devices; ``lengths``: messages by their bytes."""
    return Made(
        f"{scenario}-soft",
        f"rocekit inject {scenario} --hosts {hosts} --backend soft --seed 1 -n 1 -s {size}",
        None,
        tuple(("WRITE", length, count) for length, count in lengths.items()),
        about,
        soft=True,
    )


def group_of_rxe(scenario: str, about: str, lengths: dict[int, int], *, netem: str | None = None) -> Made:
    """The same over three devices of the kernel's, all in one program."""
    return Made(
        f"{scenario}-{'loss' if netem else 'clean'}",
        f"rocekit inject {scenario} --hosts 3 -n 1 -s 3072 {FAULTY if netem else CLEAN} {PATIENT}",
        None,
        tuple(("WRITE", length, count) for length, count in lengths.items()),
        about,
        netem=netem,
        strikes="tc" if netem else None,
        devices=3,
    )


LOST = "what rxe0 sends is lost at times, before the capture sees it"
V6 = (A.ipv6, B.ipv6)

MADE: tuple[Made, ...] = (
    inject("ping-sr", "clean", "nothing goes wrong", size=4096, traced=True),
    inject(
        "blast-sr", "clean", "nothing goes wrong; one WR in four is signaled", iterations=16, more="-t 8 -Q 4"
    ),
    inject("ping-write", "clean", "nothing goes wrong"),
    inject("ping-read", "clean", "nothing goes wrong"),
    inject("atomic", "clean", "nothing goes wrong; two QPs count on one counter", qps=2),
    inject("atomic-cmp", "clean", "nothing goes wrong"),
    inject("ping-sr", "ipv6-clean", "nothing goes wrong, over IPv6", size=4096, addresses=V6),
    inject("ping-write", "loss", LOST, size=16384, netem=NETEM["loss"], traced=True),
    inject(
        "ping-write",
        "loss-behind",
        "every 13th packet that rxe1 should get is lost behind the capture, which saw it",
        ingress=BEHIND,
    ),
    inject("ping-sr", "loss", LOST, iterations=15, netem=NETEM["loss"]),
    inject("blast-sr", "loss", LOST, iterations=20, more="-t 8 -Q 4", netem=NETEM["loss"]),
    inject(
        "ping-read",
        "loss",
        "READ requests are lost, before the capture sees them",
        iterations=20,
        netem="loss 20%",
    ),
    inject(
        "ping-read",
        "response-loss",
        "responses of rxe1 are lost, before the capture sees them",
        netem_b=NETEM["loss"],
    ),
    inject("atomic", "loss", LOST, iterations=20, netem="loss 10%"),
    inject(
        "atomic",
        "response-loss",
        "answers of rxe1 are lost: their requests come again",
        iterations=20,
        netem_b="loss 10%",
    ),
    inject(
        "blast-sr",
        "reordering",
        "some packets of rxe0 overtake others",
        iterations=16,
        more="-t 8 -Q 4",
        netem=NETEM["reordering"],
    ),
    inject("ping-write", "reordering", "some packets of rxe0 overtake others", netem=NETEM["reordering"]),
    inject("ping-sr", "duplication", "some packets of rxe0 come twice", netem=NETEM["duplication"]),
    inject("ping-write", "duplication", "some packets of rxe0 come twice", netem=NETEM["duplication"]),
    inject(
        "blast-sr",
        "corruption",
        "a bit is turned in some packets of rxe0",
        iterations=20,
        more="-t 8 -Q 4",
        netem=NETEM["corruption"],
    ),
    inject(
        "ping-read",
        "corruption",
        "a bit is turned in some packets of rxe1: responses",
        iterations=15,
        netem_b=NETEM["corruption"],
    ),
    inject(
        "blast-sr",
        "rnr",
        "the receiver has one receive posted at a time, the sender does not wait for it",
        size=2048,
        more="-t 8 -Q 4 -r 1",
        strikes="send_rnr_err",
    ),
    inject(
        "ping-write",
        "dead",
        "no packet of the connection arrives at rxe1: the first WRITE runs out of retries",
        size=2048,
        requester="--retry 3 -u 14",
        ingress=DEAF,
        fails=True,
    ),
    inject(
        "ping-sr", "rejected", "nobody listens: the request to connect is rejected", server=False, fails=True
    ),
    perftest(
        "ib_send_bw",
        "clean",
        "-n 10 -s 8192",
        (("SEND", 8192, 10),),
        "nothing goes wrong; with its TCP handshake",
        handshake=True,
    ),
    perftest("ib_write_bw", "clean", "-n 10 -s 8192", (("WRITE", 8192, 10),), "nothing goes wrong"),
    perftest("ib_read_bw", "clean", "-n 10 -s 8192", (("READ", 8192, 10),), "nothing goes wrong"),
    perftest(
        "ib_atomic_bw", "clean", "-n 10 -A FETCH_AND_ADD", (("FETCH_ADD", 8, 10),), "nothing goes wrong"
    ),
    perftest(
        "ib_send_bw",
        "uc-clean",
        "-c UC -n 10 -s 8192",
        (("SEND", 8192, 10),),
        "nothing goes wrong",
        transport="UC",
    ),
    perftest(
        "ib_send_bw",
        "ud-clean",
        "-c UD -n 10 -s 2048",
        (("SEND", 2048, 10),),
        "nothing goes wrong",
        transport="UD",
    ),
    perftest(
        "ib_write_bw", "4qp-loss", "-q 4 -n 5 -s 16384", (("WRITE", 16384, 20),), LOST, netem=NETEM["loss"]
    ),
    perftest(
        "ib_send_bw",
        "rnr",
        "-n 10 -s 4096 -r 1 -t 16",
        (("SEND", 4096, 10),),
        "the receiver has one receive posted at a time, the sender does not wait for it",
        strikes="send_rnr_err",
    ),
    _rping(
        5, "rping-clean", B.ipv4, A.ipv4, "nothing goes wrong: SEND, READ, SEND, SEND, WRITE, SEND a round"
    ),
    _rping(3, "rping-ipv6-clean", B.ipv6, A.ipv6, "nothing goes wrong, over IPv6"),
    Made(
        "ibv_rc_pingpong-clean",
        f"ibv_rc_pingpong -d {A.device} -g 1 -n 10 {B.ipv4}",
        f"ibv_rc_pingpong -d {B.device} -g 1 -n 10",
        (("SEND", 4096, 20),),
        "nothing goes wrong; no connection manager",
    ),
    # An all-to-all of blocks of 2,048 bytes, and an all-reduce of as many in four pieces.
    *(
        soft_pair(f"ping-sr-{n}", f"soft devices: {how}", size=1024, iterations=5)
        for n, how in (
            (0, "nothing told in private data"),
            (1, "count and size in the private data of the REQ"),
            (2, "a thread reads CM events"),
            (3, "a completion channel"),
            (4, "both channels non-blocking"),
        )
    ),
    inject(
        "ping-sr",
        "tcp-clean",
        "nothing goes wrong; no connection manager, the TCP exchange is in the capture",
        size=1024,
        iterations=5,
        more="--no-rdma_cm",
        told="--no-rdma_cm",
    ),
    inject(
        "blast-write",
        "clean",
        "nothing goes wrong; one WR in four is signaled",
        size=2048,
        iterations=12,
        more="-t 8 -Q 4",
    ),
    inject(
        "blast-read",
        "clean",
        "nothing goes wrong; four READs at a time",
        size=2048,
        iterations=9,
        more="-o 4",
    ),
    inject("ud", "clean", "nothing goes wrong; datagrams there and back", size=1024, iterations=5),
    inject("uc", "clean", "nothing goes wrong; a WRITE and a SEND there and back", size=2048, iterations=5),
    inject("immediate", "clean", "nothing goes wrong; SEND and WRITE in turns", size=2048, iterations=6),
    inject("invalidate", "clean", "nothing goes wrong; each key is given back", size=2048, iterations=5),
    inject("sge", "clean", "nothing goes wrong; header and body of two buffers", size=1500, iterations=5),
    inject("wr-list", "clean", "one WR in four is refused when it is posted", size=512, iterations=12),
    inject(
        "srq", "clean", "nothing goes wrong; three QPs, one receive queue", size=1024, iterations=5, qps=3
    ),
    inject(
        "cq-ex",
        "clean",
        "nothing goes wrong; sends complete on an extended CQ, without timestamps",
        size=1024,
        iterations=5,
        qps=2,
        more="--no-timestamps",
        told="--no-timestamps",
    ),
    inject(
        "failures",
        "each",
        "one mistake after the other, each on a connection of its own",
        size=4096,
        iterations=1,
        strikes="send_rnr_err",
    ),
    soft_pair("cq-ex", "soft devices: completions with timestamps", size=1024, iterations=5),
    soft_pair("device-memory", "soft devices: memory of the server's device", size=2048, iterations=5),
    group("mesh", "four soft hosts connected all to all exchange directly", {2048: 12, 512: 24}),
    group(
        "ring",
        "four soft hosts in a ring do the same, blocks passed on from host to host",
        {6144: 4, 4096: 4, 2048: 4, 512: 24},
    ),
    group_of_rxe("mesh", "three rxe devices connected all to all exchange directly", {3072: 6, 1024: 12}),
    group_of_rxe(
        "ring",
        "three rxe devices in a ring do the same, blocks passed on",
        {6144: 3, 3072: 3, 1024: 12},
    ),
    group_of_rxe("mesh", f"three rxe devices all to all; {LOST}", {3072: 6, 1024: 12}, netem="loss 10%"),
    group_of_rxe(
        "ring", f"three rxe devices in a ring; {LOST}", {6144: 3, 3072: 3, 1024: 12}, netem="loss 10%"
    ),
)


def wrong(made: Made, run: dict[str, Any]) -> str | None:
    """Why a run is to be made again; None where it is as it was meant."""
    if "late" in run:
        return str(run["late"])
    if (run["client_status"] != 0) != made.fails:
        return f"the client ended with status {run['client_status']}"
    if run["server_status"] and not made.fails:
        return f"the server ended with status {run['server_status']}"
    if not run["packets_captured"] or run["dropped_by_kernel"]:
        return f"captured {run['packets_captured']}, the kernel dropped {run['dropped_by_kernel']}"
    moved = {name: n for name in TROUBLE if (n := counted(run, name))}
    if made.clean and moved:
        return f"meant to be clean, but {moved}"
    if made.strikes == "tc" and not moved and not sum(run["dropped_by_tc"].values()):
        return "the fault did not strike"
    if made.strikes not in (None, "tc") and not moved.get(str(made.strikes)):
        return f"{made.strikes} did not move"
    return None


def counted(run: dict[str, Any], name: str) -> int:
    """One of rxe's counters, both devices together."""
    return sum(int(counts.get(name, 0)) for counts in run["counters"].values())


def keep(made: Made, run: dict[str, Any], kernel: str, out: Path) -> dict[str, Any]:
    """Put a run's files where they belong; returns the manifest's entry."""
    name = made.name
    capture = f"{name}.pcapng" if made.traced or made.soft else f"{name}.pcap"
    if made.traced:
        traced, dumped = (captured_frames(out / f"{name}{suffix}") for suffix in (".pcapng", ".pcap"))
        if traced != dumped:
            raise RocekitError(f"{name}: rocekit trace and tcpdump captured different frames")
    for old in PCAPS.glob(f"{name}.*"):
        old.unlink()
    journals = sorted(path.name for path in out.glob(f"{name}.*journal.jsonl"))
    for file in (capture, *journals):
        shutil.copyfile(out / file, PCAPS / file)
    faults = {
        f"{A.device} sends": made.netem and f"netem {made.netem}",
        f"{B.device} sends": made.netem_b and f"netem {made.netem_b}",
        f"{B.device} receives": made.ingress,
    }
    return {
        "file": capture,
        "journals": journals,
        "about": made.about,
        "kernel": kernel,
        "server": made.server,
        "client": made.client,
        "faults": {where: words for where, words in faults.items() if words},
        "captured_by": "the wire" if made.soft else "rocekit trace --write" if made.traced else "tcpdump",
        "transport": made.transport,
        "messages": [list(message) for message in made.messages],
        "clean": made.clean,
        "fails": made.fails,
        "client_status": run["client_status"],
        "packets_captured": run["packets_captured"],
        "dropped_by_tc": run["dropped_by_tc"],
        "counters": run["counters"],
    }


def run_soft(made: Made, out: Path) -> dict[str, Any]:
    """Run soft devices; what the wire counted, and what is in no counter: it lost nothing."""
    files = [
        "--capture",
        str(out / f"{made.name}.pcapng"),
        "--journal",
        str(out / f"{made.name}.journal.jsonl"),
    ]
    words = [sys.executable, "-m", "rocekit.cli", *made.client.split()[1:], *files, "--format", "json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
    sent = json.loads(done.stdout)["packets"] if done.returncode == 0 else 0
    return {
        "client_status": done.returncode,
        "server_status": 0,
        "packets_captured": sent,
        "dropped_by_kernel": 0,
        "dropped_by_tc": {},
        "counters": {"wire": {"sent_pkts": sent}},
    }


def captured_frames(path: Path) -> list[bytes]:
    """The frames of a capture."""
    found = []
    with open_capture(path) as reader:
        for batch in reader:
            for start, length in zip(batch.offset, batch.caplen, strict=True):
                found.append(bytes(batch.buffer[start : start + length]))
    return found


def make(chosen: Sequence[Made]) -> list[str]:
    """Make captures and keep them; returns the names of those that did not come out."""
    kept = load()
    left = {made.name: made for made in chosen}
    for made in [made for made in chosen if made.soft]:
        with tempfile.TemporaryDirectory(prefix="rocekit-pcaps-") as folder:
            done = run_soft(made, Path(folder))
            if wrong(made, done) is None:
                kept[made.name] = keep(made, done, "none: soft devices", Path(folder))
                del left[made.name]
                save(kept)
    for number in range(1, ROUNDS + 1):
        for batch in _batches([made for made in left.values() if not made.soft]):
            with tempfile.TemporaryDirectory(prefix="rocekit-pcaps-") as folder:
                out = Path(folder)
                listing = out / "listing.json"
                listing.write_text(json.dumps([asdict(made) for made in batch]))
                inside = Path(__file__).with_name("pcaps_inside.py")
                try:
                    run(
                        [sys.executable, str(inside), str(listing)],
                        out=out,
                        timeout_s=LIMIT_S * len(batch),
                        devices=batch[0].devices,
                    )
                except LabError as error:
                    print(f"round {number}: {error}", file=sys.stderr)
                path = out / "results.json"
                results = json.loads(path.read_text()) if path.exists() else {"captures": []}
                for entry in results["captures"]:
                    made = left[entry["name"]]
                    why = wrong(made, entry)
                    if why is None:
                        kept[made.name] = keep(made, entry, results["kernel"], out)
                        del left[made.name]
                        save(kept)
                        continue
                    print(f"round {number}, {made.name}: {why}", file=sys.stderr)
                    for path in sorted(out.glob(f"{made.name}.*.txt")):
                        words = path.read_text(errors="replace").strip().splitlines()
                        print(f"    {path.name}: {' | '.join(words[-3:])}", file=sys.stderr)
        if all(made.soft for made in left.values()):
            break
    return list(left)


def _batches(items: list[Made]) -> Iterable[list[Made]]:
    for devices in sorted({made.devices for made in items}):
        alike = [made for made in items if made.devices == devices]
        for start in range(0, len(alike), PER_LAB):
            yield alike[start : start + PER_LAB]


def load() -> dict[str, dict[str, Any]]:
    if not MANIFEST.exists():
        return {}
    return {Path(entry["file"]).stem: entry for entry in json.loads(MANIFEST.read_text())["captures"]}


def save(kept: dict[str, dict[str, Any]]) -> None:
    order = [made.name for made in MADE]
    entries = [kept[name] for name in order if name in kept]
    MANIFEST.write_text(json.dumps({"captures": entries}, indent=1) + "\n")
    write_table(entries)


def write_table(entries: Sequence[dict[str, Any]]) -> None:
    """The table in pcaps/README.md, between its two marks."""
    lines = ["| capture | what happened | told to move | fault |", "|---|---|---|---|"]
    for entry in entries:
        told = ", ".join(f"{n} {operation} of {size:,} bytes" for operation, size, n in entry["messages"])
        fault = "; ".join(f"{where}: `{words}`" for where, words in entry["faults"].items())
        told = f"{told} ({entry['transport']})" if told else "–"
        lines.append(f"| [{entry['file']}]({entry['file']}) | {entry['about']} | {told} | {fault or '–'} |")
    lines += ["", "The commands, client and server, each with `--journal` where it is `rocekit inject`:", ""]
    for entry in entries:
        lines.append(f"- {Path(entry['file']).stem}: `{entry['client']}`")
        if entry["server"]:
            lines[-1] += f", `{entry['server']}`"
    text = README.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}")


def main() -> int:
    names = [made.name for made in MADE]
    parser = argparse.ArgumentParser(prog="scripts/make-pcaps")
    parser.add_argument("--table", action="store_true", help="only write the table in pcaps/README.md")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all by default")
    given = parser.parse_args()
    unknown = set(given.names) - set(names)
    if unknown:
        parser.error(f"no {', '.join(sorted(unknown))}; there is {', '.join(names)}")
    if given.table:
        save(load())
        return 0
    left = make([made for made in MADE if not given.names or made.name in given.names])
    if left:
        print(f"did not come out as meant: {', '.join(left)}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
