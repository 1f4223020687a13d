"""Two or more rxe devices on a wire that can be watched: the set-up and its undoing.

rxe delivers a packet for its own MAC address internally, and the kernel delivers packets to itself without
any device. Both hide the traffic from a capture. Here each end of a veth pair has an rxe device, and routing
rules send packets from one end to the other over the pair: the rule that prefers local delivery moves behind
rules that match packets made here. Packets that arrive are still delivered locally, because those rules match
only packets made here.

    va 02:00:00:00:00:01  10.9.0.1  fd00:9::1  rxe0        vb 02:00:00:00:00:02  10.9.0.2  fd00:9::2  rxe1

More than two are connected by a bridge, each with its own veth pair: vc with rxe2 and 10.9.0.3, and so on.

GID index 1 of each device is its RoCE v2 IPv4 address, index 2 the IPv6 one; 0 is the link-local address.
Needs root, in the kernel's first network namespace (older rxe knows no other).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocekit.errors import ScenarioError


class LabError(ScenarioError):
    """The lab could not be set up, or failed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of the wire."""

    interface: str
    device: str
    mac: str
    ipv4: str
    ipv6: str
    table: int


MOST_DEVICES = 8
BRIDGE = "vlab"


def ends(devices: int = 2) -> tuple[End, ...]:
    """The ends of so many devices."""
    return tuple(
        End(
            f"v{'abcdefgh'[i]}",
            f"rxe{i}",
            f"02:00:00:00:00:{i + 1:02x}",
            f"10.9.0.{i + 1}",
            f"fd00:9::{i + 1:x}",
            101 + i,
        )
        for i in range(devices)
    )


A, B = ends()
MTU = 4200
"""Room for a 4096 byte path MTU and headers: IPv6's 40, UDP's 8, at most 56 for RoCE's own and the ICRC."""
DEVICE_PREF, FROM_PREF, TO_PREF = PREFS = (100, 101, 102)
"""Rules for look-ups with a device, for packets made here with a source address, and for others made here.
The first needs no source: the connection manager looks up without one, for IPv6, when it checks where a
request
came from."""
LOCAL_PREF = 200
"""The preference of the rule for local delivery (by default 0) while the lab is up."""
MODULES = ("rdma_rxe", "rdma_ucm", "ib_uverbs", "veth")
MODULES_IF_THERE = ("ib_umad", "sch_netem", "sch_ingress", "cls_flower", "cls_u32", "act_gact")
SETTINGS = (("accept_local", "1"), ("rp_filter", "0"), ("arp_ignore", "1"))
"""IPv4 settings that let an end accept packets from an address of this same machine."""


def families() -> tuple[str, ...]:
    """The address families that this kernel has, as ip(8) names them."""
    return ("-4", "-6") if Path("/proc/sys/net/ipv6").exists() else ("-4",)


