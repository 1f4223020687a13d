"""Configurations of the Open Traffic Generator for RoCE v2, in YAML or JSON.

The keys are those of open-traffic-generator/models: ``devices`` with ``ethernets`` and ``rocev2`` (peers and
their QPs), ``stateful_flows`` with ``rocev2`` (flows, verbs, message sizes), and ``options`` with
``per_port_options`` (CNPs, ACKs and NAKs, retransmission, DCQCN). ``layer1`` gives the speed of ports. Values
that are left out have the defaults of the model.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocekit import wire
from rocekit.errors import ScenarioError
from rocekit.files.yaml import Value, read_yaml
from rocekit.soft.traffic.otg_port import NO_PORT_OPTIONS, PortOptions, port_options, speeds
from rocekit.soft.traffic.otg_values import ECN, choice, hexadecimal, named, number, sequence, text
from rocekit.soft.traffic.plan import MOST_MESSAGE, FlowPlan, HostPlan, PeerPlan, TrafficPlan
from rocekit.soft.wires.switch import SwitchSettings
from rocekit.wire.psn import MASK

_ROOT: Final = ("ports", "layer1", "devices", "stateful_flows", "options")
_UNITS: Final = {"bytes": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
_VERBS: Final = {
    "write": "RDMA_WRITE",
    "write_with_immediate": "RDMA_WRITE_WITH_IMM",
    "send": "SEND",
    "send_with_immediate": "SEND_WITH_IMM",
    "read": "RDMA_READ",
}
#: Of one more message, the whole size may be in flight: about this much is posted ahead.
_AHEAD_BYTES: Final = 4 << 20
_MOST_AHEAD: Final = 16
_FIRST_QPN: Final = 2  # the default of source_qp_number


@dataclass(slots=True)
class _Qp:
    """A QP of the configuration, the interface it is on, its peer's name, and the address it goes to."""

    name: str
    host: int
    peer: str
    address: str
    path_mtu: int
    qpn: int | None = None
    tclass: int = 24 << 2 | ECN["ect_1"]
    udp_sport: int | None = 49152
    psn: int | None = 0
    remote_va: int | None = None
    rkey: int | None = None


@dataclass(slots=True)
class _Config:
    """What was read so far.

    Attributes:
        hosts: by the name of their IP interface, with its port and address.
        places: of the hosts, by the name of their IP interface; and by address that of the first.
        peers: by name, with their host and the address they go to; ways: the same without the name.
    """

    hosts: list[tuple[str, str, str]] = field(default_factory=list)
    qps: dict[str, _Qp] = field(default_factory=dict)
    peers: dict[str, tuple[int, str]] = field(default_factory=dict)
    ports: dict[str, PortOptions] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    places_by_address: dict[str, int] = field(default_factory=dict)
    ways: set[tuple[int, str]] = field(default_factory=set)

    def add_host(self, interface: str, port: str, address: str) -> None:
        self.places[interface] = len(self.hosts)
        self.places_by_address.setdefault(address, len(self.hosts))
        self.hosts.append((interface, port, address))


def read_otg(
    path: str | Path,
    *,
    duration_ns: int = 5_000_000,
    rate_bps: int = 100_000_000_000,
    delay_ns: int = 1_000,
    switch: SwitchSettings | None = None,
    tap: str | None = None,
    seed: int = 0,
) -> TrafficPlan:
    """The plan of a configuration.

    Args:
        rate_bps: of ports whose speed the configuration does not give.
        tap: the name of an IP interface, ``sent`` or ``delivered``.

    Raises:
        ScenarioError: file, line, and what is wrong: no YAML or JSON, a key that there is not, a name that
            nothing has, or something that cannot be played.
    """
    document = read_yaml(path)
    if document is None:
        raise ScenarioError(f"{path}: no configuration; it has {', '.join(_ROOT)}")
    root = document.mapping(_ROOT, "the configuration")
    config = _Config()
    ports = sequence(root.get("ports"))
    port_names = dict.fromkeys(text(named(p, ("name", "location"), "a port")["name"]) for p in ports)
    given = speeds(root.get("layer1"), port_names)
    config.ports = port_options(root.get("options"), port_names, lambda port: given.get(port, rate_bps))
    _devices(root.get("devices"), config, port_names)
    _number(config)
    flows = _flows(root.get("stateful_flows"), config, document, port_names)
    qps_of = Counter(qp.peer for qp in config.qps.values())
    hosts = tuple(_host(h, config.ports.get(h[1], NO_PORT_OPTIONS), given.get(h[1])) for h in config.hosts)
    try:
        return TrafficPlan(
            hosts,
            flows,
            duration_ns,
            rate_bps,
            delay_ns,
            switch or SwitchSettings(),
            tap or "delivered",
            seed,
            tuple(
                PeerPlan(name, host, address, qps_of[name]) for name, (host, address) in config.peers.items()
            ),
        )
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from None


