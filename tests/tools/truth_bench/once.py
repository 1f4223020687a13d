"""Results that are found once and asked for again, as a judge is about many captures of one wire."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Owner = TypeVar("_Owner")
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


def once(
    find: Callable[Concatenate[_Owner, _Rest], _Result],
) -> Callable[Concatenate[_Owner, _Rest], _Result]:
    """Have an object keep what one of its methods gives for the same positional arguments."""

    @functools.wraps(find)
    def kept(owner: _Owner, /, *of: _Rest.args, **named: _Rest.kwargs) -> _Result:
        assert not named
        results: dict[tuple[Any, ...], _Result] = vars(owner).setdefault("_once", {})
        key = (find, *of)
        if key not in results:
            results[key] = find(owner, *of, **named)
        return results[key]

    return kept
