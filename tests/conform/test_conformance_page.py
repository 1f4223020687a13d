"""docs/conformance.md has the suite's drills, claims and clauses, and sections that the specification has."""

from __future__ import annotations

import re
from collections import Counter

from places import ROOT

from rocekit.conform.suite import suite

PAGE = (ROOT / "docs" / "conformance.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.+) \| ([^|]+) \|((?: [^|]+ \|){4})$")
WORDS = {
    "pass": "pass",
    "**fail**": "fail",
    "n/a": "not applicable",
    "unsure": "inconclusive",
    "late": "inconclusive",
}
#: The headings of annex A17 (RoCEv2), September 2014, down to those that are cited.
A17 = {
    "A17.3", "A17.3.1", "A17.3.1.1.2", "A17.3.1.1.5", "A17.3.2", "A17.3.2.1", "A17.3.2.2", "A17.3.2.4",
    "A17.3.3", "A17.4.1.1", "A17.4.2", "A17.4.5.2", "A17.4.8", "A17.6.1.3", "A17.6.1.4", "A17.9.3", "A17.9.4",
}  # fmt: skip


def rows() -> dict[str, tuple[str, str, list[str]]]:
    """Claim, clause and verdicts of each drill in the tables."""
    found, area = {}, ""
    for line in PAGE.partition("## All drills")[2].splitlines():
        area = line[4:] if line.startswith("### ") else area
        if row := ROW.match(line):
            verdicts = [verdict.strip() for verdict in row[4].split("|")[:-1]]
            found[f"{area}/{row[1]}"] = row[2], row[3], verdicts
    return found


def test_the_page_has_each_drill_as_the_suite_has_it() -> None:
    assert {name: row[:2] for name, row in rows().items()} == {
        drill.name: (drill.claim, drill.clause.removeprefix("IBA ")) for drill in suite(())
    }


def test_the_verdicts_are_counted_as_they_stand_below() -> None:
    for word in set(WORDS.values()):
        [line] = re.findall(rf"^\| {word} \|(.*)\|$", PAGE, re.MULTILINE)
        counted = [
            Counter(WORDS[row[2][column]] for row in rows().values())[word]
            for column in range(line.count("|") + 1)
        ]
        assert [int(number) for number in line.split("|")] == counted


def cited() -> set[str]:
    """All sections that sources, drills and pages name."""
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    places += [path for kind in ("*.py", "*.yaml") for path in (ROOT / "rocekit").rglob(kind)]
    return {
        section for path in places for section in re.findall(r"\b(?:A?\d+)(?:\.\d+)+\b", path.read_text())
    }


def test_sections_of_the_annex_on_roce_v2_are_its_headings() -> None:
    assert {section for section in cited() if section.startswith("A17.")} == A17


def test_what_nobody_can_look_up_is_cited_by_the_section_above() -> None:
    """Of the BTH's fields only the opcode's section is sure; 9.7.5.2.4 is the NAK “remote access error”."""
    assert not {
        section
        for section in cited()
        if re.fullmatch(r"9\.2\.[2-9]|9\.7\.4\.1\.[123]|9\.7\.5\.2\.[34]", section)
    }


def test_drills_of_the_connection_manager_cite_the_states_of_their_side() -> None:
    """12.9.7.1 has the states of the active side, 12.9.7.2 those of the passive one."""
    others = {"active": "12.9.7.2", "passive": "12.9.7.1"}
    for side, section in others.items():
        drills = [drill for drill in suite(()) if drill.name.startswith(f"cm/{side}/")]
        assert drills
        assert not [drill.name for drill in drills if section in drill.clause + drill.unsure]
