"""What test_trace_lab.py runs in the lab: `rocekit trace` and tcpdump side by side while perftest sends.

The captures are written in the guest's memory first, because the shared folder is slow.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lab_forks import PRELOADED, Forks, Run

from rocekit.lab.job_programs import wait_until_listening

PACKETS = 3000
"""Small packets of one direction, in less than a second."""
#: What ``rocekit trace`` loads when it is called.
LOADS = (
    *(*PRELOADED, "rocekit.commands.trace", "rocekit.commands.trace_lines", "rocekit.commands.sandbox"),
    *("rocekit.live.tracing", "rocekit.live.counted", "rocekit.commands.shared", "rocekit.report.text"),
)
_READY_S = 120.0
_PERFTEST = ("ib_send_bw", "-x", "1", "-s", "64", "-n", str(PACKETS))


def _sockets() -> int:
    """The packet sockets of this machine."""
    return len(Path("/proc/net/packet").read_text().splitlines()) - 1


def main() -> int:
    out = Path(os.environ["ROCEKIT_LAB_OUT"])
    with Forks(*LOADS) as forks, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        dump, traced = Path(folder, "tcpdump.pcap"), Path(folder, "trace.pcapng")
        before = _sockets()
        with (out / "lines.json").open("wb") as lines:
            captures: list[subprocess.Popen[bytes] | Run] = [
                subprocess.Popen(
                    ["tcpdump", "-i", "va", "-B", "32768", "-w", str(dump), "udp", "port", "4791"]
                ),
                forks.start("trace", "va", "-w", str(traced), "--format", "json", stdout=lines),
            ]
            until = time.monotonic() + _READY_S
            while _sockets() < before + len(captures) and time.monotonic() < until:
                time.sleep(0.1)
            server = subprocess.Popen([_PERFTEST[0], "-d", "rxe1", *_PERFTEST[1:]])
            wait_until_listening(server, 10)
            subprocess.run([_PERFTEST[0], "-d", "rxe0", *_PERFTEST[1:], "10.9.0.2"], check=True, timeout=120)
            server.wait(60)
            time.sleep(1)
            for capture in captures:
                capture.send_signal(signal.SIGINT)
            for capture in captures:
                capture.wait(120)
        for path in (dump, traced):
            shutil.copy(path, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