def _host(host: tuple[str, str, str], options: PortOptions, rate_bps: int | None) -> HostPlan:
    return HostPlan(
        host[0],
        host[2],
        host[1],
        rate_bps,
        options.cnp_interval_ns,
        options.cnp_tclass,
        options.ack_tclass,
        options.nak_tclass,
        options.dcqcn,
    )


# ---------------------------------------------------------------------- devices


def _devices(devices: Value | None, config: _Config, ports: Collection[str]) -> None:
    peers: list[tuple[Value, str]] = []
    for device in sequence(devices):
        keys = named(device, ("name", "ethernets", "rocev2"), "a device")
        for ethernet in sequence(keys.get("ethernets")):
            _ethernet(ethernet, config, ports)
        if "rocev2" in keys:
            rocev2 = keys["rocev2"].mapping(("ipv4_interfaces", "ipv6_interfaces"), "rocev2")
            for version in ("ipv4", "ipv6"):
                peers += [(i, version) for i in sequence(rocev2.get(f"{version}_interfaces"))]
    for interface, version in peers:
        _interface(interface, version, config)


def _ethernet(ethernet: Value, config: _Config, ports: Collection[str]) -> None:
    known = ("name", "mac", "mtu", "connection", "ipv4_addresses", "ipv6_addresses")
    keys = named(ethernet, known, "an ethernet")
    if "connection" not in keys:
        raise ethernet.wrong("an ethernet has a connection: {port_name: NAME}")
    connection = keys["connection"].mapping(("choice", "port_name"), "a connection")
    if "port_name" not in connection:
        raise keys["connection"].wrong("a connection has port_name, the name of a port")
    port = text(connection["port_name"])
    if port not in ports:
        raise connection["port_name"].wrong(
            f"no port is named {port!r}; there is {', '.join(ports) or 'none'}"
        )
    for version in (4, 6):
        for address in sequence(keys.get(f"ipv{version}_addresses")):
            own = named(
                address, ("name", "address", "gateway", "gateway_mac", "prefix"), f"an IPv{version} address"
            )
            if "address" not in own:
                raise address.wrong(f"an IPv{version} address has an address")
            name = text(own["name"])
            if name in config.places:
                raise own["name"].wrong(f"two addresses are named {name}")
            config.add_host(name, port, _address(own["address"], version))


def _address(value: Value, version: int) -> str:
    try:
        address = ipaddress.ip_address(text(value))
    except ValueError:
        raise value.wrong(f"{value.content!r} is no IP address") from None
    if address.version != version:
        raise value.wrong(f"{address} is no IPv{version} address")
    return str(address)


def _interface(interface: Value, version: str, config: _Config) -> None:
    key = f"{version}_name"
    keys = interface.mapping((key, "ib_mtu", "peers"), f"an interface of {version}_interfaces")
    if key not in keys:
        raise interface.wrong(f"an interface has {key}, the name of one of the {version}_addresses")
    name = text(keys[key])
    host = config.places.get(name)
    if host is None:
        raise keys[key].wrong(f"no IP address is named {name!r}")
    mtu = 1024 if "ib_mtu" not in keys else number(keys["ib_mtu"], "ib_mtu", 0, 14_000)
    if mtu not in wire.PATH_MTU_CODES:
        known = ", ".join(map(str, wire.PATH_MTU_CODES))
        raise keys["ib_mtu"].wrong(
            f"ib_mtu {mtu}: a path MTU is {known} bytes; a REQ has no code for another (12.6.5)"
        )
    for peer in sequence(keys.get("peers")):
        own = named(peer, ("name", "destination_ip_address", "qps"), "a peer")
        if "destination_ip_address" not in own:
            raise peer.wrong("a peer has a destination_ip_address")
        address = _address(own["destination_ip_address"], int(version[-1]))
        peer_name = text(own["name"])
        if peer_name in config.peers:
            raise own["name"].wrong(f"two peers are named {peer_name}")
        if (host, address) in config.ways:
            raise peer.wrong(f"two peers of {name} go to {address}: one peer may have several QPs")
        config.peers[peer_name] = host, address
        config.ways.add((host, address))
        for qp in sequence(own.get("qps")):
            _qp(qp, _Qp("", host, peer_name, address, mtu), config)


