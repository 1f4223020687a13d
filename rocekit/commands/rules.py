"""``rocekit rules``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rocekit.commands import format_option, print_json
from rocekit.commands.options import rules_option

if TYPE_CHECKING:
    from rocekit.findings import Rule

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_PARTS = (
    ("meaning", "What it means"),
    ("seen_by", "How it is seen"),
    ("confused_with", "What it may be confused with"),
    ("what_to_do", "What to do"),
)


@click.command()
@click.argument("name", required=False, shell_complete=lambda ctx, param, text: names(text))
@rules_option
@format_option
def command(name: str | None, rules: tuple[Path, ...], output: str) -> None:
    """List all kinds of findings, or explain the one called NAME.

    \b
    Example:
      rocekit rules
      rocekit rules tail-loss
      rocekit rules --format json
      rocekit rules --rules my_rules.py
    """
    from rocekit.commands.screen import show
    from rocekit.findings.own_rules import checked, installed_rules, rules_of_file
    from rocekit.findings.rules import RULES

    own = checked([*installed_rules(), *(rule for path in rules for rule in rules_of_file(path))])
    every = {**RULES, **{rule.name: rule for rule in own}}
    if name is None:
        if output == "json":
            print_json([rule.to_dict() for rule in every.values()])
        else:
            show(listing(list(every.values())))
        return
    rule = every.get(name)
    if rule is None:
        import difflib

        near = difflib.get_close_matches(name, every, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else " `rocekit rules` lists them."
        raise click.BadParameter(f"no rule is called {name!r}.{hint}", param_hint="NAME")
    if output == "json":
        print_json(rule.to_dict())
    else:
        show(explanation(rule))


def names(beginning: str) -> list[str]:
    """The rules whose names start so, for shell completion."""
    from rocekit.findings.rules import RULES

    return [name for name in RULES if name.startswith(beginning)]


def listing(rules: list[Rule]) -> str:
    """One line for each rule: name, severity and summary."""
    width = max(len(rule.name) for rule in rules)
    lines = []
    for rule in rules:
        severity = click.style(f"{rule.severity:<7}", fg=_COLOURS[rule.severity])
        lines.append(f"{rule.name:<{width}}  {severity}  {rule.summary}")
    return "\n".join(lines)


def explanation(rule: Rule) -> str:
    """All texts of a rule, wrapped for a terminal."""
    import shutil
    import textwrap

    width = min(100, shutil.get_terminal_size((80, 24)).columns)
    head = f"{click.style(rule.name, bold=True)} · {click.style(rule.severity, fg=_COLOURS[rule.severity])}"
    parts = [head]
    for attribute, title in _PARTS:
        text = textwrap.fill(
            getattr(rule, attribute),
            width,
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        parts.append(f"{click.style(title, bold=True)}\n{text}")
    return "\n\n".join(parts)
