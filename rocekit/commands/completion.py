"""``rocekit completion``."""

from __future__ import annotations

import os
from pathlib import Path

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
def command(shell: str | None) -> None:
    """Print what makes SHELL complete commands, options, rules and interfaces; without SHELL, for yours.

    \b
    bash: add to ~/.bashrc:  eval "$(rocekit completion bash)"
    zsh:  add to ~/.zshrc:   eval "$(rocekit completion zsh)"
    fish: once:              rocekit completion fish > ~/.config/fish/completions/rocekit.fish

    \b
    Example:
      rocekit completion bash
    """
    from click.shell_completion import get_completion_class

    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"cannot tell your shell; name one of {', '.join(SHELLS)}")
    writer = get_completion_class(name)
    assert writer is not None
    click.echo(
        writer(click.get_current_context().find_root().command, {}, "rocekit", "_ROCEKIT_COMPLETE").source()
    )
