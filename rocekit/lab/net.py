"""Two rxe devices that talk over a wire that can be watched: the set-up and its undoing.

rxe hands a packet for its own MAC address over internally, and the kernel delivers what is addressed to
itself without any device. Both hide the traffic from a capture. Here each of the two ends of a veth pair
carries an rxe device, and routing rules send what one end tells the other over the pair: the rule that
prefers local delivery moves behind rules that match locally made packets. What arrives is still delivered
locally, since those rules look at packets of this machine's own making only.

    va 02:00:00:00:00:01  10.9.0.1  fd00:9::1  rxe0        vb 02:00:00:00:00:02  10.9.0.2  fd00:9::2  rxe1

GID index 1 of each device is its RoCE v2 IPv4 address, index 2 the IPv6 one; 0 is the link-local address.
Needs root, in the kernel's first network namespace (older rxe knows no other).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rocekit.errors import ScenarioError


class LabError(ScenarioError):
    """The lab could not be set up, or did not do what it was asked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of the wire."""

    interface: str
    device: str
    mac: str
    ipv4: str
    ipv6: str
    table: int


A = End("va", "rxe0", "02:00:00:00:00:01", "10.9.0.1", "fd00:9::1", 101)
B = End("vb", "rxe1", "02:00:00:00:00:02", "10.9.0.2", "fd00:9::2", 102)
MTU = 4200
"""Room for a 4096 byte path MTU and headers: IPv6's 40, UDP's 8, at most 56 for RoCE's own and the ICRC."""
PREFS = (100, 101, 102, 103)
"""Two rules for each direction: one for packets made here, one for look-ups that name the device, no origin,
as the connection manager makes one for IPv6 when it checks where a request came from."""
LOCAL_PREF = 200
"""Where the rule that prefers local delivery (by default 0) stands while the lab is up."""
MODULES = ("rdma_rxe", "rdma_ucm", "ib_uverbs", "veth")
MODULES_IF_THERE = ("ib_umad", "sch_netem", "sch_ingress", "cls_flower", "cls_u32", "act_gact")
FAMILIES = ("-4", "-6")


def tool(*command: str) -> str:
    """Run a set-up program and return what it printed.

    Raises:
        LabError: it is missing or refused; the message carries its own words.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is missing: apt-get install {PACKAGE_OF[command[0]]}") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`{shlex.join(command)}` did not return within 60 s") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(
            f"`{shlex.join(command)}` failed: {words[-1] if words else f'status {done.returncode}'}"
        )
    return done.stdout


PACKAGE_OF = {"ip": "iproute2", "rdma": "iproute2", "tc": "iproute2", "modprobe": "kmod"}
"""The Debian package of each program that the set-up calls."""


def _try(*command: str) -> None:
    """Undo or improve something that may be gone or not there: failing is fine."""
    try:
        tool(*command)
    except LabError:
        pass


def collisions() -> list[str]:
    """What of this machine stands in the lab's way, in words; empty where the lab can be set up."""
    found = [
        f"an interface named {end.interface} exists"
        for end in (A, B)
        if Path("/sys/class/net", end.interface).exists()
    ]
    found += [
        f"an RDMA device named {end.device} exists"
        for end in (A, B)
        if Path("/sys/class/infiniband", end.device).exists()
    ]
    for family, prefix in (("-4", "10.9.0."), ("-6", "fd00:9:")):
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
            found.append(f"`ip {family} rule` does not begin with the local table, as it does by default")
        for table in (A.table, B.table):
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


def load_modules() -> None:
    """Load what rxe, the connection manager, veth and netem need.

    Raises:
        LabError: a module that the lab cannot do without is not there or may not be loaded.
    """
    for module in MODULES:
        tool("modprobe", module)
    for module in MODULES_IF_THERE:
        _try("modprobe", "-q", module)
    if not Path("/dev/infiniband/rdma_cm").exists():
        # Where no udev runs, the kernel's devtmpfs still makes the nodes, a moment later.
        _wait_for(Path("/dev/infiniband/rdma_cm"), 5.0)