def _qp(value: Value, qp: _Qp, config: _Config) -> None:
    keys = value.mapping(("qp_name", "connection_type"), "a QP")
    if "qp_name" not in keys:
        raise value.wrong("a QP has a qp_name")
    qp.name = text(keys["qp_name"])
    if qp.name in config.qps:
        raise keys["qp_name"].wrong(f"two QPs are named {qp.name}")
    config.qps[qp.name] = qp
    if "connection_type" not in keys:
        return
    kind = keys["connection_type"].mapping(("choice", "reliable_connection"), "connection_type")
    if "choice" in kind:
        choice(kind["choice"], ("reliable_connection",), "connection_type")
    if "reliable_connection" not in kind:
        return
    known = (
        *("source_qp_number", "dscp", "ecn", "udp_source_port", "initial_psn"),
        *("virtual_address", "remote_key"),
    )
    own = kind["reliable_connection"].mapping(known, "reliable_connection")
    if "source_qp_number" in own:
        qp.qpn = number(own["source_qp_number"], "source_qp_number", 2, MASK)
    dscp = 24 if "dscp" not in own else number(own["dscp"], "dscp", 0, 63)
    ecn = "ect_1" if "ecn" not in own else choice(own["ecn"], tuple(ECN), "ecn")
    qp.tclass = dscp << 2 | ECN[ecn]
    if "udp_source_port" in own:
        qp.udp_sport = number(own["udp_source_port"], "udp_source_port", 0, 0xFFFF)
    if "initial_psn" in own:
        qp.psn = number(own["initial_psn"], "initial_psn", 0, MASK)
    if "virtual_address" in own:
        qp.remote_va = hexadecimal(own["virtual_address"], "virtual_address", 16) or None
    if "remote_key" in own:
        qp.rkey = hexadecimal(own["remote_key"], "remote_key", 8) or None


def _number(config: _Config) -> None:
    """Number the QPs without a number: from the model's default on, as a host's QPs have different ones."""
    taken = {(qp.host, qp.qpn) for qp in config.qps.values()}
    numbers: defaultdict[int, Iterator[int]] = defaultdict(lambda: itertools.count(_FIRST_QPN))
    for qp in config.qps.values():
        if qp.qpn is None:
            qp.qpn = next(n for n in numbers[qp.host] if (qp.host, n) not in taken)


# ---------------------------------------------------------------------- flows


def _flows(
    stateful: Value | None, config: _Config, document: Value, ports: Collection[str]
) -> tuple[FlowPlan, ...]:
    found: list[FlowPlan] = []
    used: dict[str, FlowPlan] = {}
    names: set[str] = set()
    if stateful is not None:
        keys = stateful.mapping(("choice", "rocev2"), "stateful_flows")
        for group in sequence(keys.get("rocev2")):
            for tx in sequence(group.mapping(("tx_ports",), "a flow group").get("tx_ports")):
                _tx_port(tx, config, ports, found, used, names)
    if not found:
        raise document.wrong("there is no flow: stateful_flows: {rocev2: [{tx_ports: […]}]} has them")
    return tuple(found)


def _tx_port(
    tx: Value,
    config: _Config,
    ports: Collection[str],
    found: list[FlowPlan],
    used: dict[str, FlowPlan],
    names: set[str],
) -> None:
    keys = tx.mapping(("port_name", "transmit_type"), "a TX port")
    port = None if "port_name" not in keys else text(keys["port_name"])
    if port is not None and port not in ports:
        raise keys["port_name"].wrong(f"no port is named {port!r}; there is {', '.join(ports)}")
    if "transmit_type" not in keys:
        return
    kind = keys["transmit_type"].mapping(("choice", "target_line_rate"), "transmit_type")
    if "target_line_rate" not in kind:
        return
    rate = kind["target_line_rate"].mapping(("value", "flows"), "target_line_rate")
    percent = 98 if "value" not in rate else number(rate["value"], "the target line rate", 0, 100)
    flows = sequence(rate.get("flows"))
    if flows and not percent:
        raise rate["value"].wrong("a target line rate of 0 % sends nothing")
    for flow in flows:
        plan, qp = _flow(flow, config, percent / 100 / len(flows))
        if port is not None and config.hosts[plan.source][1] != port:
            raise flow.wrong(f"{qp} is not on port {port}, but on {config.hosts[plan.source][1]}")
        if plan.name in names:
            raise flow.wrong(f"two flows are named {plan.name}")
        first = used.setdefault(qp, plan)
        if (first.destination, first.destination_qpn) != (plan.destination, plan.destination_qpn):
            raise flow.wrong(f"{qp} is connected for {first.name}: an RC QP has one QP at the other side")
        names.add(plan.name)
        found.append(plan)


