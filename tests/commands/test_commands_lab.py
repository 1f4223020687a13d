"""``rocekit lab``: what the command line hands to the lab, and what it makes of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rocekit import cli, lab


class FakeLab:
    """Stands for the lab: remembers how it was asked, and gives or raises what it was told to."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.returncode = 0
        self.timed_out = False
        self.error: Exception | None = None

    def run(self, command: tuple[str, ...], **options: Any) -> lab.LabResult:
        self.asked = {"command": command, **options}
        if self.error is not None:
            raise self.error
        return lab.LabResult(
            returncode=self.returncode,
            timed_out=self.timed_out,
            out=Path("lab-out"),
            mode="vm",
            kernel="6.1.0",
            accelerator="tcg",
            setup_s=20.0,
            command_s=1.0,
            log="",
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    fake = FakeLab()
    monkeypatch.setattr(lab, "run", fake.run)
    return fake


def rocekit(*arguments: str) -> Result:
    return CliRunner().invoke(cli.rocekit, ["lab", *arguments])


def test_the_command_is_handed_over_with_its_own_options(fake: FakeLab) -> None:
    assert rocekit("--netem", "loss 2%", "--", "rping", "--help", "-q").exit_code == 0
    assert fake.asked["command"] == ("rping", "--help", "-q")
    assert fake.asked["netem"] == "loss 2%"
    assert rocekit("rping", "-q").exit_code == 0
    assert fake.asked["command"] == ("rping", "-q")


@pytest.mark.parametrize("status", [0, 1, 7, 124, 137])
def test_the_exit_status_is_the_command_s(fake: FakeLab, status: int) -> None:
    fake.returncode = status
    assert rocekit("--", "x").exit_code == status


def test_standard_output_is_the_command_s_alone(fake: FakeLab) -> None:
    result = rocekit("--", "x")
    assert not result.stdout
    assert "lab-out" in result.stderr
    assert not rocekit("--quiet", "--", "x").stderr


def test_a_lab_that_does_not_come_up_is_one_line(fake: FakeLab) -> None:
    fake.error = lab.LabError("missing: QEMU (apt-get install qemu-system-x86)")
    result = rocekit("--", "x")
    assert result.exit_code == 1
    assert result.stderr == "rocekit: error: missing: QEMU (apt-get install qemu-system-x86)\n"


@pytest.mark.parametrize(
    "arguments", [[], ["--timeout", "0", "--", "x"], ["--mode", "cloud", "--", "x"], ["--net", "x"]]
)
def test_a_wrong_command_line_starts_no_lab(fake: FakeLab, arguments: list[str]) -> None:
    assert rocekit(*arguments).exit_code == 2
    assert not fake.asked


def test_words_that_the_lab_refuses_are_a_wrong_command_line(fake: FakeLab) -> None:
    fake.error = ValueError('netem words "loss \'": No closing quotation')
    assert rocekit("--netem", "loss '", "--", "x").exit_code == 2
