"""README.md and the pages of docs/ tell the truth: every example in them prints what stands there.

A ``console`` block holds commands, each behind ``$ ``, and what they print; ``pycon`` blocks are a session at
the Python prompt. Both run from the repository's root, and each command once for all pages. Other blocks need
rights, an interface or minutes, and are not run. ``python tests/test_readme.py`` writes anew what they print.
"""

from __future__ import annotations

import atexit
import contextlib
import doctest
import functools
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "tools"))  # as a program it has no pytest that adds it
from command_lines import run_line

# A command of a page may need the file that the one before it made.
pytestmark = pytest.mark.xdist_group("pages")

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = {str(page.relative_to(ROOT)): page for page in (README, *sorted((ROOT / "docs").rglob("*.md")))}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str, page: Path) -> list[str]:
    return [text for name, text in BLOCK.findall(page.read_text()) if name == kind]


def commands(block: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert not parts[0], f"a console block begins with a command, not with {parts[0]!r}"
    return list(zip(parts[1::2], parts[2::2], strict=True))


@functools.cache
def own_folder() -> str:
    """Where this run has the files that the pages have in /tmp, which other programs use as well."""
    made = tempfile.TemporaryDirectory(prefix="rocekit-pages-")
    atexit.register(made.cleanup)
    return made.name


def run(command: str) -> str:
    """What a command prints in a pipe, errors included."""
    here = own_folder()
    return run_line(command.replace("/tmp/", f"{here}/"), ROOT).printed.replace(f"{here}/", "/tmp/")


def fixed(text: str) -> str:
    """Without what may differ between machines: which tshark there is."""
    return re.sub(r"tshark \d+(\.\d+)+", "tshark X", text).strip()


#: By page and first command: the commands of a block, which may need the files of those before them.
EXAMPLES = {
    f"{page} {examples[0][0]}": examples
    for page, path in PAGES.items()
    for examples in map(commands, blocks("console", path))
}
ran = functools.cache(run)


def shown_on(page: str = "") -> str:
    """All commands of a page, or of all pages."""
    return " ".join(
        command for name, examples in EXAMPLES.items() if name.startswith(page) for command, _ in examples
    )


def test_the_readme_shows_what_there_is() -> None:
    """Ten examples, on no more lines than one reads."""
    shown = shown_on(README.name)
    for name in ("analyze", "explain", "report", "decode", "stats", "inject", "craft", "generate", "verify"):
        assert f"rocekit {name} " in shown, name
    assert "rocekit trace" in README.read_text()
    assert blocks("pycon", README)
    assert len(README.read_text().splitlines()) <= 200


def test_there_are_examples() -> None:
    """Each command that can run anywhere has one on some page."""
    shown = shown_on()
    # What a filter such as grep no longer finds would leave an example empty.
    assert [command for block in EXAMPLES.values() for command, printed in block if not printed.strip()] == []
    for name in ("rules", "topology", "replay", "annotate", "slice", "plot", "export"):
        assert f"rocekit {name} " in shown, name


@pytest.mark.parametrize("example", EXAMPLES, ids=list(map(ascii, EXAMPLES)))
def test_a_command_prints_what_the_page_says(example: str) -> None:
    needs_tshark = any(re.match("rocekit verify|tshark ", command) for command, _ in EXAMPLES[example])
    if needs_tshark and shutil.which("tshark") is None:
        pytest.skip("no tshark (apt-get install tshark)")
    for command, printed in EXAMPLES[example]:
        assert fixed(ran(command)) == fixed(printed), command


@pytest.mark.parametrize("page", [name for name, path in PAGES.items() if blocks("pycon", path)])
def test_python_answers_what_the_page_says(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's sessions are one: later ones know the names of earlier ones."""
    monkeypatch.chdir(ROOT)
    told: list[str] = []
    whole = "\n".join(blocks("pycon", PAGES[page]))
    if ".pyshark(" in whole and shutil.which("tshark") is None:
        pytest.skip("no tshark (apt-get install tshark)")
    test = doctest.DocTestParser().get_doctest(whole, {}, page, None, 0)
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    assert not told, "".join(told)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_it_names_are_there(page: str) -> None:
    """Captures, scripts and pages named in the text are in the repository."""
    named = re.findall(
        r"(?<![\w/])(?:pcaps|scripts|tests|docs|benchmarks|contrib)/[\w./-]*\w", PAGES[page].read_text()
    )
    for name in set(named):
        assert (ROOT / name).exists(), name


def test_it_runs_as_a_program() -> None:
    """It says so at its head and in docs/install.md; importing it does all but the writing."""
    done = subprocess.run(
        [sys.executable, "-c", "import test_readme"], cwd=ROOT / "tests", capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def rewrite() -> None:
    """Put what the commands and statements print now into the pages."""

    def again(found: re.Match[str]) -> str:
        if found[1] == "console":
            return "```console\n" + "".join(f"$ {c}\n{ran(c)}" for c, _ in commands(found[2])) + "```"
        if found[1] == "pycon":
            return f"```pycon\n{session(found[2], names)}```"
        return found[0]

    os.chdir(ROOT)
    for page in PAGES.values():
        names: dict[str, object] = {}
        page.write_text(BLOCK.sub(again, page.read_text()))


def session(block: str, names: dict[str, object]) -> str:
    """A session's statements, each with what it prints now."""
    lines = []
    for example in doctest.DocTestParser().get_examples(block):
        first, *rest = example.source.splitlines()
        lines += [f">>> {first}", *(f"... {line}" for line in rest)]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(example.source, "<page>", "single"), names)
        lines += printed.getvalue().splitlines()
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    rewrite()
