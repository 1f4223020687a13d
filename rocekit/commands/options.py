"""Options and arguments that are the same in all commands: captures to read, outputs, and their short names.

Short names are those of tshark and tcpdump: ``-r`` a capture, ``-i`` an interface, ``-w`` an output,
``-c`` a count, ``-Y`` a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rocekit.commands import FILE, F, interfaces
from rocekit.commands.numbers import Number

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from rocekit.packets.filters import Filter


class AsArgument(click.Option):
    """An option whose value is taken for an argument: ``-r x.pcap`` is ``x.pcap``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, expose_value=False, **kwargs)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for name in self.opts:
            # click has no action for it: its parser's own way to take an argument.
            option = parser._short_opt.get(name) or parser._long_opt[name]
            option.process = lambda value, state: state.largs.append(value)


def read_option(command: F) -> F:
    """``-r FILE``, any number of times: before what stands as an argument."""
    return click.option(
        "-r", "--read", cls=AsArgument, type=FILE, multiple=True, metavar="FILE", help="FILE, as in tshark."
    )(command)


def captures(command: F) -> F:
    """One or more captures: ``FILE…`` or ``-r FILE``, passed as ``files``."""
    command = read_option(command)
    return click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE…")(command)


def capture(command: F) -> F:
    """One capture: ``FILE`` or ``-r FILE``, passed as ``file``."""
    command = click.option(
        "-r", "--read", cls=AsArgument, type=FILE, metavar="FILE", help="FILE, as in tshark."
    )(command)
    return click.argument("file", type=FILE)(command)


def interface_argument(command: F) -> F:
    """``IFACE`` or ``-i IFACE``, passed as ``interface``."""
    command = click.option(
        "-i",
        "--interface",
        "given_interface",
        cls=AsArgument,
        metavar="IFACE",
        shell_complete=interfaces,
        help="IFACE, as in tshark.",
    )(command)
    return click.argument("interface", metavar="IFACE", shell_complete=interfaces)(command)


def max_connections_option(command: F) -> F:
    """``--max-connections N``, passed as ``max_connections``."""
    return click.option(
        "--max-connections",
        type=Number("count", 10),
        default=100_000,
        show_default=True,
        metavar="N",
        help="Of more connections keep half: those in use first.",
    )(command)


def capture_filter_option(command: F) -> F:
    """``--capture-filter`` or ``-f EXPR``, passed as ``capture_filter``: what the kernel passes."""
    return click.option(
        "--capture-filter",
        "-f",
        metavar="EXPR",
        help="Of the RoCE frames only those that match, as tcpdump and tshark -f take it: 'host 10.9.0.2'.",
    )(command)


class Output(click.Path):
    """A file to write, whose suffix must fit what is written.

    Args:
        what: what is written, in words, such as ``an HTML page``.
        suffixes: those that fit; a name without any is taken as it is.
    """

    def __init__(self, what: str, *suffixes: str) -> None:
        super().__init__(path_type=Path, readable=False)
        self.what = what
        self.suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(super().convert(value, param, ctx))  # type: ignore[arg-type]
        self.check(path, param, ctx)
        return path

    def check(
        self, path: Path, param: click.Parameter | None = None, ctx: click.Context | None = None
    ) -> None:
        """Fail if a name says that something else is written. Devices and pipes may have any name."""
        name = path.name.lower()
        suffix = path.suffix.lower()
        if not suffix or suffix[1:].isdigit() or name.endswith(self.suffixes):
            return
        if path.exists() and not path.is_file():
            return
        if suffix in _PACKED:
            self.fail(f"{path}: rocekit does not compress what it writes; leave out {suffix}.", param, ctx)
        *others, last = self.suffixes
        fit = f"{', '.join(others)} or {last}" if others else last
        self.fail(f"{path}: this is {self.what}; the name must end in {fit}.", param, ctx)


