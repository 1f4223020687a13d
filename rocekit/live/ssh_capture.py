"""Frames of another machine's interface: tcpdump there, over SSH, read here. rocekit is not needed there."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocekit.errors import CaptureError
from rocekit.files.frames import FrameBatch
from rocekit.files.reader import open_capture
from rocekit.live.commented import StreamSource

#: RoCE v2 and v1 in Ethernet frames; the kernel there has put an outer VLAN tag aside.
ROCE: Final = "udp port 4791 or ether proto 0x8915"
_CONNECT_S: Final = 15
_GRACE_S: Final = 2.0
#: Ends tcpdump with the connection: alone it would notice only at the next packet, which may never come.
_WATCHED: Final = "exec 3<&0; {} & p=$!; {{ cat; kill $p; }} <&3 >/dev/null 2>&1 & wait $p"
#: The most of what ssh says that is kept.
_SAID_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class RemoteInterface:
    """An interface of another machine, and how to get there.

    Attributes:
        host: as ``ssh`` takes it, an alias of ~/.ssh/config too.
        roce: the capture filter that makes it RoCE; capture_filter: another one, which must match too.
        sudo: run tcpdump, and the shell that ends it, as root, by ``sudo -n``.
        program: the SSH client.
    """

    host: str
    interface: str
    port: int | None = None
    user: str | None = None
    key: Path | None = None
    roce: str = ROCE
    capture_filter: str | None = None
    snaplen: int = 0
    sudo: bool = False
    program: str = "ssh"

    def command(self) -> list[str]:
        """The command that writes pcap to its standard output."""
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}"]
        options += ["-o", "ServerAliveInterval=15"]
        options += [] if self.port is None else ["-p", str(self.port)]
        options += [] if self.user is None else ["-l", self.user]
        options += [] if self.key is None else ["-i", str(self.key)]
        wanted = self.roce
        if self.capture_filter is not None:
            wanted = f"({self.roce}) and ({self.capture_filter})" if self.roce else self.capture_filter
        capture = ["tcpdump", "-i", self.interface, "-n", "-U", "-s", str(self.snaplen)]
        capture += ["--time-stamp-precision=nano", "-w", "-", "--", wanted]
        watched = ["sh", "-c", _WATCHED.format(shlex.join(capture))]
        if self.sudo:
            watched = ["sudo", "-n", *watched]
        return [self.program, *options, "--", self.host, shlex.join(watched)]


@contextmanager
def captured_over_ssh(remote: RemoteInterface) -> Iterator[Iterator[FrameBatch]]:
    """The frames of a remote interface from now on, with empty batches when nothing comes.

    Raises:
        CaptureError: there is no ssh, or the other end does not capture; says what ssh and tcpdump said.
    """
    where = f"{remote.interface} of {remote.host}"
    try:
        process = subprocess.Popen(
            remote.command(),
            bufsize=0,  # a read returns what is there
            stdin=subprocess.PIPE,  # open while this process captures
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a signal is for this process, which ends ssh then
        )
    except OSError as error:
        raise CaptureError(f"{remote.program} cannot be started: {error.strerror}", file=where) from None
    assert process.stdout is not None
    assert process.stderr is not None
    said = _Said(process)
    try:
        yield _batches(process, where, said)
    finally:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _batches(process: subprocess.Popen[bytes], where: str, said: _Said) -> Iterator[FrameBatch]:
    """The batches; an error at their end says what the other end said."""

    def read() -> Iterator[FrameBatch]:
        # The file's beginning comes with the first packet or before it: it is waited for here.
        with open_capture(process.stdout) as reader:  # type: ignore[arg-type]
            yield from reader

    try:
        yield from StreamSource(read())
    except CaptureError as error:
        words = said.words()
        raise CaptureError(words or str(error), file=where) from None
    if process.wait() != 0:
        raise CaptureError(said.words() or f"ssh ended with status {process.returncode}", file=where)


class _Said:
    """The last of what a process says on its standard error."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        import threading

        self._kept = b""
        self._process = process
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._kept = (self._kept + line)[-_SAID_BYTES:]

    def words(self) -> str:
        """What it said, in one line, once it has ended."""
        self._thread.join(_GRACE_S)
        lines = [line.strip() for line in self._kept.decode(errors="replace").splitlines() if line.strip()]
        heard = [line for line in lines if not line.startswith(("tcpdump: listening on", "Warning:"))]
        return "; ".join(heard[-3:])
