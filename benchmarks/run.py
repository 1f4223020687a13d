"""rocekit's speed beside other programs: every row of the table in README.md, with one command.

    .venv/bin/python benchmarks/run.py
    .venv/bin/python benchmarks/run.py --rows stat,pairs --repeats 3
    sudo .venv/bin/python benchmarks/run.py --rows live

Every run is a whole process, start-up included, with its output to /dev/null. Its capture was read once
before, so that it is in the page cache. rocekit and its peer run in turn, so that other load on the machine
affects both alike. Printed are medians, and the median of the ratios of each pair of runs: in real time, and
in processor seconds (user and system). The captures are made once by `rocekit generate` and kept in --folder.
The rows ``live`` need root: see benchmarks/live.py.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROCEKIT = str(Path(sys.executable).parent / "rocekit")
SIX_FIELDS = ("frame.number", "frame.time_epoch", "ip.src", "ip.dst", "infiniband.bth.psn",
              "infiniband.bth.destqp")  # fmt: skip
MILLION = 1_000_000

#: Captures by name: the number of packets, and further options of `rocekit generate`.
CAPTURES: dict[str, tuple[int, tuple[str, ...]]] = {
    "snaplen-128": (MILLION, ("--snaplen", "128")),
    "full": (MILLION, ()),
    "loss-1%": (MILLION, ("--snaplen", "128", "--loss", "0.01")),
    "reads-sends": (MILLION, ("--snaplen", "128", "--operation", "read", "--operation", "send")),
    "10k-pairs": (MILLION, ("--snaplen", "128", "--pairs", "10000")),
    "100": (100, ()),
    "10-million": (10 * MILLION, ("--snaplen", "128")),
}
ANALYZE = (ROCEKIT, "analyze", "{}")
FIELDS = ("tshark", "-r", "{}", "-T", "fields", *(x for f in SIX_FIELDS for x in ("-e", f)))
STAT = ("tshark", "-r", "{}", "-q", "-z", "io,stat,0")


@dataclass(frozen=True)
class Comparison:
    """A run of rocekit and a run of a peer, each on its capture; ``least`` and ``aim``: ratios to reach."""

    title: str
    ours: tuple[str, ...]
    capture: str
    peer: tuple[str, ...]
    peer_capture: str
    least: float
    aim: float


#: A user's environment. PYTHONDONTWRITEBYTECODE, for one, would make every start compile every module.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
PIPE = "tcpdump -r {} -w - 2> /dev/null"
SMALL, FULL = "snaplen-128", "full"
DECODE = (ROCEKIT, "decode", "{}")
OUR_SIX = ("--fields", "frame,time_ns,src,dst,psn,dest_qpn")
EXPORT = (ROCEKIT, "export", "{}", "--to", "parquet", "-o", "{}-tables")

ROWS: dict[str, Comparison] = {
    "fields": Comparison("snaplen 128 / tshark, six fields", ANALYZE, SMALL, FIELDS, SMALL, 40, 60),
    "stat": Comparison("snaplen 128 / tshark io,stat", ANALYZE, SMALL, STAT, SMALL, 7, 15),
    "icrc": Comparison("full, every ICRC / tshark, six fields", ANALYZE, FULL, FIELDS, FULL, 15, 40),
    "cat": Comparison("full, every ICRC / cat", ANALYZE, FULL, ("cat", "{}"), FULL, 0.15, 0.3),
    "pairs": Comparison("10,000 QP pairs / 64 pairs", ANALYZE, "10k-pairs", ANALYZE, SMALL, 1 / 1.3, 1 / 1.1),
    "loss": Comparison("1 % loss / none", ANALYZE, "loss-1%", ANALYZE, SMALL, 1 / 1.5, 1 / 1.2),
    "reads": Comparison("READs and SENDs / WRITEs", ANALYZE, "reads-sends", ANALYZE, SMALL, 0, 0),
    "decode-fields": Comparison(
        "decode --fields of six / tshark, the same six", (*DECODE, *OUR_SIX), SMALL, FIELDS, SMALL, 25, 50
    ),
    "decode-text": Comparison("decode / tshark, six fields", DECODE, SMALL, FIELDS, SMALL, 10, 20),
    "decode-json": Comparison(
        "decode --format json / tshark, six fields",
        (*DECODE, "--format", "json"),
        SMALL,
        FIELDS,
        SMALL,
        10,
        20,
    ),
    "export": Comparison("export --to parquet / analyze", EXPORT, SMALL, ANALYZE, SMALL, 1 / 1.5, 1 / 1.2),
    "json": Comparison("JSON / text", (*ANALYZE, "--format", "json"), SMALL, ANALYZE, SMALL, 0, 0),
    "pipe": Comparison(
        "tcpdump into rocekit analyze / tcpdump into cat, full",
        ("sh", "-c", f"{PIPE} | {ROCEKIT} analyze -"),
        FULL,
        ("sh", "-c", f"{PIPE} | cat > /dev/null"),
        FULL,
        0,
        0,
    ),
}


@dataclass(frozen=True)
class Run:
    """One process: real time and processor time in seconds, peak memory in bytes."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def run(command: Sequence[str]) -> Run:
    """Run a command to its end.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    with Path(os.devnull).open("wb") as nowhere:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere, env=ENVIRONMENT
        )
        _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Run(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def capture(folder: Path, name: str) -> Path:
    """The capture ``name``: made unless it exists, and read once."""
    packets, words = CAPTURES[name]
    path = folder / f"{name.replace('%', '')}.pcap"
    if not path.exists():
        made = path.with_suffix(".part.pcap")  # its name says the format
        subprocess.run((ROCEKIT, "generate", str(made), "--packets", str(packets), *words), check=True)
        made.rename(path)
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(1 << 22)
        while file.readinto(buffer):
            pass
    return path


def compare(row: Comparison, folder: Path, repeats: int) -> str:
    commands = [
        [word.replace("{}", str(capture(folder, name))) for word in words]
        for words, name in ((row.ours, row.capture), (row.peer, row.peer_capture))
    ]
    runs: list[tuple[Run, Run]] = []
    for _ in range(repeats):
        runs.append((run(commands[0]), run(commands[1])))
    ours, peer = ([pair[i] for pair in runs] for i in (0, 1))
    clock = statistics.median(b.wall_s / a.wall_s for a, b in runs)
    cpu = statistics.median(b.cpu_s / max(a.cpu_s, 0.001) for a, b in runs)
    reached = "" if not row.least else "yes" if clock >= row.least else "no"
    wanted = "" if not row.least else f"{row.least:.3g} × ({row.aim:.3g} ×)"
    wall = [statistics.median(r.wall_s for r in part) for part in (ours, peer)]
    used = [statistics.median(r.cpu_s for r in part) for part in (ours, peer)]
    peak = max(r.peak_bytes for r in ours) / 1e6
    return (
        f"| {row.title} | {wall[0]:.2f} / {wall[1]:.2f} | {used[0]:.2f} / {used[1]:.2f} | {clock:.3g} × | "
        f"{cpu:.3g} × | {peak:,.0f} | {wanted} | {reached} |"
    )


HEAD = (
    "| ours / peer | time, s | CPU, s | time ratio | CPU ratio | peak, MB | at least (aim) | reached |\n"
    "|---|--:|--:|--:|--:|--:|--:|---|"
)


def alone(title: str, runs: Sequence[Run], least: str) -> str:
    wall, used = statistics.median(r.wall_s for r in runs), statistics.median(r.cpu_s for r in runs)
    peak = max(r.peak_bytes for r in runs) / 1e6
    return f"| {title} | {wall:.2f} | {used:.2f} | | | {peak:,.0f} | {least} | |"


def start(folder: Path, repeats: int) -> list[str]:
    """Start-up: --help, and a capture of 100 packets."""
    small = str(capture(folder, "100"))
    helps = [run((ROCEKIT, "--help")) for _ in range(repeats)]
    smalls = [run((ROCEKIT, "analyze", small)) for _ in range(repeats)]
    return [
        alone("rocekit --help", helps, "0.2 s (0.1 s)"),
        alone("analyze of 100 packets", smalls, "0.10 s"),
    ]


def memory(folder: Path, repeats: int) -> list[str]:
    """Peak memory at ten million packets, beside that at one million."""
    paths = [str(capture(folder, name)) for name in ("snaplen-128", "10-million")]
    one, ten = ([run((ROCEKIT, "analyze", path)) for _ in range(max(1, repeats // 2))] for path in paths)
    return [
        alone("1,000,000 packets", one, "peak"),
        alone("10,000,000 packets", ten, "300 MB (200 MB)"),
    ]


def two_captures(folder: Path, repeats: int) -> list[str]:
    """Two captures of the same packets beside one of them, and their memory."""
    first = capture(folder, SMALL)
    second = first.with_suffix(".later.pcap")
    if not second.exists():
        second.write_bytes(_later(first.read_bytes(), 5))
    both = (ROCEKIT, "analyze", "{}", str(second))
    row = Comparison("two captures of the same / one", both, SMALL, ANALYZE, SMALL, 1 / 3, 1 / 2.2)
    return [compare(row, folder, repeats)]


def _later(pcap: bytes, units: int) -> bytes:
    """A capture in which every packet comes so many units of its clock later."""
    found = bytearray(pcap)
    at, second = 24, 10**9 if pcap[:4] == bytes.fromhex("4d3cb2a1") else 10**6
    while at < len(found):
        seconds, fraction, length = struct.unpack_from("<3I", found, at)
        more, fraction = divmod(fraction + units, second)
        struct.pack_into("<2I", found, at, seconds + more, fraction)
        at += 16 + length
    return bytes(found)


def report(folder: Path, repeats: int) -> list[str]:
    """The report of a million packets beside its analysis, and the size of its page."""
    lines = []
    for name in (SMALL, "loss-1%"):
        ours = (ROCEKIT, "report", "{}", "-o", "{}.html")
        lines.append(
            compare(
                Comparison(f"report / analyze, {name}", ours, name, ANALYZE, name, 1 / 3, 1 / 2),
                folder,
                repeats,
            )
        )
        page = Path(f"{capture(folder, name)}.html")
        megabytes = page.stat().st_size / 1e6
        page.unlink()
        reached = "yes" if megabytes <= 10 else "no"
        lines.append(f"| the page of {name} | | | {megabytes:.1f} MB | | | at most 10 MB | {reached} |")
    return lines


def icrc_rate(_folder: Path, repeats: int) -> list[str]:
    """ICRCs of packets of 1,024 bytes a second, in processor time of this process."""
    import numpy as np

    from rocekit.packets.icrc_columns import icrc_columns

    size, many = 1024, 8192
    rng = np.random.default_rng(0)
    buffer = rng.integers(0, 256, size * many, np.uint8)
    start = np.arange(many) * size
    buffer[start] = 0x45
    bth = start + 28
    udp = np.ones(many, np.bool_)
    rates = []
    for _ in range(repeats * 4):
        began = time.process_time()
        icrc_columns(buffer, start, bth, start + size - 4, udp)
        rates.append(many / (time.process_time() - began))
    rate = statistics.median(rates) / 1e6
    reached = "yes" if rate >= 1.5 else "no"
    return [
        f"| ICRCs of 1,024-byte packets, one core | | | {rate:.2f} M/s | | | 1.5 M/s (5 M/s) | {reached} |"
    ]


def live(_folder: Path, _repeats: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(HERE / "live.py")], capture_output=True, text=True, check=False
    )
    return ["", *(done.stdout or done.stderr).splitlines()]


OTHERS: dict[str, Callable[[Path, int], list[str]]] = {
    "start": start,
    "memory": memory,
    "two-captures": two_captures,
    "report": report,
    "icrc-rate": icrc_rate,
    "live": live,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/rocekit-benchmarks"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--rows", default=",".join([*ROWS, *OTHERS]), help="of " + ", ".join([*ROWS, *OTHERS])
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}, medians of {arguments.repeats}\n\n{HEAD}",
        flush=True,
    )
    for name in arguments.rows.split(","):
        if name in ROWS:
            row = ROWS[name]
            missing = [words[0] for words in (row.ours, row.peer) if shutil.which(words[0]) is None]
            lines = [compare(row, arguments.folder, arguments.repeats)] if not missing else []
            if missing:
                print(f"left out: {name}, because {missing[0]} is not installed", file=sys.stderr)
        else:
            lines = OTHERS[name](arguments.folder, arguments.repeats)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
