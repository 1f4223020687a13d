"""How an interface treats RoCE: priorities, PFC, pause, ECN and DCQCN, and the class of rdma_cm's packets.

Asked are ``dcb`` and ``tc`` (iproute2) and ``ethtool``, where they lack ``mlnx_qos``, and files of MLNX_OFED
and configfs. What none of them tells is unknown, which is not the same as off. Nothing is set.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocekit.wire.words import number_ranges

if TYPE_CHECKING:
    from rocekit.machine.devices import DevicePort, RdmaDevice

PRIORITIES: Final = 8
_ASK_S: Final = 5
#: DCQCN's two roles in the files of mlx5: who reacts to CNPs, and who sends them.
_ROLES: Final = {"roce_rp": "reacts to CNPs", "roce_np": "sends CNPs"}
_NEVER: Final = {"roce_rp": "does not react to CNPs", "roce_np": "sends no CNPs"}
_CLASS: Final = re.compile(r"tclass=(\d+)")

Ask = Callable[[Sequence[str]], "str | None"]


def ask(command: Sequence[str]) -> str | None:
    """What a program prints; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return done.stdout


@dataclass(frozen=True, slots=True)
class InterfaceQos:
    """What is known of an interface; None: unknown.

    Attributes:
        pfc: the priorities with PFC.
        dscp_priority: the priority of each DSCP that the table has; of others ``default_priority``.
        trust: ``dscp`` or ``pcp``, whichever decides first.
        priority_class: the traffic class of each priority.
        skprio_class: the traffic class of each of the kernel's own priorities (skprio) of what it sends, by
            tc's mqprio or taprio. rdma_cm takes the SL of its connections from it (cma.c, iboe_tos_to_sl).
        pause_rx, pause_tx: global pause frames (802.3x).
        ecn: of ``roce_rp`` and ``roce_np``, the priorities for which it is on.
        dcqcn: parameters of both, by role.
    """

    interface: str
    pfc: frozenset[int] | None = None
    dscp_priority: Mapping[int, int] | None = None
    default_priority: int | None = None
    trust: str | None = None
    priority_class: tuple[int, ...] | None = None
    skprio_class: tuple[int, ...] | None = None
    pause_rx: bool | None = None
    pause_tx: bool | None = None
    ecn: Mapping[str, frozenset[int]] = field(default_factory=dict)
    dcqcn: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def priority_of(self, traffic_class: int) -> int | None:
        """The priority of packets with this traffic class (the TOS byte); None if it is not known.

        Only the table of DSCPs is looked at, and only where nothing says that the VLAN tag decides.
        """
        if self.dscp_priority is None or not self.dscp_priority or self.trust == "pcp":
            return None
        return self.dscp_priority.get(traffic_class >> 2, self.default_priority)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; null: unknown."""
        return {
            "interface": self.interface,
            "pfc": None if self.pfc is None else sorted(self.pfc),
            "dscp_priority": None
            if self.dscp_priority is None
            else {str(dscp): priority for dscp, priority in sorted(self.dscp_priority.items())},
            "default_priority": self.default_priority,
            "trust": self.trust,
            "priority_class": None if self.priority_class is None else list(self.priority_class),
            "skprio_class": None if self.skprio_class is None else list(self.skprio_class),
            "pause_rx": self.pause_rx,
            "pause_tx": self.pause_tx,
            "ecn": {role: sorted(on) for role, on in self.ecn.items()},
            "dcqcn": {role: dict(values) for role, values in self.dcqcn.items()},
        }


@dataclass(frozen=True, slots=True)
class PortClass:
    """The traffic class that packets of a port get, where something sets it; None: nothing found.

    Attributes:
        cm_tos: what rdma_cm gives connections by default (configfs).
        forced: what mlx5 gives all packets, whatever programs ask for.
        cm_mode: the RoCE version that rdma_cm connects with by default, as configfs writes it.
    """

    cm_tos: int | None = None
    forced: int | None = None
    cm_mode: str | None = None


def interface_qos(interface: str, *, asked: Ask = ask, net: Path = Path("/sys/class/net")) -> InterfaceQos:
    """All that is known of an interface."""
    found: dict[str, Any] = _of_dcb(interface, asked)
    if found.keys().isdisjoint(("pfc", "dscp_priority")) and (said := asked(["mlnx_qos", "-i", interface])):
        found |= mlnx_qos(said)
    found["skprio_class"] = skprio_class(asked(["tc", "-j", "qdisc", "show", "dev", interface]))
    if (said := asked(["ethtool", "-a", interface])) is not None:
        found |= pause(said)
    ecn, dcqcn = _of_mlx5(net / interface / "ecn")
    return InterfaceQos(interface, ecn=ecn, dcqcn=dcqcn, **found)


def _of_dcb(interface: str, asked: Ask) -> dict[str, Any]:
    """What the kernel says by dcbnl."""
    found: dict[str, Any] = {}
    pfc = _document(asked(["dcb", "-j", "pfc", "show", "dev", interface]))
    if isinstance(states := pfc.get("prio_pfc"), list):
        found["pfc"] = frozenset(n for n, on in enumerate(states) if on is True)
    said = asked(["dcb", "-j", "-N", "app", "show", "dev", interface])
    if said is not None:
        app = _document(said)
        pairs = [pair for pair in app.get("dscp_prio", ()) if _are_numbers(pair)]
        found["dscp_priority"] = {int(pair[0]): int(pair[1]) for pair in pairs}
        defaults = [n for n in app.get("default_prio", ()) if isinstance(n, int)]
        found["default_priority"] = defaults[-1] if defaults else None
    ets = _document(asked(["dcb", "-j", "ets", "show", "dev", interface]))
    if isinstance(classes := ets.get("prio_tc"), list) and all(isinstance(n, int) for n in classes):
        found["priority_class"] = tuple(classes)
    order = asked(["dcb", "apptrust", "show", "dev", interface]) or ""  # iproute2 6.3 and later
    if order.startswith("order:"):
        names = [name for name in order.split() if name in ("dscp", "pcp")]
        found["trust"] = names[0] if names else None
    return found


def _document(said: str | None) -> dict[str, Any]:
    try:
        document = json.loads(said or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _are_numbers(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) >= 2 and all(isinstance(n, int) for n in pair[:2])


def mlnx_qos(said: str) -> dict[str, Any]:
    """What ``mlnx_qos -i`` prints of trust, DSCPs, PFC and traffic classes."""
    found: dict[str, Any] = {}
    if (trust := re.search(r"^Priority trust state:\s*(\w+)", said, re.MULTILINE)) is not None:
        found["trust"] = trust[1].lower()
    table: dict[int, int] = {}
    for priority, dscps in re.findall(r"^\s*prio:(\d)\s+dscp:([\d,]+)", said, re.MULTILINE):
        table |= {int(dscp): int(priority) for dscp in dscps.split(",") if dscp}
    if table:
        found["dscp_priority"] = table
    if (enabled := re.search(r"^\s*enabled((?:\s+[01]){8})\s*$", said, re.MULTILINE)) is not None:
        found["pfc"] = frozenset(n for n, on in enumerate(enabled[1].split()) if on == "1")
    classes: dict[int, int] = {}
    current = None
    for line in said.splitlines():
        if (begun := re.match(r"\s*tc:\s*(\d)\b", line)) is not None:
            current = int(begun[1])
        elif current is not None and (own := re.match(r"\s*priority:\s*(\d)", line)) is not None:
            classes[int(own[1])] = current
    if set(classes) == set(range(PRIORITIES)):
        found["priority_class"] = tuple(classes[n] for n in range(PRIORITIES))
    return found


def skprio_class(said: str | None) -> tuple[int, ...] | None:
    """The traffic class of each skprio, from ``tc -j qdisc show dev IFACE``; None if no queue has a table."""
    try:
        queues = json.loads(said or "[]")
    except ValueError:
        return None
    for queue in queues if isinstance(queues, list) else ():
        if isinstance(queue, dict) and queue.get("kind") in ("mqprio", "taprio"):
            options = queue.get("options")
            table = options.get("map") if isinstance(options, dict) else None
            if isinstance(table, list) and table and all(isinstance(n, int) for n in table):
                return tuple(table)
    return None


def pause(said: str) -> dict[str, bool]:
    """What ``ethtool -a`` prints: ``RX: on``."""
    found = dict(re.findall(r"^(RX|TX):\s+(on|off)\b", said, re.MULTILINE))
    return {f"pause_{way.lower()}": state == "on" for way, state in found.items()}


def _of_mlx5(folder: Path) -> tuple[dict[str, frozenset[int]], dict[str, dict[str, int]]]:
    """Where DCQCN is on, and its parameters, from the files of MLNX_OFED's driver."""
    on: dict[str, frozenset[int]] = {}
    parameters: dict[str, dict[str, int]] = {}
    for role in _ROLES:
        switches = {n: _number(folder / role / "enable" / str(n)) for n in range(PRIORITIES)}
        if any(value is not None for value in switches.values()):
            on[role] = frozenset(n for n, value in switches.items() if value)
        try:
            files = sorted(path for path in (folder / role).iterdir() if path.is_file())
        except OSError:
            continue
        values = {path.name: value for path in files if (value := _number(path)) is not None}
        if values:
            parameters[role] = values
    return on, parameters


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text().strip(), 0)
    except (OSError, ValueError):
        return None


