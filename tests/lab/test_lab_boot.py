"""The one boot that the lab's test files share: a part that fails keeps no other from running."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lab_boot
import pytest
from lab_boot import Boot, Part
from lab_parts import RETURNCODE, STATUS

from rocekit import lab
from rocekit.lab.net import LabError

ONE, TWO, THREE = (Part(name, ("-c", name), timeout_s=10) for name in ("one", "two", "three"))


class FakeLab:
    """Stands in for the lab: parts leave a file; some fail, and one may end the whole machine.

    ``slow``: these run out of time, ``lost``: the files of these do not come back, where other parts run too.
    """

    def __init__(
        self,
        *,
        fail: Sequence[str] = (),
        dies_in: str | None = None,
        slow: Sequence[str] = (),
        lost: Sequence[str] = (),
        boots_fail: int = 0,
    ) -> None:
        self.fail, self.dies_in, self.slow, self.lost = fail, dies_in, slow, lost
        self.boots_fail = boots_fail
        self.boots: list[list[str]] = []

    def run(self, command: Sequence[str], *, out: Path, **options: Any) -> lab.LabResult:
        tasks = json.loads(Path(command[2]).read_text())
        self.boots.append([task["name"] for task in tasks])
        if len(self.boots) <= self.boots_fail:
            raise LabError("the lab did not start within 300 s; it was killed")
        for task in tasks:
            folder = out / task["name"]
            folder.mkdir(parents=True, exist_ok=True)
            if task["name"] == self.dies_in and len(tasks) > 1:
                raise LabError("the VM died while the command ran")
            failed = task["name"] in self.fail
            slow = task["name"] in self.slow and len(tasks) > 1
            (folder / "stderr.txt").write_text("no such device\n" if failed else "")
            files = {"stderr.txt": 15 * failed}
            if task["name"] in self.lost and len(tasks) > 1:
                files["manifest.json"] = 100
            ended = {"returncode": int(failed), "timed_out": slow, "files": files}
            (folder / STATUS).write_text(json.dumps(ended))
        return lab.LabResult(RETURNCODE, False, out, "vm", "6.1.0", "tcg", 1.0, 1.0, "")


def booted(monkeypatch: pytest.MonkeyPatch, fake: FakeLab, folder: Path, *parts: Part) -> Boot:
    monkeypatch.setattr(lab, "run", fake.run, raising=False)
    monkeypatch.setattr(lab, "missing", list, raising=False)
    monkeypatch.setattr(lab_boot, "EVERYTHING", False)
    monkeypatch.setattr(lab_boot, "lab_output", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))  # nobody closes it
    return Boot(parts, folder)


def test_all_parts_run_in_one_boot_those_first_that_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake, first = FakeLab(), Part("zero", ("-c", ""), timeout_s=10, first=True)
    boot = booted(monkeypatch, fake, tmp_path, ONE, first, TWO)
    assert [boot.of(part).name for part in (TWO, ONE, first, TWO)] == ["two", "one", "zero", "two"]
    assert fake.boots == [["zero", "one", "two"]]


def test_a_part_that_fails_says_why_and_the_others_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeLab(fail=["one"])
    boot = booted(monkeypatch, fake, tmp_path, ONE, TWO)
    with pytest.raises(AssertionError, match="no such device"):
        boot.of(ONE)
    assert boot.of(TWO).is_dir()
    assert len(fake.boots) == 1


def test_parts_that_a_dead_machine_did_not_come_to_have_a_boot_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeLab(dies_in="two")
    boot = booted(monkeypatch, fake, tmp_path, ONE, TWO, THREE)
    assert all(boot.of(part).is_dir() for part in (THREE, ONE, TWO))
    assert fake.boots == [["one", "two", "three"], ["three"], ["two"]]


def test_a_part_that_ran_out_of_time_beside_others_has_a_boot_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeLab(slow=["two"])
    boot = booted(monkeypatch, fake, tmp_path, ONE, TWO)
    assert all(boot.of(part).is_dir() for part in (ONE, TWO, TWO))
    assert fake.boots == [["one", "two"], ["two"]]


def test_a_part_whose_files_came_back_in_part_has_a_boot_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeLab(lost=["one"])
    boot = booted(monkeypatch, fake, tmp_path, ONE, TWO)
    assert all(boot.of(part).is_dir() for part in (ONE, TWO, ONE))
    assert fake.boots == [["one", "two"], ["one"]]


def test_a_lab_that_does_not_come_up_is_started_once_more(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeLab(boots_fail=1)
    boot = booted(monkeypatch, fake, tmp_path, ONE)
    assert boot.of(ONE).is_dir()
    never = booted(monkeypatch, FakeLab(boots_fail=9), tmp_path, TWO)
    with pytest.raises(LabError, match="did not start"):
        never.of(TWO)


def test_a_part_that_cannot_run_here_is_skipped_and_not_booted_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeLab()
    without = Part("without", ("-c", ""), timeout_s=10, obstacle=lambda: "no perftest")
    boot = booted(monkeypatch, fake, tmp_path, without, ONE)
    with pytest.raises(pytest.skip.Exception, match="no perftest"):
        boot.of(without)
    assert boot.of(ONE).is_dir()
    assert fake.boots == [["one"]]


def test_what_an_earlier_boot_left_is_judged_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeLab()
    (tmp_path / "kept" / "one").mkdir(parents=True)
    booted(monkeypatch, fake, tmp_path)
    monkeypatch.setattr(lab_boot, "lab_output", lambda: tmp_path / "kept")
    boot = Boot([ONE, TWO], tmp_path)
    assert [boot.of(part) for part in (ONE, TWO)] == [tmp_path / "kept" / name for name in ("one", "two")]
    assert fake.boots == [["two"]]
