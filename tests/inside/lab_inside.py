"""What test_lab.py runs inside the lab: tries things, writes what it saw to facts.json, judges nothing.

In place too it takes the lab's wire down and sets up one of its own, which nothing after it needs.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from amount import MORE

from rocekit import lab
from rocekit.lab.jobs import Job, run_until_meant
from rocekit.lab.net import A, LabError, set_netem, take_down

OUT = Path(os.environ["ROCEKIT_LAB_OUT"])
PERFTEST = "-F -x 1 -n 5 -s 65536 -u 18"
#: What runs only where more is asked for: test_lab_programs.py says the same of these programs by default.
TOLD_ELSEWHERE = ("pingpong", "rping6", "perftest")
JOBS = (
    Job("pingpong", "ibv_rc_pingpong -d rxe0 -g 1 -n 5 10.9.0.2", "ibv_rc_pingpong -d rxe1 -g 1 -n 5"),
    Job("rping", "rping -c -a 10.9.0.2 -C 2 -v", "rping -s -a 10.9.0.2 -C 2 -v"),
    Job("rping6", "rping -c -a fd00:9::2 -I fd00:9::1 -C 2 -v", "rping -s -a fd00:9::2 -C 2 -v"),
    Job("perftest", f"ib_send_bw -d rxe0 {PERFTEST} 10.9.0.2", f"ib_send_bw -d rxe1 {PERFTEST}"),
    Job(
        "lossy",
        f"ib_send_bw -d rxe0 {PERFTEST} 10.9.0.2",
        f"ib_send_bw -d rxe1 {PERFTEST}",
        # Every seventh packet or so; rxe tries again without end at the retry count that perftest uses, 7.
        netem="loss 15%",
    ),
    Job("second-try", "test -e $OUT/tried || { touch $OUT/tried; exit 3; }", tries=4),
    Job("no-rnr", "true", tries=2, strikes="send_rnr_err"),
)


def gids(device: str) -> list[str]:
    """The device's addresses, without the link-local ones, which depend on the MAC."""
    found = []
    for path in sorted(
        Path("/sys/class/infiniband", device, "ports/1/gids").iterdir(), key=lambda path: int(path.name)
    ):
        address = ipaddress.IPv6Address(path.read_text().strip())
        mapped = address.ipv4_mapped
        if int(address) and not address.is_link_local:
            found.append(f"::ffff:{mapped}" if mapped else str(address))
    return found


def network() -> dict[str, Any]:
    """What a lab changes on a machine, and must put back."""

    def shown(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    settings = {
        name: Path("/proc/sys/net/ipv4/conf/all", name).read_text()
        for name in ("accept_local", "rp_filter", "arp_ignore")
    }
    return {
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "devices": sorted(path.name for path in Path("/sys/class/infiniband").iterdir()),
        "rules": [shown("ip", family, "rule") for family in ("-4", "-6")],
        "tables": [shown("ip", "route", "show", "table", table) for table in ("101", "102")],
        "settings": settings,
    }


def settled(wanted: dict[str, Any]) -> dict[str, Any]:
    """The network, as soon as it is as wanted, at the latest in 30 s."""
    end = time.monotonic() + 30
    while (now := network()) != wanted and time.monotonic() < end:
        time.sleep(0.2)
    return now


def bad_netem() -> str:
    try:
        set_netem(A, "lossy 2%")
    except LabError as error:
        return str(error)
    return ""


def in_place() -> dict[str, Any]:
    """A lab of our own, where this one was."""
    facts: dict[str, Any] = {}
    take_down()
    for name in ("accept_local", "rp_filter", "arp_ignore"):
        Path("/proc/sys/net/ipv4/conf/all", name).write_text("2" if name == "rp_filter" else "0")
    untouched = facts["untouched"] = network()

    said = Path("/tmp/in-place.txt")
    with said.open("wb") as stdout:
        script = 'ls /sys/class/infiniband; touch "$ROCEKIT_LAB_OUT/left"; exit 3'
        result = lab.run(["sh", "-c", script], mode="native", out="/tmp/in-place", stdout=stdout)
    facts["in_place"] = {
        "returncode": result.returncode,
        "mode": result.mode,
        "stdout": said.read_text(),
        "out": sorted(path.name for path in Path("/tmp/in-place").iterdir()),
        "after": settled(untouched),
    }

    starter = subprocess.Popen(
        [sys.executable, "-c", "from rocekit import lab; lab.run(['sleep', '1000'], mode='native')"]
    )
    end = time.monotonic() + 60
    while network() == untouched and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(1.0)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    facts["killed"] = {"after": settled(untouched)}

    subprocess.run(["ip", "link", "add", "vb", "type", "dummy"], check=True)
    error = ""
    try:
        lab.run(["true"], mode="native")
    except LabError as caught:
        error = str(caught)
    finally:
        subprocess.run(["ip", "link", "del", "vb"], check=True)
    facts["refused"] = {"error": error, "after": settled(untouched)}
    return facts


def main() -> int:
    facts: dict[str, Any] = {
        "directory": str(Path.cwd()),
        "python": sys.executable,
        "first_on_path": os.environ["PATH"].split(os.pathsep)[0],
        "marked": os.environ["ROCEKIT_LAB"],
        "gids": {device: gids(device) for device in ("rxe0", "rxe1")},
        "device_files": sum(1 for path in Path("/dev/infiniband").iterdir() if path.is_char_device()),
    }
    work = Path("/tmp/lab-inside")
    work.mkdir()
    facts["jobs"] = {
        job.name: run_until_meant(job, work) for job in JOBS if MORE or job.name not in TOLD_ELSEWHERE
    }
    shutil.rmtree(work)
    facts["bad_netem"] = bad_netem()
    facts |= in_place()
    (OUT / "facts.json").write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
