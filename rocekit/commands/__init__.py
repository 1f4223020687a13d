"""The commands of ``rocekit``, one module each, and what several of them share.

Modules of commands import only click at their top: ``rocekit --help`` loads them all, and NumPy or Scapy is
loaded only when a command needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class _File(click.Path):
    """A path, or a URL, which a path would shorten."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "://" in value:
            load_numpy()
            from rocekit.files.joined import is_joined, is_part
            from rocekit.files.remote import RemotePath, is_remote

            if is_remote(value) or is_joined(value) or is_part(value):
                return RemotePath(value)
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path, readable=False)
"""A file that the command opens itself, so that its reader reports what is wrong with it."""


def format_option(command: F) -> F:
    """``--format text|json``, passed as ``output``."""
    return click.option(
        "--format",
        "output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text, or JSON for programs.",
    )(command)


def journal_option(command: F) -> F:
    """``--journal FILE``, any number of times, passed as ``journal``: a tuple of paths."""
    return click.option(
        "--journal",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="A journal of work requests and completions; may be repeated. x.journal.jsonl beside x.pcapng "
        "is found without it.",
    )(command)


def interfaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The network interfaces, for shell completion."""
    import socket

    return [name for _, name in socket.if_nameindex() if name.startswith(incomplete)]


def load_numpy() -> None:
    """Load NumPy without the threads of its linear algebra, which is not used here.

    The environment is restored, so that programs which a command starts are not affected.
    """
    name = "OPENBLAS_NUM_THREADS"
    asked = os.environ.get(name)
    os.environ[name] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[name]
        if asked is not None:
            os.environ[name] = asked


def print_json(document: object) -> None:
    """Print one JSON document and a newline on standard output."""
    import json  # most commands print text

    click.echo(json.dumps(document, indent=2, ensure_ascii=sys.stdout.isatty()))


def mark(ok: bool) -> str:
    """A coloured tick or cross, or a word if the encoding of standard output has neither."""
    sign = "✓" if ok else "✗"
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        sign = "yes" if ok else "no "
    return click.style(sign, fg="green" if ok else "red")
