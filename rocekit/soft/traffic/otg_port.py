"""The settings of ports in an Open Traffic Generator configuration: speed, CNPs, ACKs and NAKs, DCQCN."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from rocekit import wire
from rocekit.files.yaml import Value
from rocekit.soft.engine.congestion import DcqcnParameters
from rocekit.soft.traffic.otg_values import ECN, choice, flag, named, number, percent, sequence, text

_MBPS: Final = 1_000_000
_SPEEDS: Final = {
    f"speed_{name}": mbps * _MBPS
    for name, mbps in {
        "10_fd_mbps": 10,
        "10_hd_mbps": 10,
        "100_fd_mbps": 100,
        "100_hd_mbps": 100,
        "1_gbps": 1_000,
        **{f"{g}_gbps": g * 1000 for g in (10, 25, 40, 50, 100, 200, 400, 800)},
    }.items()
}
#: A code of the local ACK timeout has 5 bits, a retry counter 3 (9.7.6.1.3).
_MOST_CODE, _MOST_RETRIES = 31, 7
_ALPHA_ONE: Final = 1024
_US: Final = 1000


@dataclass(frozen=True, slots=True)
class PortOptions:
    """What a port's settings are; as of :class:`.plan.HostPlan` and :class:`.plan.FlowPlan`."""

    cnp_interval_ns: int | None = 50_000
    cnp_tclass: int | None = None
    ack_tclass: int | None = None
    nak_tclass: int | None = None
    timeout: int = 8  # 1.05 ms: the model's default of 1 ms, rounded up
    retry_cnt: int = 3
    dcqcn: DcqcnParameters | None = None


#: Of a port without settings: no DCQCN, and answers in the class of the data.
NO_PORT_OPTIONS: Final = PortOptions()


def speeds(layer1: Value | None, ports: Collection[str]) -> dict[str, int]:
    """The speed of ports in bit/s."""
    found = {}
    for group in sequence(layer1):
        known = ("name", "port_names", "speed", "mtu", "media", "promiscuous", "auto_negotiate")
        keys = named(group, known, "a layer1")
        if "speed" not in keys:
            continue
        speed = _SPEEDS[choice(keys["speed"], tuple(_SPEEDS), "speed")]
        for name in sequence(keys.get("port_names")):
            if text(name) not in ports:
                raise name.wrong(f"no port is named {text(name)!r}")
            found[text(name)] = speed
    return found


def port_options(
    options: Value | None, ports: Collection[str], rate_of: Callable[[str], int]
) -> dict[str, PortOptions]:
    """The settings of the ports that have some."""
    found: dict[str, PortOptions] = {}
    if options is None:
        return found
    for port in sequence(options.mapping(("per_port_options",), "options").get("per_port_options")):
        keys = port.mapping(("port_name", "protocols"), "per_port_options")
        if "port_name" not in keys:
            raise port.wrong("per_port_options has a port_name")
        name = text(keys["port_name"])
        if name not in ports:
            raise keys["port_name"].wrong(f"no port is named {name!r}; there is {', '.join(ports) or 'none'}")
        for protocol in sequence(keys.get("protocols")):
            own = protocol.mapping(("choice", "rocev2"), "a protocol")
            if "rocev2" in own:
                found[name] = _rocev2(own["rocev2"], rate_of(name))
    return found


def _rocev2(value: Value, line_rate: int) -> PortOptions:
    keys = value.mapping(("cnp", "connection_type", "dcqcn_settings"), "rocev2")
    interval, cnp = 50_000, None
    if "cnp" in keys:
        known = ("choice", "ip_dscp", "ecn_value", "cnp_delay_timer")
        own = keys["cnp"].mapping(known, "cnp")
        cnp = _tclass(keys["cnp"], known, "cnp")
        timer = own.get("cnp_delay_timer")
        interval = _US * (55 if timer is None else number(timer, "cnp_delay_timer", 0, 255))
    ack = nak = None
    timeout, retries = NO_PORT_OPTIONS.timeout, NO_PORT_OPTIONS.retry_cnt
    if "connection_type" in keys:
        kind = keys["connection_type"].mapping(("choice", "reliable_connection"), "connection_type")
        if "reliable_connection" in kind:
            settings = (
                *("ack", "nak", "enable_retransmission_timeout"),
                *("retransmission_timeout_value", "retransmission_retry_count"),
            )
            own = kind["reliable_connection"].mapping(settings, "reliable_connection")
            answers = ("choice", "ip_dscp", "ecn_value")
            ack = _tclass(own["ack"], answers, "ack") if "ack" in own else None
            nak = _tclass(own["nak"], answers, "nak") if "nak" in own else None
            if "retransmission_timeout_value" in own:
                value_ms = own["retransmission_timeout_value"]
                timeout = _timeout(number(value_ms, "retransmission_timeout_value", 0, 5369))
            if "enable_retransmission_timeout" in own and not flag(
                own["enable_retransmission_timeout"], "enable_retransmission_timeout"
            ):
                timeout = 0
            if "retransmission_retry_count" in own:
                count = number(own["retransmission_retry_count"], "retransmission_retry_count", 0, 254)
                if count > _MOST_RETRIES:
                    raise own["retransmission_retry_count"].wrong(
                        f"a QP's retry counter has 3 bits: 0 to {_MOST_RETRIES}, not {count}"
                    )
                retries = count
    dcqcn = _dcqcn(keys["dcqcn_settings"], line_rate) if "dcqcn_settings" in keys else None
    return PortOptions(interval, cnp, ack, nak, timeout, retries, dcqcn)


