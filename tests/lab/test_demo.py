"""scripts/demo says of each run what it is: no lab, a connection that a fault ended, or a good run.

A `rocekit` that only plays the outcome stands in for the real one, so no lab boots here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from places import ROOT

#: Plays a lab that boots or not, and a run of the demo's command in it.
ROCEKIT = r"""#!/usr/bin/env bash
echo "called: $*" >>calls
case $1 in
lab)
    while [ "$1" != --out ]; do shift; done
    mkdir -p "$2"
    [ "$BOOTS" = yes ] || { echo "rocekit: error: the lab's VM cannot be started" >&2; exit 1; }
    echo "the lab is up: 6.1.0"
    [ -z "$PACKETS" ] || echo "$PACKETS $TRANSFERS" >"$2/ping-write.pcapng"
    printf '{"event":"wc_polled","status":"%s"}\n' "$WC" >"$2/ping-write.journal.jsonl"
    exit "$ENDED" ;;
inject)
    echo "12 5" >"demo-out/soft.pcapng"
    exit "${SOFT:-0}" ;;
analyze)
    read -r packets transfers <"${@: -1}"
    transfers=$([ "$transfers" = 0 ] && echo '[]' || echo '[{')
    printf '"roce_packets": %s,\n"transfers": %s\n' "$packets" "$transfers" ;;
esac
"""

BOOTED = {"BOOTS": "yes", "PACKETS": "40", "TRANSFERS": "5", "WC": "SUCCESS", "ENDED": "0"}


def demo(folder: Path, **outcome: str) -> tuple[int, str, str]:
    """(exit status, what it printed, what it called) of a run with such an outcome."""
    (folder / "scripts").mkdir()
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "pcaps").mkdir()
    (folder / "pcaps/ping-write-loss.pcapng").write_text("30 5\n")
    shutil.copy(ROOT / "scripts/demo", folder / "scripts")
    shared = (ROOT / "scripts/setup.sh").read_text()
    (folder / "scripts/setup.sh").write_text(shared + '\nset_up() { PATH="$PWD/.venv/bin:$PATH"; }\n')
    fake = folder / ".venv/bin/rocekit"
    fake.write_text(ROCEKIT)
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "scripts/demo"), "loss 9%"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder), **BOOTED, **outcome},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, done.stdout, (folder / "calls").read_text()


def explained(calls: str) -> str:
    """The capture that analyze was called for, and then explain."""
    *_, analyzed, _, told = [call.split() for call in calls.splitlines()]
    assert (analyzed[1], told[1]) == ("analyze", "explain")
    assert analyzed[-1] == told[-1]
    return told[-1]


def test_a_run_that_ends_well_is_explained(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path)
    assert status == 0
    assert explained(calls) == "demo-out/ping-write.pcapng"
    assert "RETRY_EXC_ERR" not in printed
    assert "left out: nothing" in printed


def test_a_connection_that_the_fault_ended_is_explained_from_its_own_capture(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path, WC="RETRY_EXC_ERR", ENDED="1")
    assert status == 0
    assert "== the connection ended with RETRY_EXC_ERR: " in printed
    assert "The fault (loss 9%) did this" in printed
    assert explained(calls) == "demo-out/ping-write.pcapng"
    assert "does not run here" not in printed
    assert "inject" not in calls
    kept = sorted(path.name for path in (tmp_path / "demo-out").iterdir())
    assert kept == ["ping-write.journal.jsonl", "ping-write.pcapng"]


def test_another_error_of_the_run_is_not_called_a_lost_connection(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path, ENDED="1")
    assert status == 0
    assert "== the run ended early, by the error above" in printed
    assert "RETRY_EXC_ERR" not in printed
    assert explained(calls) == "demo-out/ping-write.pcapng"


def test_a_run_that_was_killed_is_shown_and_fails(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path, ENDED="124")
    assert status == 1
    assert "== the run ended with status 124" in printed
    assert explained(calls) == "demo-out/ping-write.pcapng"


def test_a_capture_without_transfers_is_analyzed_only(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path, TRANSFERS="0", ENDED="1")
    assert status == 0
    assert "== no transfer started" in printed
    assert "called: explain" not in calls


def test_a_lab_that_does_not_boot_gives_way_to_soft_devices(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path, BOOTS="no")
    assert status == 0
    assert "== the lab does not run here: " in printed
    assert "  - traffic of the kernel's own devices: the lab does not run here" in printed
    assert explained(calls) == "demo-out/soft.pcapng"


def test_where_not_even_soft_devices_run_an_older_capture_is_explained(tmp_path: Path) -> None:
    status, printed, calls = demo(tmp_path, BOOTS="no", SOFT="1")
    assert status == 0
    assert "  - traffic of rocekit's own devices: see above" in printed
    assert explained(calls) == "pcaps/ping-write-loss.pcapng"


@pytest.mark.parametrize("packets", ["", "0"])
def test_a_lab_that_booted_and_captured_nothing_is_not_called_one_that_does_not_run(
    tmp_path: Path, packets: str
) -> None:
    status, printed, calls = demo(tmp_path, PACKETS=packets, ENDED="1")
    assert status == 1
    assert "does not run here" not in printed
    assert "== the lab ran, but there is no packet in its capture" in printed
    assert explained(calls) == "demo-out/soft.pcapng"
