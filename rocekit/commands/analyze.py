"""``rocekit analyze``."""

from __future__ import annotations

from pathlib import Path

import click

from rocekit.commands import format_option, journal_option
from rocekit.commands.options import captures, rules_option


@click.command()
@captures
@journal_option
@rules_option
@format_option
@click.option("--all", "every", is_flag=True, help="List every finding, connection and transfer.")
@click.option("--no-icrc", is_flag=True, help="Do not verify ICRCs.")
def command(
    files: tuple[Path, ...],
    journal: tuple[Path, ...],
    rules: tuple[Path, ...],
    output: str,
    every: bool,
    no_icrc: bool,
) -> None:
    """Analyze a capture: what went wrong, its connections and its transfers ("-": standard input).

    Several files are captures of the same traffic at different points: a packet that is in several of them
    counts once, and their clocks are aligned.

    \b
    Example:
      rocekit analyze x.pcapng
      rocekit analyze host1.pcap host2.pcap --format json
      tcpdump -i eth0 -w - udp port 4791 | rocekit analyze -
    """
    from rocekit.commands.screen import show, width
    from rocekit.commands.shared import coloured, emit, fail_on_damage, load
    from rocekit.report.text import SHOWN_TRANSFERS, summary

    text = output == "text"
    plain = SHOWN_TRANSFERS if text and not every else None
    analysis = load(files, journal, rules=rules, check_icrc=not no_icrc, plain=plain)
    if not text:
        emit(analysis.document())
    else:
        shown = None if every else SHOWN_TRANSFERS
        show(summary(analysis, style=coloured, transfers=shown, width=width()))
    fail_on_damage(analysis)