def _tclass(value: Value, known: tuple[str, ...], what: str) -> int:
    """The traffic class of CNPs, ACKs or NAKs: DSCP and ECN."""
    keys = value.mapping(known, what)
    dscp, ecn = 48, "ect_1"
    if "ip_dscp" in keys:
        own = keys["ip_dscp"].mapping(("value",), "ip_dscp")
        if "value" in own:
            dscp = number(own["value"], "ip_dscp", 0, 63)
    if "ecn_value" in keys:
        ecn = choice(keys["ecn_value"], tuple(ECN), "ecn_value")
    return dscp << 2 | ECN[ecn]


def _timeout(milliseconds: int) -> int:
    """The code of the shortest local ACK timeout that is at least so long; 0: none."""
    if not milliseconds:
        return 0
    for code in range(1, _MOST_CODE):
        if (wire.local_ack_timeout_ns(code) or 0) >= milliseconds * 1_000_000:
            return code
    return _MOST_CODE


def _dcqcn(value: Value, line_rate: int) -> DcqcnParameters | None:
    """DCQCN with OTG's parameters and defaults; rates are percentages of the port's line rate."""
    numbers = {
        "alpha_g": (1019, 1, 1023),
        "initial_alpha": (1023, 1, 1023),
        "alpha_update_period": (21, 1, 1 << 32),
        "rate_reduction_time_period": (21, 0, 1 << 32),
        "maximum_rate_decrement_at_time": (10, 0, 100),
        "rate_increment_time": (250, 1, 1 << 32),
        "rate_increment_byte_counter": (32767, 1, 32767),
        "rate_increment_threshold": (25, 1, 31),
    }
    percents = {
        "initial_rate_after_first_cnp": 0.002,
        "minimum_rate_limmit": 0.002,  # the model's own spelling
        "additive_increment_rate": 0.001,
        "hyper_increment_rate": 0.001,
    }
    keys = value.mapping(("enable_dcqcn", *numbers, *percents, "clamp_target_rate"), "dcqcn_settings")
    if "enable_dcqcn" in keys and not flag(keys["enable_dcqcn"], "enable_dcqcn"):
        return None
    n = {
        name: default if name not in keys else number(keys[name], name, least, most)
        for name, (default, least, most) in numbers.items()
    }
    rate = {
        name: round(line_rate * (default if name not in keys else percent(keys[name], name)) / 100)
        for name, default in percents.items()
    }
    first = rate["initial_rate_after_first_cnp"]
    clamp = "clamp_target_rate" in keys and flag(keys["clamp_target_rate"], "clamp_target_rate")
    return DcqcnParameters(
        line_rate_bps=line_rate,
        min_rate_bps=max(1, rate["minimum_rate_limmit"]),
        g=1 - n["alpha_g"] / _ALPHA_ONE,
        alpha_ns=n["alpha_update_period"] * _US,
        increase_ns=n["rate_increment_time"] * _US,
        increase_bytes=n["rate_increment_byte_counter"],
        fast_steps=n["rate_increment_threshold"],
        additive_bps=rate["additive_increment_rate"],
        hyper_bps=rate["hyper_increment_rate"],
        initial_alpha=n["initial_alpha"] / _ALPHA_ONE,
        cut_ns=n["rate_reduction_time_period"] * _US,
        first_bps=first or None,
        most_cut=n["maximum_rate_decrement_at_time"] / 100,
        clamp_target=clamp,
    )
