"""Names of capture files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from rocekit import files

#: In the order in which ``stem`` removes them.
CAPTURE_SUFFIXES: Final = (".gz", ".zst", ".pcapng", ".pcap", ".cap")

JOURNAL_SUFFIX: Final = files.JOURNAL_SUFFIX

_SUFFIX: Final = r"(?P<suffix>\.(?:pcapng|pcap|cap))(?P<count>\d*)(?P<packed>\.(?:gz|zst))?"
_CAPTURE: Final = re.compile(r"(?P<name>.+?)" + _SUFFIX, re.IGNORECASE)
#: What dumpcap appends: a number and the local time.
_RING: Final = re.compile(r"(?P<base>.+)_(?P<number>\d{5,})_(?P<time>\d{14})")
#: A time at the end, as tcpdump's -G and -w '%Y…' write it; or seconds since the epoch.
_TIME: Final = re.compile(
    r"(?P<base>.+?)[-_.](?P<time>(?:19|20)\d\d-?[01]\d-?[0-3]\d[-_T.]?[0-2]\d[-_:.]?[0-5]\d(?:[-_:.]?[0-5]\d)?Z?"
    r"|1\d{9})"
)


class Rotation(NamedTuple):
    """A file's place among those into which a capture program writes one after the other.

    Attributes:
        time, number: what orders them; base: the name that all of them have; suffix: ``.pcap``.
    """

    time: str
    number: int
    base: str
    suffix: str


def stem(capture: str | Path) -> str:
    """A capture's name without the suffixes that captures have."""
    name = Path(capture).name
    for suffix in CAPTURE_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def is_capture_name(name: str) -> bool:
    """Whether a file name ends as those of captures do."""
    return _CAPTURE.fullmatch(name) is not None


def rotation(name: str) -> Rotation:
    """What a file's name says about its place in a rotation.

    dumpcap writes ``x_00001_20261120160858.pcapng``, tcpdump ``x.pcap``, ``x.pcap1``, ``x.pcap2`` (-C), and
    names with a time (-G), such as ``x-20261120-160858.pcap``. Journals are named as dumpcap names captures.
    """
    if name.endswith(JOURNAL_SUFFIX):
        if ring := _RING.fullmatch(name.removesuffix(JOURNAL_SUFFIX)):
            return Rotation("", int(ring["number"]), ring["base"], JOURNAL_SUFFIX)
        return Rotation("", 0, name, "")
    match = _CAPTURE.fullmatch(name)
    if match is None:
        return Rotation("", 0, name, "")
    own, suffix, count = match["name"], match["suffix"], int(match["count"] or 0)
    if ring := _RING.fullmatch(own):
        return Rotation("", int(ring["number"]), ring["base"], suffix)
    if stamp := _TIME.fullmatch(own):
        return Rotation(re.sub(r"\D", "", stamp["time"]), count, stamp["base"], suffix)
    return Rotation("", count, own, suffix)


def is_there(path: Path) -> bool:
    """Whether a path exists; False where its folder may not be entered (``Path.exists`` raises then)."""
    try:
        return path.exists()
    except OSError:
        return False
