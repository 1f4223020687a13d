"""tshark's whole reading of chosen frames, as pyshark's packets and as a tree.

pyshark's own captures run an event loop of their own, which a notebook does not allow beside its own. So
tshark is run here, and pyshark makes its packets from what tshark says (PDML, one element a frame).
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rocekit.errors import CaptureError, needs_extra
from rocekit.verify.tshark import find_tshark, frame_by_frame

#: The longest display filter of one run of tshark, in characters: Linux allows 128 KiB a word.
_MOST_CHARACTERS: Final = 100_000
_BEGIN, _END = b"<packet>", b"</packet>"


def need_pyshark(purpose: str) -> Any:
    """pyshark's module that makes packets from tshark's XML.

    Raises:
        RocekitError: pyshark is not installed.
    """
    try:
        from pyshark.tshark.output_parser import tshark_xml
    except ImportError:
        raise needs_extra(f"{purpose} needs", "pyshark", "tshark") from None
    return tshark_xml


def frame_filters(frames: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Display filters that together choose these frames, in order, each with the last frame that it chooses.

    Args:
        frames: numbers, rising.
    """
    words: list[str] = []
    length, end = 0, 0
    for first, last in _runs(frames):
        word = f"{first}" if first == last else f"{first}..{last}"
        if words and length + len(word) > _MOST_CHARACTERS:
            yield f"frame.number in {{{','.join(words)}}}", end
            words, length = [], 0
        words.append(word)
        length, end = length + len(word) + 1, last
    if words:
        yield f"frame.number in {{{','.join(words)}}}", end


def _runs(frames: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as runs of consecutive ones."""
    first = last = None
    for frame in frames:
        if last is not None and frame == last + 1:
            last = frame
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = frame
    if first is not None and last is not None:
        yield first, last


def read_pdml(file: str, frames: Sequence[int], purpose: str, *, guess: bool = False) -> Iterator[bytes]:
    """tshark's ``<packet>`` element of each of these frames, in order; tshark ends with the iterator.

    Args:
        file: the capture.
        frames: numbers, rising.
        purpose: what needs it, for errors.
        guess: whether dissectors that guess at payloads stay on.

    Raises:
        CaptureError: there is no tshark, or it cannot read the capture, or only a part of it.
    """
    path, _ = find_tshark(purpose)
    common = [path, "-n", "-r", file, *frame_by_frame(guess=guess), "-T", "pdml"]
    given, said = 0, list[str]()
    for chosen, end in frame_filters(frames):
        with tempfile.TemporaryFile("w+", errors="replace") as complaints:
            process = subprocess.Popen(
                [*common, "-Y", chosen, "-c", str(end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
            )
            assert process.stdout is not None
            lines: list[bytes] = []
            try:
                for line in process.stdout:
                    word = line.strip()
                    if word == _BEGIN:
                        lines = []
                    lines.append(line)
                    if word == _END:
                        given += 1
                        yield b"".join(lines)
                process.wait()
                complaints.seek(0)
                said = [line.strip() for line in complaints if line.strip() and "dangerous" not in line]
            finally:
                if process.poll() is None:
                    process.terminate()
                process.stdout.close()
                process.wait()
    if given < len(frames):
        reason = f": {said[-1]}" if said else ""
        raise CaptureError(f"tshark gave {given} of {len(frames)} frames{reason}", file=file)