def _wait_for(path: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def set_netem(end: End, netem: str | None) -> None:
    """Put tc-netem's words (``loss 2%``, ``delay 2ms reorder 25% 50%``) on one end, or take them off.

    It meddles with what that end sends. A capture on ``va`` sees what netem on ``va`` let through, and all
    of what ``vb`` sent after netem on ``vb``.

    Raises:
        LabError: tc does not understand the words.
    """
    _try("tc", "qdisc", "del", "dev", end.interface, "root")
    if netem:
        tool("tc", "qdisc", "add", "dev", end.interface, "root", "netem", *shlex.split(netem))


def _sysctl(stack: ExitStack, name: str, value: str, *, restore: bool) -> None:
    path = Path("/proc/sys", name)
    if not path.exists():
        return
    before = path.read_text().strip()
    if before == value:
        return
    path.write_text(value)
    if restore:
        stack.callback(path.write_text, before)


@contextmanager
def wired(*, netem: str | None = None, netem_b: str | None = None) -> Iterator[None]:
    """The two devices, for as long as the block runs; what was there before is put back after it.

    Modules stay loaded: whether something else uses them by then is not ours to know.

    Raises:
        LabError: no root, a missing program or module, or something of this machine is in the way.
    """
    if os.geteuid() != 0:
        raise LabError("two rxe devices need root: run it with sudo, or ask for the VM (--mode vm)")
    in_the_way = collisions()
    if in_the_way:
        raise LabError(
            f"the lab cannot be set up in place: {'; '.join(in_the_way)}. "
            "Remove it (`python -m rocekit.lab.net down` undoes a lab that was killed) or use --mode vm"
        )
    load_modules()
    with ExitStack() as undo:
        # Undone in reverse: the rules first, so that local delivery is never without one.
        undo.callback(_try, "ip", "link", "del", A.interface)
        _link()
        for end in (A, B):
            undo.callback(_try, "rdma", "link", "del", end.device)
            for name, value in (("accept_local", "1"), ("rp_filter", "0"), ("arp_ignore", "1")):
                _sysctl(undo, f"net/ipv4/conf/{end.interface}/{name}", value, restore=False)
        for name, value in (("accept_local", "1"), ("rp_filter", "0"), ("arp_ignore", "1")):
            _sysctl(undo, f"net/ipv4/conf/all/{name}", value, restore=True)
        for here, there, first, second in ((A, B, *PREFS[:2]), (B, A, *PREFS[2:])):
            for family, source, target in (("-4", here.ipv4, there.ipv4), ("-6", here.ipv6, there.ipv6)):
                table = str(here.table)
                undo.callback(_try, "ip", family, "route", "flush", "table", table)
                tool(
                    "ip", family, "route", "add", target, "dev", here.interface, "src", source, "table", table
                )
                for pref, way in ((first, ("iif", "lo")), (second, ("oif", here.interface))):
                    undo.callback(_try, "ip", family, "rule", "del", "pref", str(pref))
                    rule = (*way, "to", target, "lookup", table)
                    tool("ip", family, "rule", "add", "pref", str(pref), *rule)
        for family in FAMILIES:
            undo.callback(_local_rule_first, family)
            tool("ip", family, "rule", "add", "pref", str(LOCAL_PREF), "lookup", "local")
            tool("ip", family, "rule", "del", "pref", "0")
        for end in (A, B):
            tool("rdma", "link", "add", end.device, "type", "rxe", "netdev", end.interface)
            if not _wait_for(Path("/sys/class/infiniband", end.device), 10.0):
                raise LabError(f"{end.device} did not appear in /sys/class/infiniband within 10 s")
        set_netem(A, netem)
        set_netem(B, netem_b)
        yield


def _link() -> None:
    """The veth pair with its addresses and neighbours: no ARP, no neighbour discovery, no DAD in captures."""
    pair = ("ip", "link", "add", A.interface, "mtu", str(MTU), "address", A.mac, "type", "veth")
    tool(*pair, "peer", "name", B.interface, "mtu", str(MTU), "address", B.mac)
    for end, other in ((A, B), (B, A)):
        for name, value in (("disable_ipv6", "0"), ("accept_dad", "0"), ("router_solicitations", "0")):
            path = Path("/proc/sys/net/ipv6/conf", end.interface, name)
            if path.exists():
                path.write_text(value)
        tool("ip", "address", "add", f"{end.ipv4}/24", "dev", end.interface)
        tool("ip", "link", "set", end.interface, "up")
        tool("ip", "-6", "address", "add", f"{end.ipv6}/64", "dev", end.interface, "nodad")
        for address in (other.ipv4, other.ipv6):
            neighbour = ("ip", "neighbour", "replace", address, "lladdr", other.mac)
            tool(*neighbour, "dev", end.interface, "nud", "permanent")


def _local_rule_first(family: str) -> None:
    rules = json.loads(tool("ip", "-j", family, "rule") or "[]")
    if not any(rule.get("priority") == 0 for rule in rules):
        _try("ip", family, "rule", "add", "pref", "0", "lookup", "local")
    _try("ip", family, "rule", "del", "pref", str(LOCAL_PREF))


def undo_leftovers() -> None:
    """Remove what a lab that was killed outright left on this machine. Harmless where there is nothing.

    The three system-wide IPv4 settings it had changed (accept_local, rp_filter, arp_ignore of ``all``) are
    not known any more and stay.
    """
    for family in FAMILIES:
        _local_rule_first(family)
        for pref in PREFS:
            _try("ip", family, "rule", "del", "pref", str(pref))
        for end in (A, B):
            _try("ip", family, "route", "flush", "table", str(end.table))
    for end in (A, B):
        _try("rdma", "link", "del", end.device)
    _try("ip", "link", "del", A.interface)


def main(arguments: Sequence[str]) -> int:
    """``python -m rocekit.lab.net down``."""
    if list(arguments) != ["down"]:
        print("usage: python -m rocekit.lab.net down")
        return 2
    undo_leftovers()
    return 0


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
