"""Shortens a sequence of moves while a device still differs in the same way.

Hypothesis could do it, and plays several times as many drills for it: on a device each takes its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from rocekit.conform.random_moves import Move, PostMove, ReceiveMove, RequestMove

_Found = TypeVar("_Found")


def shortest(
    moves: list[Move], found: _Found, differs: Callable[[list[Move]], _Found | None], most: int
) -> _Found:
    """What is found with the shortest sequence.

    Args:
        found: what was found with ``moves``.
        differs: what a sequence gives; None where it does not differ in the same way.
        most: how many sequences are tried at most.
    """
    tried: dict[str, _Found | None] = {}

    def ask(candidate: list[Move]) -> _Found | None:
        key = repr(candidate)
        if key not in tried:
            if len(tried) >= most or not candidate:
                return None
            tried[key] = differs(candidate)
        return tried[key]

    size = max(1, len(moves) // 2)
    while True:
        before = len(moves)
        at = 0
        while at < len(moves):
            candidate = moves[:at] + moves[at + size :]
            got = ask(candidate)
            if got is None:
                at += size
            else:
                moves, found = candidate, got
        if size == 1 and len(moves) == before:
            break
        size = max(1, size // 2)
    for i in range(len(moves)):
        for simpler in _simpler(moves[i]):
            candidate = [*moves[:i], simpler, *moves[i + 1 :]]
            if (got := ask(candidate)) is not None:
                moves, found = candidate, got
                break
    return found


def _simpler(move: Move) -> Iterator[Move]:
    """Moves to try in place of one, the simplest first."""
    if isinstance(move, ReceiveMove):
        simpler: list[Move] = [ReceiveMove()]
    elif isinstance(move, PostMove):
        simpler = [PostMove("SEND"), replace(move, size=64), replace(move, answer="ack")]
    else:
        plain = replace(move, size=64, place=0)
        simpler = [RequestMove("RDMA_WRITE_ONLY"), replace(plain, bad_key=False, bad_icrc=False), plain]
        simpler += [replace(move, place=0), replace(move, size=64)]
    yield from (one for one in dict.fromkeys(simpler) if one != move)
