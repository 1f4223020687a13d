"""``--rotate`` and ``--keep``: when the next file begins, and how much stays."""

from __future__ import annotations

import click

ROTATE = "--rotate"
KEEP = "--keep"


def rotate_after(text: str) -> tuple[int | None, int | None]:
    """The size in bytes or the time in nanoseconds that ``--rotate`` means; the other is None.

    Raises:
        click.BadParameter: it is neither.
    """
    from rocekit.commands.numbers import parse

    text = text.strip()
    if text[-1:] == "m":
        raise click.BadParameter(f"{text}: {text}in for minutes, or {text[:-1]}M for MiB", param_hint=ROTATE)
    for kind in ("size", "seconds"):
        if text[-1:].isdigit():
            break  # a number alone may be either
        try:
            value = parse(text, kind)
        except ValueError:
            continue
        if value <= 0:
            break
        return (int(value), None) if kind == "size" else (None, max(1, round(value * 1e9)))
    raise click.BadParameter(
        f"{text!r} is neither a size such as 100M nor a time such as 60s, 10min or 1h", param_hint=ROTATE
    )


def keep_of(text: str) -> tuple[int | None, int | None]:
    """How many files stay, or how many bytes of all files, that ``--keep`` means; the other is None.

    Raises:
        click.BadParameter: it is neither.
    """
    from rocekit.commands.numbers import parse

    text = text.strip()
    try:
        value = int(parse(text, "size"))
    except ValueError:
        value = 0
    if value < 1:
        raise click.BadParameter(
            f"{text!r} is neither a number of files such as 10 nor a size of all such as 1G", param_hint=KEEP
        )
    return (value, None) if text.isdigit() else (None, value)