def port_class(device: RdmaDevice, port: DevicePort, root: Path = Path("/")) -> PortClass:
    """The traffic class of a port's packets, as far as files say it."""
    cm = root / "sys/kernel/config/rdma_cm" / device.name / "ports" / str(port.number)
    forced = None
    try:
        said = root / "sys/class/infiniband" / device.name / "tc" / str(port.number) / "traffic_class"
        if (found := _CLASS.search(said.read_text())) is not None:
            forced = int(found[1])
    except OSError:
        pass
    mode = None
    try:
        mode = (cm / "default_roce_mode").read_text().strip() or None
    except OSError:
        pass
    return PortClass(_number(cm / "default_roce_tos"), forced, mode)


def inconsistent_qos(where: str, qos: InterfaceQos, classes: PortClass) -> Iterator[str]:
    """What does not fit together, a sentence each. ``where`` names the port."""
    name = qos.interface
    if qos.pfc and (qos.pause_rx or qos.pause_tx):
        yield f"{where}: {name} has PFC and global pause on: 802.1Qbb allows one of them"
    for traffic_class, whose in ((classes.forced, "all packets"), (classes.cm_tos, "rdma_cm's connections")):
        if traffic_class is None:
            continue
        priority = qos.priority_of(traffic_class)
        if priority is None:
            continue
        told = f"traffic class {traffic_class} (DSCP {traffic_class >> 2}) of {whose}"
        told += f" is priority {priority} by the table of {name}"
        if qos.pfc and priority not in qos.pfc:
            yield f"{where}: {told}, which has PFC on for priority {number_ranges(qos.pfc)} only"
        for role, does in _ROLES.items():
            if role in qos.ecn and qos.ecn[role] and priority not in qos.ecn[role]:
                others = number_ranges(qos.ecn[role])
                yield f"{where}: {told}, which {does} on priority {others} only"
    if qos.pfc and qos.priority_class is not None:
        for priority in sorted(qos.pfc):
            own = qos.priority_class[priority]
            with_it = {n for n, other in enumerate(qos.priority_class) if other == own} - qos.pfc
            if with_it:
                shared = f"shares traffic class {own} with priority {number_ranges(with_it)}"
                yield f"{where}: priority {priority} of {name} has PFC and {shared}, which has none"
    for role, never in _NEVER.items():
        if role in qos.ecn and not qos.ecn[role] and any(qos.ecn.values()):
            yield f"{where}: {name} {never}, though the other half of DCQCN is on"


