"""The lab itself, booted once for all of these tests."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from places import INSIDE
from processes import command_line, eventually, exists

from rocekit import lab

PROGRAM = INSIDE / "lab_inside.py"


@dataclass(frozen=True)
class Booted:
    result: lab.LabResult
    stdout: str
    stderr: str
    facts: dict[str, Any]
    temporary: Path


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
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    lacking = lab.missing()
    if lacking:
        pytest.skip(f"the lab is missing: {'; '.join(lacking)}")
    stdout, stderr = io.BytesIO(), io.BytesIO()
    out = tmp_path_factory.mktemp("lab") / "out"
    # A temporary folder of its own shows what this lab leaves, whatever else runs on the machine.
    with (
        tempfile.TemporaryDirectory(prefix="rocekit-test-") as temporary,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(tempfile, "tempdir", temporary)
        result = lab.run([sys.executable, str(PROGRAM)], out=out, timeout_s=400, stdout=stdout, stderr=stderr)
        facts = json.loads((out / "facts.json").read_text())
        yield Booted(result, stdout.getvalue().decode(), stderr.getvalue().decode(), facts, Path(temporary))


@pytest.mark.lab
class TestBooted:
    def test_the_exit_status_is_the_command_s(self, booted: Booted) -> None:
        assert booted.result.returncode == 7, booted.stderr
        assert not booted.result.timed_out

    def test_the_command_s_output_is_free_of_the_boot_s(self, booted: Booted) -> None:
        assert booted.stdout == "to standard output\n"
        assert booted.stderr == "to standard error\n"

    def test_it_runs_in_the_caller_s_directory_with_the_caller_s_python(self, booted: Booted) -> None:
        assert booted.facts["directory"] == str(Path.cwd())
        assert booted.facts["python"] == sys.executable
        assert booted.facts["first_on_path"] == str(Path(sys.executable).parent)
        assert booted.facts["marked"] == "1"

    def test_both_devices_are_there_with_their_addresses(self, booted: Booted) -> None:
        assert booted.facts["gids"] == {
            "rxe0": ["::ffff:10.9.0.1", "fd00:9::1"],
            "rxe1": ["::ffff:10.9.0.2", "fd00:9::2"],
        }
        assert booted.facts["device_files"] >= 3

    @pytest.mark.parametrize("name", ["pingpong", "rping", "rping6", "perftest"])
    def test_every_packet_crosses_the_wire_and_is_captured(self, booted: Booted, name: str) -> None:
        """rxe's own counters say how many packets each device sent; tcpdump saw that many."""
        job = booted.facts["jobs"][name]
        assert job["server_result"] == job["client_result"] == {"returncode": 0, "killed": False}
        assert job["dropped_by_kernel"] == 0
        sent = [device["sent_pkts"] for device in job["counters"].values()]
        assert len(sent) == 2
        assert job["captured"] == sum(sent) > 0

    def test_netem_loses_what_it_is_told_to(self, booted: Booted) -> None:
        job = booted.facts["jobs"]["lossy"]
        counters = job["counters"]
        assert job["captured"] < sum(device["sent_pkts"] for device in counters.values())
        assert counters["rxe1"]["rcvd_pkts"] < counters["rxe0"]["sent_pkts"]

    @pytest.mark.parametrize(("name", "tried"), [("second-try", 2), ("no-rnr", 2), ("rping", 1)])
    def test_a_job_is_run_again_until_it_came_out_as_meant(
        self, booted: Booted, name: str, tried: int
    ) -> None:
        """Up to its tries: nothing here makes a receiver late, so that one never does."""
        job = booted.facts["jobs"][name]
        assert (job["tried"], job["client_result"]["returncode"]) == (tried, 0)

    def test_words_that_tc_does_not_know_are_refused(self, booted: Booted) -> None:
        assert "lossy 2%" in booted.facts["bad_netem"]

    def test_in_place_it_works_as_in_a_vm(self, booted: Booted) -> None:
        """Tried inside the VM, whose own wire was taken down for it."""
        in_place = booted.facts["in_place"]
        assert in_place["returncode"] == 3
        assert in_place["mode"] == "native"
        assert in_place["stdout"].split() == ["rxe0", "rxe1"]
        assert in_place["out"] == ["left"]

    @pytest.mark.parametrize("end", ["in_place", "killed", "refused"])
    def test_in_place_everything_is_put_back(self, booted: Booted, end: str) -> None:
        """After an orderly end, after the starter was killed with SIGKILL, and after a refused set-up."""
        assert booted.facts[end]["after"] == booted.facts["untouched"]

    def test_in_place_it_refuses_what_is_in_use(self, booted: Booted) -> None:
        assert "an interface named vb exists" in booted.facts["refused"]["error"]

    def test_nothing_is_left_on_this_machine(self, booted: Booted) -> None:
        assert eventually(lambda: not _leftovers(booted.temporary))
