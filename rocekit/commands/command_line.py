"""The list of commands, and their command lines."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

import click

from rocekit._version import VERSION
from rocekit.commands.sandbox import OWN_PROCESS, sandbox_options, sandboxed
from rocekit.ending import EXIT_INTERRUPTED, debug_option, ending

COMMANDS: dict[str, str] = {
    "analyze": "rocekit.commands.analyze",
    "annotate": "rocekit.commands.annotate",
    "check": "rocekit.commands.check",
    "completion": "rocekit.commands.completion",
    "conform": "rocekit.commands.conform",
    "conform-agent": "rocekit.commands.conform_agent",
    "counters": "rocekit.commands.counters",
    "craft": "rocekit.commands.craft",
    "decode": "rocekit.commands.decode",
    "devices": "rocekit.commands.devices",
    "doctor": "rocekit.commands.doctor",
    "drill": "rocekit.commands.drill",
    "explain": "rocekit.commands.explain",
    "export": "rocekit.commands.export",
    "extcap": "rocekit.commands.extcap",
    "fleet": "rocekit.commands.fleet",
    "generate": "rocekit.commands.generate",
    "inject": "rocekit.commands.inject",
    "lab": "rocekit.commands.lab",
    "plot": "rocekit.commands.plot",
    "record": "rocekit.commands.record",
    "report": "rocekit.commands.report",
    "replay": "rocekit.commands.replay",
    "rules": "rocekit.commands.rules",
    "slice": "rocekit.commands.slice",
    "stats": "rocekit.commands.stats",
    "topology": "rocekit.commands.topology",
    "top": "rocekit.commands.top",
    "trace": "rocekit.commands.trace",
    "verify": "rocekit.commands.verify",
}
"""The name of each command and its module, which has it as ``command``; a new command is a row."""

GROUPS: dict[str, tuple[str, ...]] = {
    "Read captures": (
        *("analyze", "explain", "stats", "topology", "decode", "report", "plot", "export", "verify"),
        *("rules", "check", "fleet"),
    ),
    "Live": ("trace", "top", "record", "counters", "extcap"),
    "Make traffic": ("inject", "lab", "craft", "generate", "replay", "drill", "conform", "conform-agent"),
    "Change captures": ("annotate", "slice"),
    "This machine": ("doctor", "devices", "completion"),
}
"""The commands as ``rocekit --help`` lists them, by what one wants to do."""

_CAPTURES = tuple(
    capture + packed
    for capture in (".pcap", ".pcapng", ".cap")
    for packed in ("", ".gz", ".zst", ".xz", ".bz2")
)


def _choose_limits(_context: click.Context, option: click.Parameter, chosen: tuple[str, ...]) -> None:
    """Set the limits that the user names, for this process."""
    if not chosen:
        return
    from rocekit.machine.limits import choose_limit

    for one in chosen:
        name, _, value = one.partition("=")
        if not re.fullmatch("[0-9]{1,18}", value):
            raise click.BadParameter(f"{one!r} is not NAME=N", param=option)
        try:
            choose_limit(name, int(value))
        except ValueError as error:
            raise click.BadParameter(str(error), param=option) from None


def _print_all(context: click.Context, _option: click.Parameter, chosen: bool) -> None:
    if chosen:
        context.find_root().params["no_pager"] = True


#: Every command takes it; the help of `rocekit` has it once.
_LIMIT = click.Option(
    ["--limit"],
    multiple=True,
    expose_value=False,
    hidden=True,
    metavar="NAME=N",
    callback=_choose_limits,
    help="Raise a limit that a line names, for a file that is to be trusted.",
)

_NO_PAGER = click.Option(
    ["--no-pager"],
    is_flag=True,
    expose_value=False,
    hidden=True,
    callback=_print_all,
    help="Print on the terminal, however long it is.",
)
"""Every command takes it, as ``_LIMIT``."""


class Commands(click.Group):
    """Loads a command when it is used, and ends every error with one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for title, names in GROUPS.items():
            rows = []
            for name in names:
                command = self.get_command(ctx, name)
                if command is not None and not command.hidden:
                    # The whole first sentence: it wraps, and is not cut.
                    rows.append((name.ljust(longest), command.get_short_help_str(limit=1000)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        if not any(parameter.name == "debug" for parameter in command.params):
            debug_option(command)
            command.params[-1].hidden = True  # type: ignore[attr-defined]  # an option; rocekit --help has it
        if not any(parameter.name == _LIMIT.name for parameter in command.params):
            command.params += [_LIMIT, _NO_PAGER]
        if not any(parameter.name == "sandbox" for parameter in command.params):
            shown = len(command.params)
            sandbox_options(command)
            for option in command.params[shown:]:
                option.hidden = True  # type: ignore[attr-defined]  # as --debug
            sandboxed(cmd_name, command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _meant(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            if os.path.isfile(args[0]):  # noqa: PTH113  # pathlib takes 10 ms to import
                args = ["analyze", *args]
            elif os.path.isdir(args[0]):  # noqa: PTH112
                raise click.UsageError(
                    f"{args[0]} is a folder: name captures, or `rocekit fleet analyze {args[0]} -o LAKE`", ctx
                )
            elif args[0].endswith(_CAPTURES):
                # `rocekit x.pcap` and no such file: the command is not what is wrong.
                raise click.UsageError(f"there is no file {args[0]} to analyze", ctx)
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = _nearest(args[0]) if args else None
            if near is None or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near!r}?", ctx) from None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        # --help and --version write before any command is invoked.
        with ending():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> None:
        with ending(ctx):
            super().invoke(ctx)
            # Flush now: so a reader that has gone is found here and not when the interpreter ends.
            sys.stdout.flush()


def _meant(args: list[str]) -> list[str]:
    """The command line with the command that was meant: ``help X`` is ``X --help``.

    ``-r FILE`` is for tshark's users: it prints packets if there is a filter or ``-V``, and else is analyzed.
    """
    if not args or args[0] in COMMANDS:
        return args
    first, rest = args[0], args[1:]
    if first == "help":
        return [*rest[:1], "--help"]
    if first == "version" and not rest:
        return ["--version"]
    if first in ("-r", "--read"):
        return ["decode" if {"-Y", "-V", "-f", "--filter", "--fields"} & set(rest) else "analyze", *args]
    if first == "-i":
        return ["trace", *args]
    return args


def _nearest(name: str) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(name, COMMANDS, n=1)), None)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(VERSION, prog_name="rocekit")
@click.option("--no-pager", is_flag=True, help="Print on the terminal, however long it is.")
@debug_option
@sandbox_options
@click.option(
    "--limit",
    multiple=True,
    expose_value=False,
    metavar="NAME=N",
    callback=_choose_limits,
    help="Raise a limit that a line names, for a file that is to be trusted; every command takes it too.",
)
@click.pass_context
def rocekit(ctx: click.Context, no_pager: bool) -> None:
    """Explain RDMA transfers: what was posted, what went over the wire, what was completed, and when.

    \b
    Example:
      rocekit doctor
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    elif os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        ctx.color = True


def run() -> None:
    """The command, ended as click ends it, but for Ctrl-C: click would print a line and exit with 1.

    The steps are those of click's own ``main``, within :func:`ending`: so a Ctrl-C between two of them ends
    the command as one within them does.
    """
    status = 0
    try:
        if os.environ.get("_ROCEKIT_COMPLETE"):  # a shell asks for words
            rocekit.main(prog_name="rocekit", obj=OWN_PROCESS)
        with ending(), rocekit.make_context("rocekit", sys.argv[1:], obj=OWN_PROCESS) as ctx:
            rocekit.invoke(ctx)
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except click.exceptions.Exit as end:
        status = end.exit_code
    except click.Abort:
        status = EXIT_INTERRUPTED
    sys.exit(status)