def qos_lines(qos: InterfaceQos) -> list[str]:
    """An interface's settings in words, a line each; one line if nothing is known."""
    lines = []
    if qos.pfc is not None:
        lines.append(f"PFC: {f'priority {number_ranges(qos.pfc)}' if qos.pfc else 'off'}")
    if qos.pause_rx is not None or qos.pause_tx is not None:
        ways = [way for way, on in (("received", qos.pause_rx), ("sent", qos.pause_tx)) if on]
        lines.append(f"global pause: {' and '.join(ways) or 'off'}")
    if qos.dscp_priority is not None:
        by_priority: dict[int, set[int]] = {}
        for dscp, priority in qos.dscp_priority.items():
            by_priority.setdefault(priority, set()).add(dscp)
        words = [f"{number_ranges(dscps)} → {p}" for p, dscps in sorted(by_priority.items())]
        if qos.default_priority is not None:
            words.append(f"others → {qos.default_priority}")
        trust = "" if qos.trust is None else f" (trusts {qos.trust.upper()})"
        lines.append(f"DSCP to priority{trust}: {', '.join(words) or 'no entry'}")
    if qos.priority_class is not None:
        words = [f"{n} → {tc}" for n, tc in enumerate(qos.priority_class)]
        lines.append(f"priority to traffic class: {', '.join(words)}")
    if qos.skprio_class is not None:
        classes = Counter(qos.skprio_class)
        usual = max(classes, key=lambda tc: classes[tc])
        words = [f"{n} → {tc}" for n, tc in enumerate(qos.skprio_class) if tc != usual]
        lines.append(f"skprio to traffic class (tc): {', '.join([*words, f'others → {usual}'])}")
    for role, on in qos.ecn.items():
        state = f"priority {number_ranges(on)}" if on else "off"
        lines.append(f"DCQCN, {_ROLES[role]}: {state}")
    for role, values in qos.dcqcn.items():
        named = ", ".join(f"{name} {value}" for name, value in values.items())
        lines.append(f"DCQCN parameters of {role}: {named}")
    return lines or [
        "PFC, priorities and ECN: nothing that `dcb`, `tc`, `mlnx_qos` or the driver's files tell"
    ]
