"""``rocekit craft``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import FILE
from rocekit.commands.frames import rate_option, remote_option, send_frames, show_frames, write_frames
from rocekit.commands.numbers import COUNT
from rocekit.commands.options import FRAMES, output_option

if TYPE_CHECKING:
    from rocekit.craft.pace import Rate
    from rocekit.craft.yaml_file import Description

_NAMES = {"qpn": "dest_qpn"}


def _pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not key or not equals or not value:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _list(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rocekit.wire import OPCODES
    from rocekit.wire.cm import CM_MESSAGES
    from rocekit.wire.text_table import columns

    rows = [
        (f"{o.value:#04x}", o.name, " ".join(("BTH", *(h.name for h in o.headers)))) for o in OPCODES.values()
    ]
    rows += [("", f"CM_{name}", f"a MAD ({layout.section})") for name, layout in CM_MESSAGES.items()]
    click.echo("\n".join(columns(rows, indent="")))
    ctx.exit()


def _opcodes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The opcodes and CM messages that start so, for shell completion."""
    from rocekit.wire import OPCODES
    from rocekit.wire.cm import CM_MESSAGES

    names = [opcode.name for opcode in OPCODES.values()] + [f"CM_{name}" for name in CM_MESSAGES]
    return [name for name in names if name.startswith(incomplete.upper())]


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option(
    "--op",
    metavar="OPCODE",
    shell_complete=_opcodes,
    help="One packet of this opcode, in any case, in place of FILE.",
)
@click.option("--psn", metavar="N", help="Its PSN; with FILE, the first PSN of each flow.")
@click.option("--qpn", metavar="N", help="Its destination QP (dest_qpn).")
@click.option("--src", metavar="IP", help="Source address.  [default: 10.9.0.1, or the interface's]")
@click.option("--dst", metavar="IP", help="Destination address.  [default: 10.9.0.2]")
@click.option("--payload", metavar="BYTES", help="A number of bytes, text:… or hex:….")
@click.option(
    "--set", "fields", metavar="KEY=VALUE", multiple=True, callback=_pairs, help="Any other key; see below."
)
@click.option(
    "--step",
    "steps",
    metavar="FIELD=N",
    multiple=True,
    callback=_pairs,
    help="With --count: add N to the field from one packet to the next.",
)
@click.option(
    "--count",
    "-c",
    type=COUNT,
    default=1,
    help="How many packets; with FILE, how many times all of it.",
)
@rate_option
@output_option("out", FRAMES, help="Write them (.pcapng, else pcap).")
@click.option("--send", "-i", "interface", metavar="IFACE", help="Send them on this interface.")
@remote_option
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the opcodes."
)
def command(
    file: Path | None,
    op: str | None,
    fields: dict[str, str],
    steps: dict[str, str],
    count: int,
    rate: Rate | None,
    out: Path | None,
    interface: str | None,
    allow_remote: tuple[str, ...],
    **given: str | None,
) -> None:
    """Make packets from a YAML description, or one from --op, and write or send them.

    Fields that are not given have correct values: lengths, pad, ICRC, the next PSN. Fields that are given are
    sent as given, right or wrong; icrc=bad makes a wrong ICRC. Without -w or --send, the packets are only
    printed.

    FILE is a list of packets, or "packets:" with a list and beside it keys for all. Keys: op, payload, icrc,
    mtu, count, step, wait_us; src, dst, src_mac, dst_mac, vlan, priority, dscp, ecn, ttl, identification,
    fragment, flow_label, sport, dport, roce_version; and every field of the opcode's headers (--list).
    Packets are sent to loopback, this machine's addresses and its network namespaces only.

    \b
    Example:
      rocekit craft --op RC_SEND_ONLY --qpn 0x11 --psn 100 --count 3
      rocekit craft --op RC_ACKNOWLEDGE --set syndrome=0x60 --set icrc=bad -w nak.pcap
      rocekit craft packets.yaml --send lo --rate 1k
    """
    import time

    from rocekit.craft import Wrong, craft, destinations, how_many
    from rocekit.craft.yaml_file import read_packets
    from rocekit.errors import ScenarioError
    from rocekit.files.outputs import check_output

    if (file is None) == (op is None):
        raise click.UsageError("give a FILE of packets, or --op for one; --list names the opcodes")
    if out is not None and interface is not None:
        raise click.UsageError("either -w or --send")
    if out is not None:
        check_output(out, [] if file is None else [file])
    own: dict[str, Any] = {_NAMES.get(key, key): value for key, value in given.items() if value is not None}
    own |= fields
    if steps:
        own["step"] = steps
    description: Description | None = None
    if file is not None:
        description = read_packets(file)
        packets, common = [dict(p) for p in description.packets], {**description.common, **own}
    else:
        packets, common, count = [{"op": op, "count": count, **own}], {}, 1
    try:
        if interface is not None:
            _send(packets, common, count, rate, interface, allow_remote)
            return
        made = craft(packets, common, count=count, rate=rate)
        if out is not None:
            write_frames(made, out, time.time_ns())
        else:
            show_frames(made, how_many(packets, common) * count, destinations(packets, common))
    except Wrong as wrong:
        raise (ScenarioError(str(wrong)) if description is None else description.error(wrong)) from None


def _send(
    packets: list[dict[str, Any]],
    common: dict[str, Any],
    count: int,
    rate: Rate | None,
    interface: str,
    allowed: tuple[str, ...],
) -> None:
    from rocekit.commands.sandbox import give_up_root
    from rocekit.craft import craft, destinations
    from rocekit.craft.sender import Sender

    _address(packets, common, interface)
    with Sender(interface, destinations(packets, common), allowed) as sender:
        _mac_addresses(packets, common, sender.mac, interface)
        give_up_root()
        paced = rate is not None or any("wait_us" in p for p in (common, *packets))
        send_frames(craft(packets, common, count=count, rate=rate), sender, paced=paced)


def _address(packets: list[dict[str, Any]], common: dict[str, Any], interface: str) -> None:
    """Set missing source and destination addresses to the interface's own."""
    from rocekit.craft.sender import check_interface, interface_address
    from rocekit.errors import ScenarioError

    check_interface(interface)
    for key in ("src", "dst"):
        if key in common or all(key in packet for packet in packets):
            continue
        address = interface_address(interface)
        if key == "dst" and address != "127.0.0.1":
            raise ScenarioError("packets need a destination: --dst ADDRESS")
        if address is None:
            raise ScenarioError(f"{interface} has no address to send from: --src ADDRESS")
        common[key] = address


def _mac_addresses(packets: list[dict[str, Any]], common: dict[str, Any], mac: str, interface: str) -> None:
    """Set missing MAC addresses."""
    from rocekit.craft.sender import mac_of

    common.setdefault("src_mac", mac)
    if "dst_mac" in common:
        return
    known: dict[str, str] = {}
    for packet in packets:
        dst = str(packet.get("dst", common.get("dst")))
        if "dst_mac" not in packet:
            if dst not in known:
                known[dst] = mac_of(dst, interface)
            packet["dst_mac"] = known[dst]