def tool(*command: str, given: str | None = None) -> str:
    """Run a set-up program, with ``given`` on its standard input, and return what it printed.

    Raises:
        LabError: it is missing or failed; the message has its first line.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, input=given or ""
        )
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is missing: apt-get install {PACKAGE_OF[command[0]]}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{shlex.join(command)}` did not return within 60 s") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(
            f"`{shlex.join(command)}` failed: {words[0] if words else f'status {done.returncode}'}"
        )
    return done.stdout


PACKAGE_OF = {"ip": "iproute2", "rdma": "iproute2", "tc": "iproute2", "modprobe": "kmod"}
"""The Debian package of each program that the set-up calls."""


def _try(*command: str, given: str | None = None) -> None:
    """Run a set-up program that may fail: what it undoes or improves may not be there."""
    try:
        tool(*command, given=given)
    except LabError:
        pass


def _batch(*lines: str, family: str = "-4", keep_going: bool = False) -> None:
    """Several ip commands with one start of the program."""
    given = "".join(f"{line}\n" for line in lines)
    if keep_going:
        _try("ip", family, "-force", "-batch", "-", given=given)
        return
    try:
        tool("ip", family, "-batch", "-", given=given)
    except LabError as error:
        raise LabError(f"{error} ({'; '.join(lines)})") from error


def collisions(devices: int = 2) -> list[str]:
    """What on this machine conflicts with the lab, in words; empty if the lab can be set up."""
    wanted = ends(devices)
    interfaces = [end.interface for end in wanted]
    if devices > 2:
        interfaces += [BRIDGE, *(_port(end) for end in wanted)]
    found = [
        f"an interface named {name} exists" for name in interfaces if Path("/sys/class/net", name).exists()
    ]
    found += [
        f"an RDMA device named {end.device} exists"
        for end in wanted
        if Path("/sys/class/infiniband", end.device).exists()
    ]
    for family in families():
        prefix = "10.9.0." if family == "-4" else "fd00:9:"
        for link in json.loads(tool("ip", "-j", family, "address") or "[]"):
            found += [
                f"{link.get('ifname')} has the address {address['local']}"
                for address in link.get("addr_info", ())
                if str(address.get("local", "")).startswith(prefix)
            ]
        rules = json.loads(tool("ip", "-j", family, "rule") or "[]")
        prefs = {rule.get("priority") for rule in rules}
        found += [
            f"an `ip {family} rule` with preference {pref} exists"
            for pref in (*PREFS, LOCAL_PREF)
            if pref in prefs
        ]
        if not any(rule.get("priority") == 0 and rule.get("table") == "local" for rule in rules):
            found.append(f"`ip {family} rule` does not start with the local table, which is the default")
        for table in (end.table for end in wanted):
            shown = subprocess.run(
                ("ip", family, "route", "show", "table", str(table)),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            if shown.stdout.strip():
                found.append(f"routing table {table} is in use (`ip {family} route show table {table}`)")
    return found


def load_modules(devices: int = 2) -> None:
    """Load what rxe, the connection manager, veth, netem and the bridge of more than two devices need.

    Raises:
        LabError: a module that the lab needs is missing or may not be loaded.
    """
    tool("modprobe", "-a", *MODULES, *(("bridge",) if devices > 2 else ()))
    _try("modprobe", "-a", "-q", *MODULES_IF_THERE)
    # Without udev, the kernel's devtmpfs makes the nodes, a moment later.
    _wait_for(Path("/dev/infiniband/rdma_cm"), 5.0)


def _wait_for(path: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def set_netem(end: End, netem: str | None) -> None:
    """Put a fault in tc-netem's words (``loss 2%``, ``delay 2ms reorder 25% 50%``) on one end, or remove it.

    It applies to packets that the end sends. A capture on ``va`` sees them after netem on ``va``, and those
    of ``vb`` after netem on ``vb``.

    Raises:
        LabError: tc does not understand the words.
    """
    _try("tc", "qdisc", "del", "dev", end.interface, "root")
    if netem:
        tool("tc", "qdisc", "add", "dev", end.interface, "root", "netem", *shlex.split(netem))


@contextmanager
def wired(
    *,
    netem: str | None = None,
    netem_b: str | None = None,
    devices: int = 2,
    throwaway: bool = False,
) -> Iterator[None]:
    """The devices, for as long as the block runs; afterwards the machine is as before.

    Modules stay loaded: something else may use them by then. ``throwaway`` is for a machine that ends with
    the block: it is neither examined first nor tidied up.

    Raises:
        LabError: no root, a missing program or module, or something on this machine conflicts.
    """
    if os.geteuid() != 0:
        raise LabError("two rxe devices need root: run it with sudo, or ask for the VM (--mode vm)")
    in_the_way = [] if throwaway else collisions(devices)
    if in_the_way:
        raise LabError(
            f"the lab cannot be set up in place: {'; '.join(in_the_way)}. "
            "Remove it (`python -m rocekit.lab.net down` undoes a lab that was killed) or use --mode vm"
        )
    load_modules(devices)
    wanted = ends(devices)
    with ExitStack() as undo:
        for name, value in SETTINGS:
            undo.callback(_set(Path("/proc/sys/net/ipv4/conf/all", name), value))
        # Nothing of the lab was there before, so all of it is removed, however far the set-up got.
        undo.callback(take_down)
        _link(wanted)
        for family in families():
            _batch(*_addressing(family, wanted), family=family)
        for end in wanted:
            tool("rdma", "link", "add", end.device, "type", "rxe", "netdev", end.interface)
            if not _wait_for(Path("/sys/class/infiniband", end.device), 10.0):
                raise LabError(f"{end.device} did not appear in /sys/class/infiniband within 10 s")
        for end, words in ((A, netem), (B, netem_b)):
            if words:
                set_netem(end, words)
        if throwaway:
            undo.pop_all()
        yield


def _set(path: Path, value: str) -> Callable[[], None]:
    """Write a kernel setting; returns a function that restores the old value."""
    before = path.read_text()
    path.write_text(value)

    def put_back() -> None:
        path.write_text(before)

    return put_back


def _port(end: End) -> str:
    """The name of an end's peer, which is a port of the bridge."""
    return f"{end.interface}-port"


