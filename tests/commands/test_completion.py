"""The shells themselves complete what `rocekit completion` gives them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rocekit.cli import rocekit

BIN = Path(sys.executable).parent

BASH = """
eval "$(rocekit completion bash)"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_rocekit_completion rocekit
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = 'rocekit completion fish | source; complete -C "{words}"'
# zsh completes in its line editor only: what can be asked is whether it took the function for the command.
ZSH = 'autoload -U compinit; compinit -D -u; eval "$(rocekit completion zsh)"; print $_comps[rocekit]'


def ask(shell: str, script: str) -> list[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} (apt-get install {shell})")
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [shell, "-c", script], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("shell", "script"), [("bash", BASH), ("fish", FISH)])
@pytest.mark.parametrize(
    ("words", "among"),
    [
        ("rocekit ana", "analyze"),
        ("rocekit analyze --jou", "--journal"),
        ("rocekit analyze --format js", "json"),
        ("rocekit rules tail", "tail-loss"),
        ("rocekit trace l", "lo"),
    ],
)
def test_a_shell_completes(shell: str, script: str, words: str, among: str) -> None:
    if among == "lo" and among not in [name for _, name in socket.if_nameindex()]:
        pytest.skip("no interface lo here")
    assert among in ask(shell, script.format(words=words))


def test_zsh_takes_the_function() -> None:
    assert ask("zsh", ZSH) == ["_rocekit_completion"]


def test_a_shell_that_cannot_be_told_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    result = CliRunner().invoke(rocekit, ["completion"])
    assert result.exit_code == 2
    assert "bash, zsh, fish" in result.stderr
