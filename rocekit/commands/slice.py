"""``rocekit slice``."""

from __future__ import annotations

from pathlib import Path

import click

from rocekit.commands import FILE, journal_option
from rocekit.commands.numbers import INDEX
from rocekit.commands.options import PCAPNG, last_is_output, output_option, read_option


@click.command()
@click.argument("files", type=FILE, nargs=-1, metavar="IN… OUT.pcapng")
@read_option
@output_option("out", FILE, help="As OUT.")
@click.option("--connection", "connections", type=INDEX, multiple=True, metavar="N", help="This connection.")
@click.option(
    "--transfer",
    "transfers",
    type=INDEX,
    multiple=True,
    metavar="N",
    help="This transfer with its ACKs, NAKs and the causes of its repeats.",
)
@click.option(
    "--finding",
    "findings",
    multiple=True,
    metavar="RULE",
    shell_complete=lambda ctx, param, text: _rules(text),
    help="The connections of this finding.",
)
@click.option(
    "--from", "begin", metavar="TIME", help="From this time: seconds of the capture, 250ms, or UTC."
)
@click.option("--to", "end", metavar="TIME", help="Up to this time.")
@click.option("--headers-only", is_flag=True, help="Leave out payloads; wire lengths stay.")
@click.option(
    "--redact",
    is_flag=True,
    help="Replace addresses, keys, GUIDs, private data and payload, equal values equally.",
)
@journal_option
def command(
    files: tuple[Path, ...],
    out: Path | None,
    connections: tuple[int, ...],
    transfers: tuple[int, ...],
    findings: tuple[str, ...],
    begin: str | None,
    end: str | None,
    headers_only: bool,
    redact: bool,
    journal: tuple[Path, ...],
) -> None:
    """Cut connections, transfers or findings out of a capture and its journal (OUT.journal.jsonl).

    Numbers are those of `rocekit analyze`. The packets of a connection include its CM messages, the TCP
    exchange that announced its QPs, and pause frames of that time; other frames are left out. With
    --headers-only or --redact alone, all RoCE packets are kept.

    Several captures of the same traffic are cut together: OUT is then a folder with a file for each of them
    and the journal beside the first.

    --redact replaces MAC and IP addresses, GIDs, GUIDs, rkeys, lkeys, Q_Keys, memory addresses, immediates,
    operands of atomics, host names and private data, and fills payloads with zeros, in packets, CM messages
    and journal, so that the analysis stays the same. Checksums and ICRCs are computed again; wrong ones stay
    wrong. Comments are removed.

    \b
    Example:
      rocekit slice x.pcapng story.pcapng --transfer 16
      rocekit slice x.pcapng ticket.pcapng --finding loss --redact
      rocekit slice x.pcapng start.pcapng --to 100ms --headers-only
      rocekit slice host1.pcap host2.pcap ticket --finding loss --redact
    """
    from rocekit.commands.shared import capture_time, fail_on_damage, inputs_of, load
    from rocekit.edit.redact import Redactor
    from rocekit.edit.slice import Choice, cut, journal_beside, originals
    from rocekit.errors import RocekitError
    from rocekit.files.outputs import check_output, one_for_each
    from rocekit.wire.text_table import safe
    from rocekit.wire.words import plural

    if not (connections or transfers or findings or begin or end or headers_only or redact):
        raise click.UsageError(
            "say what to keep: --connection, --transfer, --finding, --from, --to; or for all packets: "
            "--headers-only, --redact"
        )
    files, out = last_is_output(files, out, PCAPNG)
    if any(str(file) == "-" for file in files):
        raise RocekitError(
            "slice reads its capture twice, which is not possible with standard input: save it to a file"
        )
    outs = [out] if len(files) == 1 else one_for_each(out, files, make=False)
    for path in outs if len(files) == 1 or out.is_dir() else ():
        check_output(path, inputs_of(files, journal))
        if str(path) != "-":
            check_output(journal_beside(path), inputs_of(files, journal))
    analysis = load(files, journal, whole=True)
    choice = Choice(
        connections,
        transfers,
        findings,
        capture_time(begin, "--from", analysis),
        capture_time(end, "--to", analysis),
    )
    redactor = Redactor(taken=originals(analysis)) if redact else None
    if len(files) > 1:
        outs = one_for_each(out, files)
    done = cut(analysis, outs, choice, headers_only=headers_only, redactor=redactor)
    to_stdout = str(out) == "-"
    for file, part in zip(files, done.slices, strict=True):
        if part.path is None:
            click.echo(f"{safe(str(file))}: nothing to keep")
            continue
        of = plural(analysis.capture.counts.frames, "frame") if len(files) == 1 else str(file)
        words = [f"{part.path}: {part.frames:,} of {of}"]
        if part.left_out:
            words.append(f"{part.left_out:,} that are not RoCE left out")
        if part.wrong_icrcs:
            words.append(f"comments on {part.wrong_icrcs:,} whose ICRC was wrong")
        click.echo(", ".join(words), err=to_stdout)
    if done.journal is not None:
        click.echo(f"{done.journal}: {plural(done.events, 'event')}", err=to_stdout)
    fail_on_damage(analysis)


def _rules(beginning: str) -> list[str]:
    from rocekit.commands.rules import names

    return names(beginning)
