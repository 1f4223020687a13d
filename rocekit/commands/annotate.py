"""``rocekit annotate``."""

from __future__ import annotations

from pathlib import Path

import click

from rocekit.commands import FILE, journal_option


@click.command()
@click.argument("file", type=FILE, metavar="IN")
@click.argument("out", type=FILE, metavar="OUT.pcapng")
@journal_option
def command(file: Path, out: Path, journal: tuple[Path, ...]) -> None:
    """Write a capture again with each packet's story as its comment, for Wireshark and tshark to show.

    A comment says which work request and transfer the packet belongs to, its PSN, and if it was sent again,
    for which time and why. Findings stand on the frames that they name. Comments of IN are kept. Frame
    numbers are the same in both files.

    \b
    Example:
      rocekit annotate x.pcapng annotated.pcapng
      tshark -r annotated.pcapng -T fields -e frame.number -e frame.comment
    """
    from rocekit.annotate import annotate
    from rocekit.commands.shared import fail_on_damage, load
    from rocekit.errors import RocekitError
    from rocekit.outputs import check_output
    from rocekit.report.units import plural

    if str(file) == "-":
        raise RocekitError(
            "annotate reads its capture twice, which standard input cannot be: save it to a file"
        )
    check_output(out, [file])
    analysis = load([file], journal)
    done = annotate(analysis, out)
    click.echo(
        f"{out}: {plural(done.frames, 'frame')}, {done.described:,} with their story, "
        f"{done.findings:,} named by {plural(len(analysis.findings), 'finding')}",
        err=str(out) == "-",
    )
    if done.left_out:
        raise RocekitError(
            f"{plural(done.left_out, 'frame')} of link types that rocekit does not read are left out: frame "
            "numbers in the comments are those of IN"
        )
    fail_on_damage(analysis)
