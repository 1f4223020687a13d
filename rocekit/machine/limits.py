"""What a file may cost: limits that no ordinary file meets, and an option to raise them.

A limit that is met is said in one line, with its name. ``rocekit --limit NAME=N`` sets another value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class Limit(NamedTuple):
    """A limit: its usual value, what it bounds, and what is open where an analysis met it and went on."""

    usual: int
    words: str
    met: str = ""


COMMENT_BYTES: Final = "comment-bytes"
BYTE_ORDERS: Final = "byte-orders"
UNPACK_RATIO: Final = "unpack-ratio"
JOURNAL_LINE_BYTES: Final = "journal-line-bytes"
YAML_BYTES: Final = "yaml-bytes"
YAML_VALUES: Final = "yaml-values"
PAIRING_LOOKS: Final = "pairing-looks"
KNOWN_PAIR_LOOKS: Final = "known-pair-looks"
PAUSE_LOOKS: Final = "pause-looks"
CAPTURE_PAIRS: Final = "capture-pairs"

LIMITS: Final[dict[str, Limit]] = {
    COMMENT_BYTES: Limit(
        64 << 20, "bytes of packets' comments kept of one capture, 64 more for each comment"
    ),
    BYTE_ORDERS: Limit(1_000, "times that the byte order of a pcapng file's sections changes"),
    UNPACK_RATIO: Limit(
        2_000, "bytes that a byte of a compressed file unpacks to, once 256 MiB have been unpacked"
    ),
    JOURNAL_LINE_BYTES: Limit(4 << 20, "bytes of a journal's line"),
    YAML_BYTES: Limit(16 << 20, "bytes of a YAML file"),
    YAML_VALUES: Limit(500_000, "values of a YAML file, aliases counted as often as they stand for one"),
    PAIRING_LOOKS: Limit(
        1 << 17,
        "flows between two hosts that responses are compared with, 8 more for each response",
        "some responses were not compared with all flows that they may respond to, so QPs may be unpaired, "
        "or paired only probably",
    ),
    KNOWN_PAIR_LOOKS: Limit(
        1 << 17,
        "QP pairs of the same address and number, from a journal, a handshake or the CM, that flows are "
        "compared with, 16 more for each flow",
        "some flows were not compared with all known QP pairs of their number, so QPs may be unpaired, or "
        "not have what the journal says of them",
    ),
    PAUSE_LOOKS: Limit(
        1 << 20,
        "silences of traffic classes that the senders' pause frames are compared with, "
        "64 more for each sender",
        "of some senders of pause frames it was not looked for which traffic classes sent nothing meanwhile, "
        "so their findings name none",
    ),
    CAPTURE_PAIRS: Limit(
        100_000,
        "pairs of captures whose relation JSON lists: 447 captures have fewer",
        "`relations` has only the captures that are nearest to one another in time, each two of them as far "
        "as the limit goes; `relation` is of all",
    ),
}

_chosen: dict[str, int] = {}


def limit(name: str) -> int:
    """The value of a limit."""
    return _chosen.get(name, LIMITS[name].usual)


def choose_limit(name: str, value: int) -> None:
    """Set another value.

    Raises:
        ValueError: there is no such limit, or the value is no number from 1.
    """
    if name not in LIMITS:
        raise ValueError(f"no limit is called {name!r}; there are {', '.join(LIMITS)}")
    if value < 1:
        raise ValueError(f"{name} takes a number from 1")
    _chosen[name] = value


def usual_limits() -> None:
    """Every limit has its usual value again."""
    _chosen.clear()


def how_to_raise(name: str) -> str:
    """What to do where a limit is met and the file is to be trusted, for the end of a line."""
    return f"--limit {name}=N raises that"


def met_words(name: str) -> str:
    """What may be wrong in an analysis that met a limit and went on, and what to do."""
    return f"limit {name} ({limit(name):,}) met: {LIMITS[name].met}; {how_to_raise(name)}"


def met_dicts(names: Iterable[str]) -> list[dict[str, str]]:
    """The JSON of limits that an analysis met."""
    return [{"limit": name, "meaning": met_words(name)} for name in sorted(names)]
