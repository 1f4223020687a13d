"""Failures that are known of devices, each with its evidence, so that a change is seen."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocekit.errors import ScenarioError
from rocekit.files.yaml import Value, read_yaml

KNOWN: Final = Path(__file__).parent / "known"

#: What the evidence of a failure says where the device's makers should know of it.
CANDIDATE: Final = "Candidate for upstream"


@dataclass(frozen=True, slots=True)
class KnownFailures:
    """Known failures of several devices.

    Attributes:
        lists: of each device: a pattern of its name, and by drill the evidence.
        random: the same by kinds of differences of random drills, or patterns of such (fnmatch(3)).
    """

    lists: Sequence[tuple[re.Pattern[str], Mapping[str, str]]]
    random: Sequence[tuple[re.Pattern[str], Mapping[str, str]]] = ()

    def evidence(self, device: str, drill: str) -> str:
        """Why this device is known to fail this drill; "" if it is not."""
        for pattern, failures in self.lists:
            if pattern.search(device) and drill in failures:
                return failures[drill]
        return ""

    def explained(self, device: str, kind: str) -> str:
        """Why random drills of this device differ in this way; "" if that is not known."""
        for pattern, kinds in self.random:
            if pattern.search(device):
                for known, evidence in kinds.items():
                    if fnmatch.fnmatchcase(kind, known):
                        return evidence
        return ""

    def candidates(self) -> frozenset[str]:
        """The drills whose failure is for the device's makers to look at."""
        return frozenset(
            name for _, failures in self.lists for name, evidence in failures.items() if CANDIDATE in evidence
        )

    def drills(self) -> frozenset[str]:
        """All drills that are named."""
        return frozenset(name for _, failures in self.lists for name in failures)


def read_known(paths: Sequence[Path] | None = None) -> KnownFailures:
    """The lists in files: ``device: PATTERN`` and ``failures: {DRILL: EVIDENCE}``; by default rocekit's.

    There may be ``random: {KIND: EVIDENCE}`` beside them.

    Raises:
        ScenarioError: a file cannot be read, or is no such list.
    """
    lists, random = [], []
    for path in sorted(KNOWN.glob("*.yaml")) if paths is None else paths:
        document = read_yaml(path)
        if document is None:
            raise ScenarioError(f"{path}: nothing is in it; it has device and failures")
        content = document.mapping(("device", "failures", "random"), "a list of known failures")
        if not {"device", "failures"} <= set(content) or any(
            not isinstance(content[key].content, dict) for key in content if key != "device"
        ):
            raise document.wrong(
                "a list of known failures is written as device: PATTERN, failures: {DRILL: EVIDENCE}"
            )
        try:
            pattern = re.compile(str(content["device"].content))
        except re.error as error:
            raise content["device"].wrong(f"device is a regular expression: {error}") from None
        lists.append((pattern, _evidence(content["failures"])))
        if "random" in content:
            random.append((pattern, _evidence(content["random"])))
    return KnownFailures(lists, random)


def _evidence(value: Value) -> dict[str, str]:
    return {name: " ".join(str(one.content).split()) for name, one in value.content.items()}
