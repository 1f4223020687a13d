"""A full disk under each command that writes: one line, status 1, and what was there is as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 64 << 10
OLD = "of yesterday"
MAIN = 'import sys; sys.argv[0] = "rocekit"; from rocekit.cli import main; main()'

#: Arguments, and the old file of which something would become another.
WRITING: dict[str, tuple[tuple[str, ...], str]] = {
    "annotate": (("annotate", "BIG", "DISK/x.pcapng"), "x.pcapng"),
    "craft": (("craft", "--op", "RC_SEND_ONLY", "--count", "5000", "-w", "DISK/x.pcap"), "x.pcap"),
    "export csv": (("export", "BIG", "--to", "csv", "-o", "DISK/out"), "out/packets.csv"),
    "export qlog": (("export", "BIG", "--to", "qlog", "-o", "DISK/x.sqlog"), "x.sqlog"),
    "generate": (("generate", "DISK/x.pcap", "--packets", "5000"), "x.pcap"),
    "plot": (("plot", "BIG", "-o", "DISK/x.png", "--dpi", "600"), "x.png"),
    "replay": (("replay", "BIG", "-w", "DISK/x.pcap"), "x.pcap"),
    "report": (("report", "BIG", "-o", "DISK/x.html"), "x.html"),
    "slice": (("slice", "BIG", "DISK/x.pcapng", "--from", "0"), "x.pcapng"),
}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "big.pcap"
    subprocess.run([sys.executable, "-c", MAIN, "generate", path, "--packets", "2000"], check=True)
    return path


@pytest.fixture(scope="module")
def namespaces() -> None:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "x", "/mnt"]
    probe = subprocess.run(command, capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no file system of our own in a namespace: {probe.stderr.decode().strip()}")


@pytest.mark.parametrize("name", WRITING)
def test_a_full_disk_is_one_line_and_the_old_file_stays(
    name: str, big: Path, tmp_path: Path, root: None, namespaces: None
) -> None:
    arguments, old = WRITING[name]
    disk = tmp_path / "disk"
    disk.mkdir()
    words = [word.replace("DISK", str(disk)).replace("BIG", str(big)) for word in arguments]
    script = (
        f'mount -t tmpfs -o size={SIZE} x {disk} && mkdir -p "$(dirname {disk}/{old})" && '
        f'printf "{OLD}" > {disk}/{old} && shift && {{ "$@"; echo "status $?"; }} && cat {disk}/{old} && '
        f"echo && find {disk} -mindepth 1 -type f"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", "-", sys.executable, "-c", MAIN, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "status 1" in done.stdout, (done.stdout, done.stderr)
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, said
    assert "No space left on device" in said[0]
    after = done.stdout.partition("status 1\n")[2].splitlines()
    assert after[0] == OLD
    assert [Path(path).name for path in after[1:]] == [Path(old).name]
