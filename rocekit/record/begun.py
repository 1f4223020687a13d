"""Recording a program that was started early, to its end, without the command line.

Its options are known, so what reads command lines, and what only other options need, is never loaded: that
would take as much processor time as all else that a short program's recording takes.
"""

from __future__ import annotations

from rocekit.record.outcome import end_as, failures, outcome, say
from rocekit.record.recorder import ProgramRecorder
from rocekit.record.start import DEFAULT_SLOTS, NICER, holding_signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rocekit.record.early import Begun


def record_begun(begun: Begun) -> None:
    """Record it as ``rocekit record`` does, and end like it.

    Raises:
        SystemExit: always, unless a signal ended the program, which then ends this process, too.
    """
    from rocekit.record.counters_around import CountersAround

    line = begun.line
    with holding_signals(begun.mask):
        recorder = ProgramRecorder(
            line.command,
            begun.output,
            begun.library,
            mask=begun.mask,
            children=line.children,
            begun=begun,
            slots=line.slots or DEFAULT_SLOTS,
            redact=line.redact,
            nicer=NICER,
            counters=CountersAround(None, None) if line.counters else None,
            rank=None if begun.rank is None else begun.rank.number,
        )
        result = recorder.run()
    for words, style in failures(result):
        say(words, style)
    if not line.quiet:
        for words, style in outcome(result):
            say(words, style)
    end_as(result)
