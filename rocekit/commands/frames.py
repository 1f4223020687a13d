"""What craft and replay share: frames printed, written or sent, and the options for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import F
from rocekit.commands.screen import say

if TYPE_CHECKING:
    from rocekit.craft.pace import Outgoing, Rate
    from rocekit.craft.sender import Sender

SHOWN = 20


def _rate(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Rate | None:
    from rocekit.craft.pace import parse_rate

    try:
        return None if value is None else parse_rate(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def rate_option(command: F) -> F:
    """``--rate RATE``, passed as a :class:`rocekit.craft.pace.Rate` or None."""
    return click.option(
        "--rate",
        metavar="RATE",
        callback=_rate,
        help="1000 or 1k: packets a second; 100Mbit: bits a second.",
    )(command)


def remote_option(command: F) -> F:
    """``--allow-remote ADDRESS``, any number of times."""
    return click.option(
        "--allow-remote",
        metavar="ADDRESS",
        multiple=True,
        help="Allow to send to this address of another machine.",
    )(command)


def show_frames(frames: Iterator[Outgoing], total: int, there: Iterable[str], note: str = "") -> None:
    """Print what would be sent: the first frames as lines, then how many there are.

    Args:
        there: all destination addresses.
        note: text after their number.
    """
    import io
    from itertools import islice

    from rocekit.commands.decode_lines import PacketLines
    from rocekit.files.pcapng_write import PcapngWriter
    from rocekit.files.reader import open_capture
    from rocekit.packets.decoder import Decoder
    from rocekit.wire.words import plural

    shown = list(islice(frames, SHOWN))
    file = io.BytesIO()
    with PcapngWriter(file) as writer:
        for one in shown:
            writer.write(one.frame, one.at_ns)
    file.seek(0)
    lines: list[str] = []
    printer, decoder = PacketLines(), Decoder()
    with open_capture(file) as reader:
        for batch in reader:
            lines += printer.lines(decoder.decode(batch), 0)
    if total > len(shown):
        lines.append(f"… and {total - len(shown):,} more")
    say("\n".join(lines))
    count = f"{plural(total, 'packet')}{note} to {', '.join(there)}"
    say(f"{count}, not sent: --send IFACE sends, -w FILE writes.", error=True)


def write_frames(frames: Iterable[Outgoing], out: Path, start_ns: int) -> None:
    """Write them to a file, the first at ``start_ns`` since the epoch, and print how many."""
    from rocekit.files.outputs import complete, writing
    from rocekit.files.write import frame_file
    from rocekit.wire.words import plural, size

    to_stdout = str(out) == "-"
    if to_stdout and sys.stdout.isatty():
        raise click.UsageError("a capture is not text: redirect standard output to a file or a pipe")
    count = total = 0
    with writing(out), complete(out) as whole, frame_file(whole) as file:
        for one in frames:
            file.write(one.frame, start_ns + one.at_ns)
            count, total = count + 1, total + len(one.frame)
    click.echo(f"{out}: {plural(count, 'packet')}, {size(total)}", err=to_stdout)


def send_frames(frames: Iterable[Outgoing], sender: Sender, *, paced: bool) -> None:
    """Send them, each at its time or as fast as possible, and print how many."""
    import time

    from rocekit.craft.pace import Pacer
    from rocekit.wire.words import duration, plural, size

    pacer, total, start = Pacer(), 0, time.monotonic_ns()
    for one in frames:
        if paced:
            pacer.wait(one.at_ns)
        sender.send(one.frame)
        total += len(one.frame)
    took = duration(time.monotonic_ns() - start)
    click.echo(f"{plural(sender.frames, 'packet')}, {size(total)} sent on {sender.interface} in {took}")
