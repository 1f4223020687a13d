"""ICMP errors are found by time, also where very many silences ask for very many of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rocekit.findings.errors_in_time import ErrorsInTime
from rocekit.packets.witnesses.icmp import IcmpError, Quote

QUOTE = Quote("10.0.0.1", "10.0.0.2", 100, 49152, 4, 0x12, 0)


def searched(errors: Sequence[IcmpError], start: int, end: int) -> dict[str, Any] | None:
    own = [e for e in errors if start <= e.time_ns <= end]
    found = {
        "kinds": sorted({e.kind for e in own}),
        "sources": sorted({e.source for e in own})[:16],
        "frames": [e.frame for e in own[:16]],
    }
    return found if own else None


def test_finds_what_a_search_of_all_finds() -> None:
    chance = random.Random(1)
    for _ in range(300):
        errors = [
            IcmpError(n, chance.randrange(60), f"r{chance.randrange(40)}", chance.choice("abc"), None, QUOTE)
            for n in range(chance.choice((0, 1, 2, 17, 70)))
        ]
        found = ErrorsInTime(errors)
        for _ in range(20):
            start = chance.randrange(60)
            end = start + chance.randrange(-2, 60)
            assert found.between(start, end) == searched(errors, start, end)


def test_looks_at_each_error_once_for_all_silences() -> None:
    class Looked(IcmpError):
        looks = 0

        @property
        def kind(self) -> str:
            Looked.looks += 1
            return "host unreachable"

    errors = [Looked(n, n, f"r{n}", "", None, QUOTE) for n in range(1000)]
    found = ErrorsInTime(errors)
    for n in range(500):
        assert found.between(n, n + 400) is not None
    assert Looked.looks <= len(errors)
