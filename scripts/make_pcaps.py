"""Make the captures of pcaps/ again: in the lab with the kernel's rxe devices, or with soft devices.

    scripts/make-pcaps                    all of them
    scripts/make-pcaps ping-write-loss    some of them, by name
    scripts/make-pcaps --table            only the descriptions in pcaps/manifest.json and pcaps/README.md

Which packets netem hits is random. A run is repeated when netem hit none, or when it was meant to be clean
and a timer ran out on a slow machine. The kernel's counters decide this, not rocekit's analysis.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pcaps_listing import MADE, Made

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
"""Captures made in one boot, so that not all are lost when a lab fails."""

#: Counters of rxe that do not move in a clean run.
TROUBLE = (
    *("completer_retry_err", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err", "rcvd_seq_err"),
    *("retry_exceeded_err", "retry_rnr_exceeded_err", "send_err", "send_rnr_err"),
)


def wrong(made: Made, run: dict[str, Any]) -> str | None:
    """Why a run must be repeated; None when it is as it was meant."""
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
        return "the fault did not happen"
    if made.strikes not in (None, "tc") and not moved.get(str(made.strikes)):
        return f"{made.strikes} did not move"
    return None


def counted(run: dict[str, Any], name: str) -> int:
    """One of rxe's counters, summed over the devices."""
    return sum(int(counts.get(name, 0)) for counts in run["counters"].values())


def keep(made: Made, run: dict[str, Any], kernel: str, out: Path) -> dict[str, Any]:
    """Copy a run's files to pcaps/; returns the manifest's entry."""
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
    """Run a scenario on soft devices; returns the wire's count, in the form of a run in the lab."""
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
    """Make captures and keep them; returns the names of those that did not succeed."""
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
    entries = [kept[made.name] | {"about": made.about} for made in MADE if made.name in kept]
    MANIFEST.write_text(json.dumps({"captures": entries}, indent=1) + "\n")
    write_table(entries)


def write_table(entries: Sequence[dict[str, Any]]) -> None:
    """Write the table in pcaps/README.md, between its two marks."""
    lines = ["| capture | what happens | transfers | fault |", "|---|---|---|---|"]
    for entry in entries:
        moved = ", ".join(f"{n} {operation} of {size:,} bytes" for operation, size, n in entry["messages"])
        fault = "; ".join(f"{where}: `{words}`" for where, words in entry["faults"].items())
        moved = f"{moved} ({entry['transport']})" if moved else "–"
        lines.append(f"| [{entry['file']}]({entry['file']}) | {entry['about']} | {moved} | {fault or '–'} |")
    lines += ["", "The commands of client and server; each `rocekit inject` also has `--journal`:", ""]
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
    parser.add_argument(
        "--table",
        action="store_true",
        help="only write the descriptions in pcaps/manifest.json and pcaps/README.md",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a capture; by default all")
    given = parser.parse_args()
    unknown = set(given.names) - set(names)
    if unknown:
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if given.table:
        save(load())
        return 0
    left = make([made for made in MADE if not given.names or made.name in given.names])
    if left:
        print(f"not made as meant: {', '.join(left)}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
