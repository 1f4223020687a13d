"""Rules of others: from installed packages, by the entry point ``rocekit.findings``, or from a Python file.

An entry point names a :class:`rocekit.findings.Rule` or several of them; a file has them as its global
``RULE`` or ``RULES``. They are written as those in ``rocekit/findings/rules`` are, and look at the same
evidence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from rocekit.errors import RocekitError
from rocekit.findings.evidence import Evidence
from rocekit.findings.finding import SEVERITIES, Finding, Rule
from rocekit.findings.rules import RULES, find

GROUP: Final = "rocekit.findings"

#: Also SystemExit: a sys.exit() of a rule would end the command with its status, which may be 0, and no word.
_FAILS: Final = (Exception, SystemExit)


def installed_rules() -> list[Rule]:
    """The rules of installed packages.

    Raises:
        RocekitError: a package's rules cannot be loaded; it is named.
    """
    if not _is_mentioned():
        return []
    from importlib.metadata import entry_points

    found: list[Rule] = []
    for point in entry_points(group=GROUP):
        where = f"the rules {point.value} of an installed package"
        try:
            value = point.load()
        except _FAILS as error:
            raise RocekitError(f"{where} cannot be loaded: {_said(error)}") from None
        found += _rules(value, where)
    return checked(found)


def rules_of_file(path: str | Path) -> list[Rule]:
    """The rules of a Python file, which is run.

    Raises:
        RocekitError: it cannot be read or run, or has no rules.
    """
    import runpy

    if not Path(path).is_file():
        raise RocekitError(f"{path}: there is no such file of rules")
    try:
        names = runpy.run_path(str(path))
    except _FAILS as error:
        raise RocekitError(f"{path}: cannot be run: {_said(error)}") from None
    found = [rule for name in ("RULE", "RULES") if name in names for rule in _rules(names[name], str(path))]
    if not found:
        raise RocekitError(f"{path}: has no rules; name one RULE, or several RULES = (…)")
    return checked(found)


def find_all(evidence: Evidence, rules: Iterable[Rule] = ()) -> list[Finding]:
    """The findings of the built-in rules, of installed packages, and of these rules; the worst first."""
    return find(evidence, _look(checked([*installed_rules(), *rules]), evidence))


def checked(rules: Iterable[Rule]) -> list[Rule]:
    """The rules, each name once.

    Raises:
        RocekitError: two have one name, or one has that of a built-in rule, or a severity that is none.
    """
    rules, names = list(rules), set(RULES)
    for rule in rules:
        if rule.name in names:
            raise RocekitError(f"the rule {rule.name} is there twice: give the own one another name")
        if rule.severity not in SEVERITIES:
            raise RocekitError(
                f"the rule {rule.name} has severity {rule.severity!r}; use one of {SEVERITIES}"
            )
        names.add(rule.name)
    return rules


def _look(rules: Iterable[Rule], evidence: Evidence) -> Iterator[Finding]:
    """The findings of these rules.

    Raises:
        RocekitError: a rule failed; it and its error are named.
    """
    for rule in rules:
        try:
            yield from rule.look(evidence)
        except RocekitError:
            raise
        except _FAILS as error:
            raise RocekitError(f"the rule {rule.name} failed: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _rules(value: Any, where: str) -> list[Rule]:
    if isinstance(value, Rule):  # which is a tuple as well
        return [value]
    rules = list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(rule, Rule) for rule in rules):
        raise RocekitError(f"{where}: is no rocekit.findings.Rule, nor several of them")
    return rules


_mentions: dict[tuple[int, int, int], bool] = {}
"""Whether a folder mentions the group. Its key changes when a package is installed there."""


def _is_mentioned() -> bool:
    """Whether some installed package may have such an entry point.

    To ask importlib.metadata takes ten times as long, and every analysis asks.
    """
    for folder in sys.path:
        try:
            state = os.stat(folder or ".")  # noqa: PTH116 -- a Path for each takes as long
        except OSError:
            continue
        key = (state.st_dev, state.st_ino, state.st_mtime_ns)
        if key not in _mentions:
            _mentions[key] = _mentions_group(folder or ".")
        if _mentions[key]:
            return True
    return False


def _mentions_group(folder: str) -> bool:
    group = GROUP.encode()
    try:
        with os.scandir(folder) as entries:
            names = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:
        return False
    for name in names:
        try:
            file = os.open(f"{name}/entry_points.txt", os.O_RDONLY)  # there may be hundreds of files
            try:
                if group in os.read(file, os.fstat(file).st_size):
                    return True
            finally:
                os.close(file)
        except OSError:
            continue
    return False