def _link(wanted: Sequence[End]) -> None:
    """The veth pair, or a pair for each end with a bridge between them; the ends are still down."""
    if len(wanted) == 2:
        pair = f"link add name {A.interface} mtu {MTU} address {A.mac} type veth peer name {B.interface}"
        _batch(f"{pair} mtu {MTU} address {B.mac}")
    else:
        lines = [f"link add name {BRIDGE} type bridge"]
        for end in wanted:
            pair = (
                f"link add name {end.interface} mtu {MTU} address {end.mac} type veth peer name {_port(end)}"
            )
            lines += [f"{pair} mtu {MTU}", f"link set dev {_port(end)} master {BRIDGE} up"]
        _batch(*lines, f"link set dev {BRIDGE} mtu {MTU} up")
    for end in wanted:
        for name, value in SETTINGS:
            Path("/proc/sys/net/ipv4/conf", end.interface, name).write_text(value)
        for name, value in (("disable_ipv6", "0"), ("accept_dad", "0"), ("router_solicitations", "0")):
            path = Path("/proc/sys/net/ipv6/conf", end.interface, name)
            if path.exists():
                path.write_text(value)


def _addressing(family: str, wanted: Sequence[End]) -> list[str]:
    """The ip commands that connect the ends over the wire, with permanent neighbours."""

    def address(end: End) -> str:
        return end.ipv4 if family == "-4" else end.ipv6

    lines = []
    for end in wanted:
        full = f"{end.ipv4}/24" if family == "-4" else f"{end.ipv6}/64 nodad"
        lines += [f"link set dev {end.interface} up", f"address add {full} dev {end.interface}"]
    for here in wanted:
        for there in wanted:
            if there is here:
                continue
            source, target = address(here), address(there)
            lines += [
                f"neighbour replace {target} lladdr {there.mac} dev {here.interface} nud permanent",
                f"route add {target} dev {here.interface} src {source} table {here.table}",
                f"rule add pref {DEVICE_PREF} oif {here.interface} to {target} lookup {here.table}",
                f"rule add pref {FROM_PREF} iif lo from {source} to {target} lookup {here.table}",
            ]
    for there in wanted:
        # A packet without a source leaves at the first of the other ends, and takes its address.
        here = wanted[0] if there is not wanted[0] else wanted[1]
        lines.append(f"rule add pref {TO_PREF} iif lo to {address(there)} lookup {here.table}")
    return [*lines, f"rule add pref {LOCAL_PREF} lookup local", "rule del pref 0"]


def take_down() -> None:
    """Remove the lab, or what is left of it, from this machine; harmless if there is none.

    After a lab that was killed together with its agent, three IPv4 settings of ``all`` keep the lab's values
    (accept_local 1, rp_filter 0, arp_ignore 1): the old values are unknown.
    """
    there = ends(MOST_DEVICES) if Path("/sys/class/net", BRIDGE).exists() else (A, B)
    for family in families():
        rules = json.loads(tool("ip", "-j", family, "rule") or "[]")
        first = [] if any(rule.get("priority") == 0 for rule in rules) else ["rule add pref 0 lookup local"]
        ours = {(pref, str(end.table)) for end in there for pref in PREFS} | {(LOCAL_PREF, "local")}
        gone = [
            f"rule del pref {rule['priority']}"
            for rule in rules
            if (rule.get("priority"), rule.get("table")) in ours
        ]
        flushed = [f"route flush table {end.table}" for end in there]
        # The first rule first, so that local delivery always has one.
        _batch(*first, *gone, *flushed, family=family, keep_going=True)
    for end in there:
        _try("rdma", "link", "del", end.device)
    for name in (A.interface,) if there == (A, B) else (*(end.interface for end in there), BRIDGE):
        _try("ip", "link", "del", name)


def main(arguments: Sequence[str]) -> int:
    """``python -m rocekit.lab.net down``."""
    if list(arguments) != ["down"]:
        print("usage: python -m rocekit.lab.net down")
        return 2
    take_down()
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