def _flow(flow: Value, config: _Config, share: float) -> tuple[FlowPlan, str]:
    known = ("name", "tx_endpoint", "rx_endpoint", "rocev2_verb", "message_size", "message_size_unit")
    keys = named(flow, known, "a flow")
    if "tx_endpoint" not in keys:
        raise flow.wrong("a flow has a tx_endpoint, the name of a QP")
    qp = config.qps.get(text(keys["tx_endpoint"]))
    if qp is None:
        names = ", ".join(config.qps) or "none"
        raise keys["tx_endpoint"].wrong(f"no QP is named {keys['tx_endpoint'].content!r}; there is {names}")
    destination = config.places_by_address.get(qp.address)
    if destination is None or destination == qp.host:
        raise flow.wrong(f"{qp.name} goes to {qp.address}, which no other device of this configuration has")
    peer = _rx_endpoint(keys.get("rx_endpoint"), qp, destination, config)
    unit = 1 << 20
    if "message_size_unit" in keys:
        unit = _UNITS[choice(keys["message_size_unit"], tuple(_UNITS), "message_size_unit")]
    count = 1 if "message_size" not in keys else number(keys["message_size"], "message_size", 0, 65535)
    size = unit * count
    if size > MOST_MESSAGE:
        raise flow.wrong(f"a message of {size:,} bytes; at most {MOST_MESSAGE:,} can be made here")
    verb, immediate = _verb(keys.get("rocev2_verb"))
    options = config.ports.get(config.hosts[qp.host][1], NO_PORT_OPTIONS)
    return (
        FlowPlan(
            text(keys["name"]),
            qp.host,
            destination,
            verb,
            sizes=(size,),
            immediate=immediate,
            rate=share,
            path_mtu=qp.path_mtu,
            depth=max(2, min(_MOST_AHEAD, _AHEAD_BYTES // max(size, 1))),
            source_qpn=qp.qpn,
            destination_qpn=None if peer is None else peer.qpn,
            psn=qp.psn,
            udp_sport=qp.udp_sport,
            tclass=qp.tclass,
            # A QP's address and key are of its own memory, which its peer writes to.
            remote_va=(peer or qp).remote_va,
            rkey=(peer or qp).rkey,
            source_peer=qp.peer,
            destination_peer=None if peer is None else peer.peer,
            timeout=options.timeout,
            retry_cnt=options.retry_cnt,
        ),
        qp.name,
    )


def _rx_endpoint(value: Value | None, qp: _Qp, destination: int, config: _Config) -> _Qp | None:
    """The QP that a flow goes to; None: one that the destination makes."""
    if value is None:
        return None
    name, port = text(value), config.hosts[destination][1]
    peer = config.qps.get(name)
    if peer is None and name != port:
        raise value.wrong(f"{name!r} is neither a QP nor {port}, the port of {qp.address}")
    if peer is not None and (peer.host != destination or peer.address != config.hosts[qp.host][2]):
        raise value.wrong(f"{peer.name} is not a QP from {qp.address} to {config.hosts[qp.host][2]}")
    return peer


def _verb(value: Value | None) -> tuple[str, int]:
    if value is None:
        return _VERBS["write"], 0
    immediates = ("write_with_immediate", "send_with_immediate")
    keys = value.mapping(("choice", *immediates), "rocev2_verb")
    name = "write" if "choice" not in keys else choice(keys["choice"], tuple(_VERBS), "rocev2_verb")
    if name not in immediates or name not in keys:
        return _VERBS[name], 0
    own: Mapping[str, Value] = keys[name].mapping(("immediate_data",), name)
    data = own.get("immediate_data")
    return _VERBS[name], 0 if data is None else hexadecimal(data, "immediate_data", 8)
