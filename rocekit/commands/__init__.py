"""The commands of ``rocekit``, one module each, and what several of them share.

Nothing here or in a command module may import more than click at its top: ``rocekit --help`` loads them
all, and a command pays for Scapy or NumPy only when it runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path, readable=False)
"""A file the command opens itself, so that what is wrong with it is said by the one who reads it."""


def format_option(command: F) -> F:
    """``--format text|json``, handed over as ``output``."""
    return click.option(
        "--format",
        "output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text to read, or JSON for programs.",
    )(command)


def journal_option(command: F) -> F:
    """``--journal FILE``, any number of times, handed over as ``journal``: a tuple of paths."""
    return click.option(
        "--journal",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="A journal of work requests and completions; give it again for another. "
        "x.journal.jsonl beside x.pcapng is found by itself.",
    )(command)


def interfaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The network interfaces that a shell may complete to."""
    import socket

    return [name for _, name in socket.if_nameindex() if name.startswith(incomplete)]


def load_numpy() -> None:
    """Load NumPy without the threads that its linear algebra, of which we have no need, would start.

    Programs that a command starts are not told: the environment stays as it was.
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
    """One JSON document on standard output, ended by a newline."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def mark(ok: bool) -> str:
    """A coloured tick or cross, or a word where standard output's encoding has neither."""
    sign = "✓" if ok else "✗"
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        sign = "yes" if ok else "no "
    return click.style(sign, fg="green" if ok else "red")
