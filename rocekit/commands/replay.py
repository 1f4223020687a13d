"""``rocekit replay``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from rocekit.commands import load_numpy
from rocekit.commands.frames import rate_option, remote_option, send_frames, show_frames, write_frames
from rocekit.commands.options import (
    FRAMES,
    capture,
    filter_option,
    only_one_of,
    output_option,
    useless_without,
)

if TYPE_CHECKING:
    from rocekit.craft.pace import Outgoing, Rate
    from rocekit.edit.replay import Replay
    from rocekit.edit.rewrite import Changes
    from rocekit.packets.filters import Filter

_NAMED = 8
"""So many values that are there are named, where one was not found."""
Pairs = tuple[tuple[str, str], ...]
T = TypeVar("T")


def _pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Pairs:
    pairs = []
    for text in values:
        old, equals, new = (part.strip() for part in text.partition("="))
        if not old or not equals or not new:
            raise click.BadParameter(f"{text!r} is not OLD=NEW")
        pairs.append((old, new))
    return tuple(pairs)


def _speed(ctx: click.Context, parameter: click.Parameter, value: str) -> float | None:
    if value == "max":
        return None
    try:
        speed = float(value.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise click.BadParameter(f"{value!r} is not a speed such as 2x or 0.5, nor max")
    return speed


@click.command()
@capture
@click.option("--ip", "ips", metavar="OLD=NEW", multiple=True, callback=_pairs, help="Replace an address.")
@click.option(
    "--mac",
    "macs",
    metavar="OLD=NEW",
    multiple=True,
    callback=_pairs,
    help="Replace a MAC address.  [default when sending: the interface's and its neighbours']",
)
@click.option("--qpn", "qpns", metavar="[IP/]OLD=NEW", multiple=True, callback=_pairs, help="Replace a QPN.")
@click.option(
    "--psn",
    "psns",
    metavar="[[IP/]QPN=]±N",
    multiple=True,
    help="Shift PSNs: of requests to this QP and of their responses; without a QP, all.",
)
@click.option("--rkey", "rkeys", metavar="OLD=NEW", multiple=True, callback=_pairs, help="Replace an rkey.")
@click.option("--va", metavar="±N", help="Shift remote addresses.")
@filter_option
@click.option(
    "--speed",
    default="1",
    metavar="N",
    callback=_speed,
    help="2x: in half the time; max: as fast as possible.",
)
@rate_option
@output_option("out", FRAMES, help="Write them (.pcapng, else pcap).")
@click.option("--send", "-i", "interface", metavar="IFACE", help="Send them on this interface.")
@remote_option
@click.pass_context
def command(
    ctx: click.Context,
    file: Path,
    chosen: Filter | None,
    speed: float | None,
    rate: Rate | None,
    out: Path | None,
    interface: str | None,
    allow_remote: tuple[str, ...],
    ips: Pairs,
    macs: Pairs,
    qpns: Pairs,
    psns: tuple[str, ...],
    rkeys: Pairs,
    va: str | None,
) -> None:
    """Send the RoCE packets of FILE again, with other addresses, QPNs, PSNs, keys ("-": standard input).

    OLD and IP are values in the capture. Checksums and ICRCs are computed again; wrong ones stay wrong. CM
    messages change as well: addresses, QPNs, starting PSNs. Without -w or --send, the packets are
    only printed. Packets are sent to loopback, this machine's addresses and its network namespaces only.

    \b
    Example:
      rocekit replay x.pcapng --ip 10.9.0.1=10.0.0.1 --ip 10.9.0.2=10.0.0.2
      rocekit replay x.pcapng --psn +1000 --speed 2x -w y.pcapng
      rocekit replay x.pcapng --filter 'src == 10.9.0.1' --ip 10.9.0.2=127.0.0.1 --rate 100Mbit --send lo
    """
    load_numpy()
    from rocekit.edit.replay import Replay
    from rocekit.errors import CaptureError
    from rocekit.files.outputs import check_output
    from rocekit.wire.words import duration, size

    if out is not None and interface is not None:
        raise click.UsageError("either -w or --send")
    only_one_of(ctx, "speed", "rate")
    useless_without(ctx, "interface", "allow_remote")
    if out is not None:
        check_output(out, [file])
    changes = _changes(file, ips, macs, qpns, psns, rkeys, va)
    replay = Replay(file, changes, chosen=chosen, speed=speed, rate=rate)
    extent = replay.extent
    _reject_unknown(replay, changes)
    left = ", ".join(f"{count:,} {why}" for why, count in extent.left_out.items())
    if left:
        click.echo(f"left out: {left}", err=True)
    if not extent.packets:
        raise CaptureError("no packets to send", file=file)
    if interface is not None:
        _send(replay, interface, allow_remote, own_macs=not macs, paced=speed is not None or rate is not None)
    elif out is not None:
        write_frames(replay.frames(), out, max(0, extent.first_ns))  # files have no times before 1970
    else:
        took = f" in {duration(extent.last_ns)}" if extent.last_ns else ""
        note = f", {size(extent.bytes)}{took},"
        show_frames(replay.frames(), extent.packets, replay.destinations, note)
    if extent.damage:
        raise CaptureError(f"{extent.damage[0]}; what could be read was used", file=file)


def _send(replay: Replay, interface: str, allowed: tuple[str, ...], *, own_macs: bool, paced: bool) -> None:
    from rocekit.commands.sandbox import give_up_root
    from rocekit.craft.pace import Outgoing
    from rocekit.craft.sender import Sender, mac_of

    with Sender(interface, replay.destinations, allowed) as sender:
        frames = replay.frames()
        if own_macs:
            source = bytes.fromhex(sender.mac.replace(":", ""))
            there = {
                address: bytes.fromhex(mac_of(address, interface).replace(":", "")) + source
                for address in replay.destinations
            }

            def addressed(frames: Iterator[Outgoing]) -> Iterator[Outgoing]:
                for one in frames:
                    yield Outgoing(there[one.dst] + one.frame[len(there[one.dst]) :], one.at_ns, one.dst)

            frames = addressed(frames)
        give_up_root()
        send_frames(frames, sender, paced=paced)


def _reject_unknown(replay: Replay, changes: Changes) -> None:
    """Reject a value to be replaced that no packet has: it is a typing error.

    Raises:
        ScenarioError: an address, MAC address, QP or rkey of the command line is not in the capture.
    """
    from rocekit.errors import ScenarioError

    extent = replay.extent
    if not extent.packets:
        return
    seen = extent.sources | extent.destinations
    for old in changes.addresses:
        if old not in seen:
            raise ScenarioError(f"no packet has the address {old}; there is {', '.join(sorted(seen))}")
    for mac in changes.macs:
        if mac not in extent.macs:
            raise ScenarioError(f"no packet has the MAC address {mac}; there is {_some(sorted(extent.macs))}")
    for option, qps in (("--qpn", changes.qpns), ("--psn", changes.psns)):
        for ip, qpn in qps:
            if qpn >= 0 and not any(number == qpn and ip in (None, at) for at, number in extent.qps):
                where = f" at {ip}" if ip is not None else ""
                known = sorted({number for at, number in extent.qps if ip in (None, at)})
                there = _some([hex(number) for number in known])
                raise ScenarioError(f"{option}: no packet names a QP {qpn:#x}{where}; there is {there}")
    for rkey in changes.rkeys:
        if rkey not in extent.rkeys:
            there = _some([hex(key) for key in sorted(extent.rkeys)])
            raise ScenarioError(f"--rkey: no packet has the rkey {rkey:#x}; there is {there}")


def _some(words: list[str]) -> str:
    """The first of them, for an error."""
    more = f" and {len(words) - _NAMED:,} more" if len(words) > _NAMED else ""
    return f"{', '.join(words[:_NAMED]) or 'none'}{more}"


# ---------------------------------------------------------------------- options


def _changes(
    file: Path, ips: Pairs, macs: Pairs, qpns: Pairs, psns: tuple[str, ...], rkeys: Pairs, va: str | None
) -> Changes:
    from rocekit.edit.replay import peers_of
    from rocekit.edit.rewrite import Changes

    shifts = dict(_shift(text) for text in psns)
    single = any(qpn >= 0 for _, qpn in shifts)
    if single and str(file) == "-":
        raise click.UsageError("--psn for one QP needs a FILE, which is read twice")
    changes = Changes(
        {_address("--ip", old): _address("--ip", new) for old, new in ips},
        {_mac(old): _mac(new) for old, new in macs},
        {_qp("--qpn", old): _number("--qpn", new, 24) for old, new in qpns},
        shifts,
        {_number("--rkey", old, 32): _number("--rkey", new, 32) for old, new in rkeys},
        0 if va is None else _signed("--va", va),
        peers_of(file) if single else {},
    )
    try:
        changes.check()
    except ValueError as error:
        raise click.UsageError(f"--ip: {error}") from None
    return changes


def _address(option: str, text: str) -> str:
    import ipaddress

    return _parsed(option, text, "an IP address", lambda: str(ipaddress.ip_address(text)))


def _mac(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", text):
        raise click.UsageError(f"--mac: {text!r} is not a MAC address")
    return text.lower()


def _number(option: str, text: str, bits: int) -> int:
    number = _parsed(option, text, "a number", lambda: int(text, 0))
    if not 0 <= number < 1 << bits:
        raise click.UsageError(f"{option}: {text} does not fit {bits} bits")
    return number


def _signed(option: str, text: str) -> int:
    return _parsed(option, text, "a number such as +1000", lambda: int(text, 0))


def _qp(option: str, text: str) -> tuple[str | None, int]:
    ip, slash, qpn = text.rpartition("/")
    return (_address(option, ip) if slash else None), _number(option, qpn, 24)


def _shift(text: str) -> tuple[tuple[str | None, int], int]:
    qp, equals, amount = text.rpartition("=")
    return (_qp("--psn", qp) if equals else (None, -1)), _signed("--psn", amount)


def _parsed(option: str, text: str, what: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ValueError:
        raise click.UsageError(f"{option}: {text!r} is not {what}") from None
