"""What ``rocekit extcap`` answers: sentences of the extcap protocol (extcap(4)), and its launcher."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocekit._version import VERSION
from rocekit.errors import RocekitError

if TYPE_CHECKING:
    from rocekit.live.ssh_capture import RemoteInterface

PREFIX: Final = "rocekit-"
#: The interface of all other machines; it cannot be the name of one here, which has at most 15 bytes.
OVER_SSH: Final = "rocekit-over-ssh-other-host"
_ASK_S: Final = 10
_MADE_BY: Final = "# Made by `rocekit extcap --install`."


@dataclass(frozen=True, slots=True)
class Asked:
    """What Wireshark asks for, by the names of the command's options."""

    interface: str | None = None
    capture_filter: str | None = None
    fifo: Path | None = None
    promiscuous: bool = False
    tunnels: bool = False
    no_story: bool = False
    snaplen: int = 65535
    remote_host: str | None = None
    remote_port: int | None = None
    remote_username: str | None = None
    remote_interface: str | None = None
    remote_filter: str | None = None
    remote_sudo: bool = False
    sshkey: Path | None = None
    ssh: str = "ssh"

    @property
    def local_name(self) -> str | None:
        """The interface of this machine; None for one of another.

        Raises:
            RocekitError: it is none of rocekit's.
        """
        if self.interface == OVER_SSH:
            return None
        if self.interface is None or not self.interface.startswith(PREFIX):
            raise RocekitError(f"{self.interface} is not one of rocekit's: their names begin with {PREFIX}")
        return self.interface.removeprefix(PREFIX)

    def remote(self) -> RemoteInterface:
        """The interface of another machine.

        Raises:
            RocekitError: its host or name is missing.
        """
        from rocekit.live.ssh_capture import ROCE, RemoteInterface

        if not self.remote_host or not self.remote_interface:
            missing = "host" if not self.remote_host else "interface"
            raise RocekitError(
                f"name the remote {missing}: --remote-{missing}, in Wireshark the gear beside it"
            )
        return RemoteInterface(
            self.remote_host,
            self.remote_interface,
            port=self.remote_port,
            user=self.remote_username or None,
            key=self.sshkey,
            roce=ROCE if self.remote_filter is None else self.remote_filter,
            capture_filter=self.capture_filter,
            snaplen=self.snaplen,
            sudo=self.remote_sudo,
            program=self.ssh,
        )


NAMES: Final = frozenset(field.name for field in fields(Asked))


def _sentence(word: str, **values: str) -> str:
    return f"{word} " + "".join(f"{{{name}={value}}}" for name, value in values.items())


def interfaces() -> Iterable[str]:
    """This program and its interfaces."""
    yield _sentence("extcap", version=VERSION, display="rocekit")
    for _, name in socket.if_nameindex():
        yield _sentence("interface", value=PREFIX + name, display=f"RoCE with its story: {name}")
    yield _sentence("interface", value=OVER_SSH, display="RoCE with its story, over SSH")


def dlts(interface: str) -> Iterable[str]:
    """The link type of an interface; the capture itself says which it is in truth."""
    del interface
    yield _sentence("dlt", number="1", name="EN10MB", display="Ethernet")


def config(interface: str) -> Iterable[str]:
    """The options of an interface."""
    number = 0

    def argument(call: str, display: str, kind: str, **more: str) -> str:
        nonlocal number
        number += 1
        return _sentence("arg", number=str(number - 1), call=call, display=display, type=kind, **more)

    flag = "boolflag"
    if interface == OVER_SSH:
        there, how = {"group": "Remote"}, {"group": "SSH"}
        yield argument(
            "--remote-host",
            "Host",
            "string",
            tooltip="A name, an address, or an alias of ~/.ssh/config",
            required="true",
            **there,
        )
        yield argument("--remote-interface", "Interface", "string", required="true", **there)
        yield argument("--remote-filter", "Capture filter of RoCE", "string", default=_roce(), **there)
        yield argument("--remote-sudo", "Use sudo", flag, default="false", **there)
        yield argument("--remote-port", "Port", "unsigned", range="1,65535", **how)
        yield argument("--remote-username", "User", "string", **how)
        yield argument("--sshkey", "Private key", "fileselect", mustexist="true", **how)
        yield argument(
            "--snaplen", "Bytes of each frame", "unsigned", range="64,262144", default="65535", **there
        )
        yield argument("--no-story", "Without comments", flag, default="false", **there)
        return
    yield argument("--promiscuous", "Frames for other stations too", flag, default="false")
    yield argument("--tunnels", "Packets in tunnels too", flag, default="false")
    yield argument("--snaplen", "Bytes of each frame", "unsigned", range="64,262144", default="65535")
    yield argument("--no-story", "Without comments", flag, default="false")


def _roce() -> str:
    from rocekit.live.ssh_capture import ROCE

    return ROCE


def launcher(folder: Path | None) -> Path:
    """Where the launcher belongs: in the folder that this machine's Wireshark reads.

    Wireshark 4.2 and later says which one that is; before, it is the folder of its settings.
    """
    return (folder or _told_folder() or _settings_folder()) / "rocekit"


def _told_folder() -> Path | None:
    for program in ("tshark", "wireshark"):
        try:
            said = subprocess.run(
                [program, "-G", "folders"], capture_output=True, text=True, timeout=_ASK_S, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        for line in said.splitlines():
            title, _, place = line.partition(":")
            if title.strip().lower() == "personal extcap path" and place.strip():
                return Path(place.strip())
        return None
    return None


def _settings_folder() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "wireshark" / "extcap"


def install(place: Path) -> str:
    """Write the launcher; returns what was done.

    Raises:
        RocekitError: there is another program of that name.
        OSError: it cannot be written.
    """
    if place.exists() and _MADE_BY not in place.read_text(errors="replace"):
        raise RocekitError(f"{place}: there is another program of this name; name another --folder")
    place.parent.mkdir(parents=True, exist_ok=True)
    run = shlex.join([sys.executable, "-m", "rocekit", "extcap"])
    place.write_text(f'#!/bin/sh\n{_MADE_BY}\nexec {run} "$@"\n')
    place.chmod(0o755)
    return f"{place}: Wireshark and tshark now list rocekit's interfaces (`tshark -D`)"


def uninstall(place: Path) -> str:
    """Take the launcher away; returns what was done.

    Raises:
        RocekitError: there is none, or it is another program.
    """
    if not place.exists():
        raise RocekitError(f"{place}: nothing is installed there")
    if _MADE_BY not in place.read_text(errors="replace"):
        raise RocekitError(f"{place}: this is another program; it stays")
    place.unlink()
    return f"{place}: removed"