_PACKED = frozenset({".gz", ".zst", ".xz", ".bz2", ".lz4"})
PCAPNG = Output("a pcapng file", ".pcapng", ".ntar")
FRAMES = Output("a capture", ".pcapng", ".pcap", ".cap")
"""Frames: pcapng if the name ends so, else pcap."""
JOURNAL = Output("a journal", ".jsonl")
PAGE = Output("an HTML page", ".html", ".htm")


def output_option(dest: str, kind: Any, *, metavar: str = "FILE", **about: Any) -> Callable[[F], F]:
    """``-o``, ``--output``, ``-w`` or ``--write FILE``: the one word for what a command writes."""
    return click.option("-o", "--output", "-w", "--write", dest, type=kind, metavar=metavar, **about)


def last_is_output(files: tuple[Path, ...], out: Path | None, kind: Output) -> tuple[tuple[Path, ...], Path]:
    """Captures and output of ``IN… OUT`` or ``IN… -w OUT``.

    Raises:
        click.UsageError: the capture or the output is missing, or the output's name does not fit.
    """
    if out is None and files:
        files, out = files[:-1], files[-1]
    if out is None:
        raise click.UsageError("name the capture to read, and then the file to write")
    if not files:
        raise click.UsageError(f"{out}: name the capture to read, and then the file to write")
    if len(files) == 1 and out not in files:  # which is another mistake; of several captures it is a folder
        kind.check(out)
    return files, out


def _filter(ctx: click.Context, param: click.Parameter, value: str | None) -> Filter | None:
    if value is None or ctx.resilient_parsing:
        return None
    from rocekit.commands import load_numpy

    load_numpy()  # without threads: a command gives up rights for its own thread only
    from rocekit.packets.filters import Filter, FilterError

    try:
        return Filter(value)
    except FilterError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _filter_words(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The last word of the expression, completed to a field, a header or an opcode."""
    import re

    from click.shell_completion import CompletionItem

    from rocekit.packets.field_words import completions

    found = re.search(r"[\w.]*$", incomplete)
    word = "" if found is None else found[0]
    before = incomplete[: len(incomplete) - len(word)]
    return [CompletionItem(before + name) for name in completions(word)]


def filter_option(command: F) -> F:
    """``--filter``, ``-Y`` or ``-f EXPR``, passed as ``chosen``: a filter or None."""
    return click.option(
        "--filter",
        "-Y",
        "-f",
        "chosen",
        metavar="EXPR",
        callback=_filter,
        shell_complete=_filter_words,
        help="Only packets that match, such as 'psn >= 100 and opcode == WRITE'; see the examples.",
    )(command)


def given(ctx: click.Context, names: Sequence[str]) -> list[str]:
    """Which of these parameters stand on the command line, as options: ``--speed``."""
    found = []
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            found.append(max(param.opts, key=lambda o: (o.startswith("--"), len(o))))
    return found


def only_one_of(ctx: click.Context, *names: str) -> None:
    """Refuse options that contradict each other.

    Raises:
        click.UsageError: more than one of them is given.
    """
    found = given(ctx, names)
    if len(found) > 1:
        raise click.UsageError(f"{' and '.join(found)} contradict each other: leave one out", ctx)


def useless_without(ctx: click.Context, needed: str, *names: str) -> None:
    """Refuse options that say nothing without another one.

    Raises:
        click.UsageError: one of ``names`` is given, and ``needed`` is not.
    """
    if found := given(ctx, names):
        options = {p.name: max(p.opts, key=len) for p in ctx.command.params}
        if ctx.params.get(needed) in (None, (), False):
            raise click.UsageError(f"{found[0]} needs {options[needed]}", ctx)


def rules_option(command: F) -> F:
    """``--rules FILE``, any number of times, passed as ``rules``: files with rules of the user's own."""
    return click.option(
        "--rules",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="A Python file with rules of your own, which is run; may be repeated.",
    )(command)
