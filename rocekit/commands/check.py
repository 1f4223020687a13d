"""``rocekit check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import format_option, journal_option, print_json
from rocekit.commands.options import Output, captures, output_option, rules_option

if TYPE_CHECKING:
    from rocekit.findings import Rule
    from rocekit.report.verdicts import CaptureVerdict

_RESULTS = Output("a list of verdicts (JUnit, SARIF or JSON)", ".xml", ".sarif", ".json")


@click.command()
@captures
@click.option(
    "--fail-on",
    "least",
    type=click.Choice(["error", "warning", "info"]),
    default="warning",
    show_default=True,
    help="Findings of this severity and of worse ones count.",
)
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    metavar="RULE",
    shell_complete=lambda ctx, param, text: _names(text),
    help="Findings of this rule do not count; may be repeated.",
)
@output_option(
    "outs",
    _RESULTS,
    multiple=True,
    help="Also write verdicts: .xml (JUnit), .sarif or .json; may be repeated.",
)
@click.option("--together", is_flag=True, help="The files are captures of the same traffic: one verdict.")
@journal_option
@rules_option
@format_option
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    least: str,
    allowed: tuple[str, ...],
    outs: tuple[Path, ...],
    together: bool,
    journal: tuple[Path, ...],
    rules: tuple[Path, ...],
    output: str,
) -> None:
    """Hold captures to the claim that nothing went wrong, for CI: exit status 1 if something did.

    Each file gets its own verdict. A capture that cannot be read to its end, or has no RoCE packets, does not
    hold either: nothing was seen is not nothing went wrong.

    \b
    Example:
      rocekit check x.pcapng
      rocekit check captures/*.pcapng --fail-on error --allow tail-loss -o verdicts.xml
      rocekit check x.pcapng --rules my_rules.py -o verdicts.sarif
      rocekit check host1.pcap host2.pcap --together
    """
    from rocekit.findings.own_rules import checked, installed_rules
    from rocekit.findings.rules import RULES

    if len(files) > 1 and journal and not together:
        raise click.UsageError("--journal is of one capture: check one, or several --together")
    own = [rule for path in rules for rule in _of_file(path)]
    every: dict[str, Rule] = {**RULES, **{rule.name: rule for rule in checked([*installed_rules(), *own])}}
    for name in allowed:
        if name not in every:
            raise click.BadParameter(f"no rule is called {name!r}.{_near(name, every)}", param_hint="--allow")
    groups = [files] if together else [(file,) for file in files]
    verdicts = [_judge(group, journal, own, least, allowed) for group in groups]
    for out in outs:
        _write(out, verdicts, every, [*files, *journal, *rules])
    if output == "json":
        print_json({"schema": "rocekit/1", "captures": [verdict.to_dict() for verdict in verdicts]})
    else:
        for verdict in verdicts:
            _say(verdict)
    if not all(verdict.holds for verdict in verdicts):
        ctx.exit(1)


def _judge(
    files: tuple[Path, ...], journal: tuple[Path, ...], own: list[Rule], least: str, allowed: tuple[str, ...]
) -> CaptureVerdict:
    from rocekit.commands.shared import fail_on_damage, load, need_packets
    from rocekit.errors import RocekitError
    from rocekit.report.verdicts import CaptureVerdict, counting

    names, several = tuple(map(str, files)), len(files) > 1
    try:
        analysis = load(files, journal, plain=0, own_rules=own, whole=True)
        need_packets(analysis, "check")
    except RocekitError as error:
        return CaptureVerdict(names, (), (), str(error))
    problem = None
    try:
        fail_on_damage(analysis)
    except RocekitError as error:
        problem = str(error)
    findings = tuple(analysis.findings)
    return CaptureVerdict(
        names, findings, counting(findings, least, allowed), problem, several or analysis.capture.several
    )


def _say(verdict: CaptureVerdict) -> None:
    """A line that says whether the capture holds, and the findings that count."""
    from rocekit.commands import mark
    from rocekit.commands.shared import coloured
    from rocekit.findings.text import finding
    from rocekit.wire.text_table import safe, wrapped
    from rocekit.wire.words import plural

    words = []
    if verdict.failing:
        words.append(plural(len(verdict.failing), "finding"))
    if verdict.problem is not None:
        words.append(coloured(safe(verdict.problem.removeprefix(f"{verdict.name}: ")), "error"))
    others = len(verdict.findings) - len(verdict.failing)
    if others:
        words.append(f"{plural(others, 'finding')} that {'does' if others == 1 else 'do'} not count")
    lines = [f"{mark(verdict.holds)} {safe(verdict.name)}: {'; '.join(words) or 'no findings'}"]
    for one in verdict.failing:
        lines += finding(one, coloured, several=verdict.several)
    from rocekit.commands.screen import width

    click.echo("\n".join(wrapped(lines, width())))


def _write(out: Path, verdicts: list[CaptureVerdict], rules: dict[str, Rule], inputs: list[Path]) -> None:
    from rocekit._version import VERSION
    from rocekit.files.outputs import check_output, complete, writing
    from rocekit.report.verdicts import junit, sarif

    check_output(out, inputs)
    if out.suffix == ".xml":
        text = junit(verdicts, rules)
    elif out.suffix == ".sarif":
        text = sarif(verdicts, rules, VERSION)
    else:
        import json

        document: dict[str, Any] = {"schema": "rocekit/1", "captures": [v.to_dict() for v in verdicts]}
        text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
    with writing(out), complete(out) as file:
        file.write(text.encode())


def _of_file(path: Path) -> list[Rule]:
    from rocekit.findings.own_rules import rules_of_file

    return rules_of_file(path)


def _near(name: str, rules: dict[str, Rule]) -> str:
    import difflib

    near = difflib.get_close_matches(name, rules, n=1)
    return f" Did you mean {near[0]!r}?" if near else " `rocekit rules` lists them."


def _names(beginning: str) -> list[str]:
    from rocekit.commands.rules import names

    return names(beginning)
