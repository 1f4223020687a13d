"""The errors of verbs: each message starts with the name of its errno."""

from __future__ import annotations

import errno

from rocekit.errors import VerbsError


class PostError(VerbsError):
    """A work request that was refused when it was posted (11.4.1.1).

    Attributes:
        errno: why.
        bad_wr: index of the request in its list; those before it were posted.
    """

    def __init__(self, code: int, message: str, *, bad_wr: int = 0) -> None:
        self.bad_wr = bad_wr
        super().__init__(_text(code, message), errno=code)


def verbs_error(code: int, message: str) -> VerbsError:
    """The error that a verb raises."""
    return VerbsError(_text(code, message), errno=code)


def _text(code: int, message: str) -> str:
    return f"{errno.errorcode.get(code, code)}: {message}"
