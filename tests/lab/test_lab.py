"""The lab itself, booted once for all of these tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from amount import needs_more
from lab_boot import Boot, Booted, Part
from lab_parts import RETURNCODE
from places import INSIDE
from processes import command_line, eventually, exists

PART = Part("machine", (str(INSIDE / "lab_inside.py"),), timeout_s=400, first=True)


def _leftovers(temporary: Path) -> list[str]:
    """Processes and files by which a lab that used this temporary folder would show that it is not over."""
    inside = str(temporary).encode()
    processes = [
        f"process {process.name}"
        for process in Path("/proc").glob("[0-9]*")
        if inside in command_line(process) and exists(int(process.name))
    ]
    return [str(path) for path in temporary.iterdir()] + processes


@pytest.fixture(scope="module")
def facts(boot: Boot) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((boot.of(PART) / "facts.json").read_text())
    return found


@pytest.fixture(scope="module")
def booted(boot: Boot) -> Booted:
    found = boot.booted(PART)
    assert found.result is not None, found.error
    return found


@pytest.mark.lab(PART)
class TestBooted:
    def test_the_exit_status_is_the_command_s(self, booted: Booted) -> None:
        assert booted.result is not None
        assert booted.result.returncode == RETURNCODE, booted.stderr
        assert not booted.result.timed_out

    def test_the_command_s_output_is_free_of_the_boot_s(self, booted: Booted) -> None:
        assert booted.stdout == "to standard output\n"
        assert booted.stderr == "to standard error\n"

    def test_it_runs_in_the_caller_s_directory_with_the_caller_s_python(self, facts: dict[str, Any]) -> None:
        assert facts["directory"] == str(Path.cwd())
        assert facts["python"] == sys.executable
        assert facts["first_on_path"] == str(Path(sys.executable).parent)
        assert facts["marked"] == "1"

    def test_both_devices_are_there_with_their_addresses(self, facts: dict[str, Any]) -> None:
        assert facts["gids"] == {
            "rxe0": ["::ffff:10.9.0.1", "fd00:9::1"],
            "rxe1": ["::ffff:10.9.0.2", "fd00:9::2"],
        }
        assert facts["device_files"] >= 3

    @pytest.mark.parametrize("name", ["pingpong", "rping", "rping6", "perftest"])
    def test_every_packet_crosses_the_wire_and_is_captured(self, facts: dict[str, Any], name: str) -> None:
        """rxe's own counters say how many packets each device sent; tcpdump saw that many.

        test_the_capture_is_whole of test_lab_programs.py says it by default of all programs that run without
        faults, on the same wire; here one of them has to say it.
        """
        if name != "rping":
            needs_more()
        job = facts["jobs"][name]
        assert job["server_result"] == job["client_result"] == {"returncode": 0, "killed": False}
        assert job["dropped_by_kernel"] == 0
        sent = [device["sent_pkts"] for device in job["counters"].values()]
        assert len(sent) == 2
        assert job["captured"] == sum(sent) > 0

    def test_netem_loses_what_it_is_told_to(self, facts: dict[str, Any]) -> None:
        job = facts["jobs"]["lossy"]
        counters = job["counters"]
        assert job["captured"] < sum(device["sent_pkts"] for device in counters.values())
        assert counters["rxe1"]["rcvd_pkts"] < counters["rxe0"]["sent_pkts"]

    @pytest.mark.parametrize(("name", "tried"), [("second-try", 2), ("no-rnr", 2), ("rping", 1)])
    def test_a_job_is_run_again_until_it_came_out_as_meant(
        self, facts: dict[str, Any], name: str, tried: int
    ) -> None:
        """Up to its tries: nothing here makes a receiver late, so that one never does."""
        job = facts["jobs"][name]
        assert (job["tried"], job["client_result"]["returncode"]) == (tried, 0)

    def test_words_that_tc_does_not_know_are_refused(self, facts: dict[str, Any]) -> None:
        assert "lossy 2%" in facts["bad_netem"]

    def test_in_place_it_works_as_in_a_vm(self, facts: dict[str, Any]) -> None:
        """Tried inside the VM, whose own wire was taken down for it."""
        in_place = facts["in_place"]
        assert in_place["returncode"] == 3
        assert in_place["mode"] == "native"
        assert in_place["stdout"].split() == ["rxe0", "rxe1"]
        assert in_place["out"] == ["left"]

    @pytest.mark.parametrize("end", ["in_place", "killed", "refused"])
    def test_in_place_everything_is_put_back(self, facts: dict[str, Any], end: str) -> None:
        """After an orderly end, after the starter was killed with SIGKILL, and after a refused set-up."""
        assert facts[end]["after"] == facts["untouched"]

    def test_in_place_it_refuses_what_is_in_use(self, facts: dict[str, Any]) -> None:
        assert "an interface named vb exists" in facts["refused"]["error"]

    def test_nothing_is_left_on_this_machine(self, booted: Booted) -> None:
        assert eventually(lambda: not _leftovers(booted.temporary))
