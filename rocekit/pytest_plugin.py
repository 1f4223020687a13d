"""pytest-rocekit: the fixture ``assert_no``, which holds captures to claims in the tests of other projects.

    def test_the_write_loses_nothing(assert_no):
        run_my_program(capture="x.pcapng")
        assert_no("x.pcapng")                      # no finding of severity warning or error
        assert_no("x.pcapng", "rnr", "icrc-bad")   # none of these, whatever their severity

pytest finds it where rocekit is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocekit.analysis import Analysis
    from rocekit.findings import Rule


@pytest.fixture
def assert_no() -> Callable[..., Any]:
    """A function that fails the test if a capture has findings: see :func:`check_no`."""
    return check_no


def check_no(
    capture: str | Path | Analysis, *rules: str, at_least: str = "warning", own: tuple[Rule, ...] = ()
) -> Analysis:
    """Fail the test if a capture has such findings, cannot be read, or has nothing to judge.

    Args:
        capture: a file, or an analysis.
        rules: names of rules; none: all rules, whose findings are at least ``at_least`` severe.
        own: rules of your own beside the built-in ones.

    Returns:
        The analysis, for further claims.

    Raises:
        ValueError: no rule has that name; a misspelt claim would hold always.
    """
    __tracebackhide__ = True
    from rocekit.analysis import Analysis, analyze
    from rocekit.errors import RocekitError
    from rocekit.findings.own_rules import installed_rules
    from rocekit.findings.rules import RULES
    from rocekit.findings.text import finding
    from rocekit.report.verdicts import counting

    known = {*RULES, *(rule.name for rule in (*installed_rules(), *own))}
    for name in rules:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            raise ValueError(f"no rule is called {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    try:
        analysis = capture if isinstance(capture, Analysis) else analyze(capture, rules=own)
    except RocekitError as error:
        # A line, and not the way through the library to it.
        pytest.fail(str(error), pytrace=False)
    refusal = analysis.capture.contents.refusal("judge")
    if refusal is not None:
        pytest.fail(f"{', '.join(analysis.capture.files)}: {refusal}", pytrace=False)
    if analysis.capture.damage:
        file, words = analysis.capture.damage[0]
        pytest.fail(f"{file}: {words}: what is behind it was not judged", pytrace=False)
    found = (
        [f for f in analysis.findings if f.rule in rules]
        if rules
        else counting(tuple(analysis.findings), at_least, ())
    )
    if found:
        lines = [line for one in found for line in finding(one, several=analysis.capture.several)]
        pytest.fail("\n".join([f"{', '.join(analysis.capture.files)}:", *lines]), pytrace=False)
    return analysis
