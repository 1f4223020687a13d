"""Each missing piece of the lab is named with the command that adds it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rocekit import lab
from rocekit.lab import checks, kernels
from rocekit.lab.net import LabError


def kernel_files(root: Path, version: str, module: str | None = "rdma_rxe.ko") -> None:
    (root / "boot").mkdir(exist_ok=True)
    (root / "boot" / f"vmlinuz-{version}").write_bytes(b"kernel")
    folder = root / "modules" / version / "kernel/drivers/infiniband/sw/rxe"
    folder.mkdir(parents=True)
    if module is not None:
        (folder / module).write_bytes(b"module")


def newest(root: Path) -> str | None:
    kernel = kernels.newest_kernel(root / "boot", root / "modules")
    return None if kernel is None else kernel.version


def test_the_newest_kernel_is_the_highest_version_not_the_last_name(tmp_path: Path) -> None:
    for version in ("6.1.0-9-amd64", "6.1.0-56-amd64", "5.10.0-100-amd64"):
        kernel_files(tmp_path, version)
    assert newest(tmp_path) == "6.1.0-56-amd64"
    kernel_files(tmp_path, "6.12.3-amd64", "rdma_rxe.ko.xz")
    assert newest(tmp_path) == "6.12.3-amd64"


def test_a_kernel_without_rxe_is_passed_over(tmp_path: Path) -> None:
    kernel_files(tmp_path, "6.1.0-56-cloud-amd64", None)
    assert newest(tmp_path) is None
    kernel_files(tmp_path, "6.1.0-9-amd64")
    assert newest(tmp_path) == "6.1.0-9-amd64"


def test_a_kernel_whose_modules_are_gone_is_passed_over(tmp_path: Path) -> None:
    kernel_files(tmp_path, "6.1.0-9-amd64")
    (tmp_path / "boot" / "vmlinuz-6.9.0-amd64").write_bytes(b"kernel")
    assert newest(tmp_path) == "6.1.0-9-amd64"


def test_the_module_index_is_believed_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "kernel/drivers/rxe/rdma_rxe.ko.zst: kernel/net/udp_tunnel.ko.zst\n"
    )
    assert kernels.has_module(tmp_path, "rdma_rxe")
    assert not kernels.has_module(tmp_path, "rdma_rx")
    assert not kernels.has_module(tmp_path, "udp_tunnel")


def test_a_module_that_is_built_into_the_kernel_is_there(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text("kernel/net/udp_tunnel.ko:\n")
    (tmp_path / "modules.builtin").write_text("kernel/drivers/rxe/rdma_rxe.ko\n")
    assert kernels.has_module(tmp_path, "rdma_rxe")
    assert not kernels.has_module(tmp_path, "ib_core")


def test_the_pieces_of_the_lab_are_those_of_its_two_ways_each_once() -> None:
    assert set(checks.check()) == {*checks.native(), *checks.vm()}
    assert len(checks.check()) == len(set(checks.check()))


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing of the lab is installed."""
    monkeypatch.setattr(checks, "_which", lambda program: None)
    monkeypatch.setattr(checks, "newest_kernel", lambda: None)
    monkeypatch.setattr(checks, "virtme_run", lambda: None)
    monkeypatch.setattr(checks, "qemu", lambda: None)
    monkeypatch.setattr(checks, "has_module", lambda folder, name: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("bare_machine")
def test_each_missing_piece_is_named_with_the_command_that_adds_it() -> None:
    lines = lab.missing()
    for command in (
        "apt-get install qemu-system",
        "apt-get install linux-image",
        "pip install 'rocekit[lab]'",
        "apt-get install busybox-static",
        "apt-get install iproute2",
        "apt-get install kmod",
    ):
        assert any(command in line for line in lines), command
    assert all("\n" not in line for line in lines)


@pytest.mark.usefixtures("bare_machine")
def test_a_lab_that_cannot_start_says_why_in_one_line() -> None:
    with pytest.raises(LabError) as caught:
        lab.run(["true"])
    assert "apt-get install qemu-system" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("bare_machine")
def test_in_place_without_root_says_so() -> None:
    with pytest.raises(LabError, match="root"):
        lab.run(["true"], mode="native")


def test_the_lab_is_not_missing_anything_where_one_of_its_two_ways_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "native_obstacle", lambda: None)
    monkeypatch.setattr(checks, "vm_obstacle", lambda: "no QEMU")
    assert lab.missing() == []
    assert lab.pick_mode() in ("native", "vm")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ([], {}),
        (["true"], {"timeout_s": 0}),
        (["true"], {"boot_timeout_s": -1}),
        (["true"], {"mode": "cloud"}),
        (["true"], {"netem": "loss '2%"}),
        (["true"], {"mode": "native", "counted": True}),
    ],
)
def test_a_wrong_call_is_a_value_error(command: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        lab.run(command, **options)
