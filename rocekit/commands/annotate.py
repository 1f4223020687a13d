"""``rocekit annotate``."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rocekit.commands import FILE, journal_option
from rocekit.commands.options import PCAPNG, last_is_output, output_option, read_option


@click.command()
@click.argument("files", type=FILE, nargs=-1, metavar="IN… OUT.pcapng")
@read_option
@output_option("out", FILE, help="As OUT.")
@click.option(
    "--sidecar",
    type=FILE,
    metavar="FILE",
    help="Also write what each packet is to FILE, for the fields rocekit.transfer, rocekit.finding, "
    "rocekit.round … in Wireshark.",
)
@journal_option
def command(
    files: tuple[Path, ...], out: Path | None, sidecar: Path | None, journal: tuple[Path, ...]
) -> None:
    """Write a capture again with a comment on each packet, for Wireshark and tshark.

    A comment names the work request and transfer of the packet, its PSN, and if it was sent again, which time
    and why. Findings are comments on the frames that they name. Comments of IN are kept. Frame numbers are
    the same in both files.

    Several captures of the same traffic are analyzed together: OUT is then a folder with a file for each of
    them. A comment then also names the frame and time in the other captures, or that the packet is not in
    them.

    With --sidecar, a command is printed that shows the same as fields to filter and colour by: transfer,
    connection, role, round, cause, finding, severity and story.

    \b
    Example:
      rocekit annotate x.pcapng annotated.pcapng
      rocekit annotate x.pcapng annotated.pcapng --sidecar x.rocekit.tsv
      tshark -r annotated.pcapng -T fields -e frame.number -e frame.comment
      rocekit annotate host1.pcap host2.pcap annotated
    """
    from rocekit.commands.shared import fail_on_damage, inputs_of, load
    from rocekit.errors import RocekitError
    from rocekit.files.outputs import check_output, one_for_each
    from rocekit.report.annotate import annotate
    from rocekit.wire.words import plural

    files, out = last_is_output(files, out, PCAPNG)
    if any(str(file) == "-" for file in files):
        raise RocekitError(
            "annotate reads its capture twice, which is not possible with standard input: save it to a file"
        )
    if len(files) == 1:
        check_output(out, inputs_of(files, journal))
    else:
        one_for_each(out, files, reads=inputs_of(files, journal), make=False)
    if sidecar is not None:
        if len(files) > 1:
            raise click.UsageError("--sidecar is for one capture")
        check_output(sidecar, [*inputs_of(files, journal), out])
    analysis = load(files, journal, whole=True)
    left_out = 0
    for done in annotate(analysis, *(one_for_each(out, files) if len(files) > 1 else [out])):
        left_out += done.left_out
        click.echo(
            f"{done.path}: {plural(done.frames, 'frame')}, {done.described:,} with a comment, "
            f"{done.findings:,} named by {plural(len(analysis.findings), 'finding')}",
            err=str(out) == "-",
        )
    if sidecar is not None:
        from rocekit.report.wireshark import lua_script, write_sidecar

        told = plural(write_sidecar(analysis, sidecar), "packet")
        words = ("-X", f"lua_script:{lua_script()}", "-o", f"rocekit.sidecar:{sidecar}", "-r", str(out))
        click.echo(f"{sidecar}: {told}; shown by tshark {shlex.join(words)}", err=str(out) == "-")
    if left_out:
        raise RocekitError(
            f"{plural(left_out, 'frame')} of link types that rocekit cannot read left out: frame numbers in "
            "comments are those of IN"
        )
    fail_on_damage(analysis)
