"""The table of rules, in the order in which `rocekit rules` lists them. A new rule is a row.

A row has the rules' module, what an analysis must have for one of them to find something, and their names.
Where a capture has nothing of the kind, the module is not imported: most captures need a third of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from rocekit.findings.finding import SEVERITIES, Rule

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence
    from rocekit.findings.finding import Finding


class RuleRow(NamedTuple):
    """Rules that stand one after the other in the list, and in one module.

    Attributes:
        module: its name in this package; its ``RULE`` or ``RULES`` has them.
        needed: whether one of them may find something; where it is false, none does.
    """

    module: str
    needed: Callable[[Evidence], object]
    names: tuple[str, ...]


def _always(_evidence: Evidence) -> bool:
    return True


def _stories(evidence: Evidence) -> object:
    return evidence.stories


def _stories_or_uc(evidence: Evidence) -> object:
    return evidence.stories or evidence.totals.unreliable


def _copies(evidence: Evidence) -> object:
    return evidence.is_eventful or evidence.totals.copies


def _naks(evidence: Evidence) -> bool:
    return evidence.totals.naks > 0


def _repeats(evidence: Evidence) -> bool:
    return evidence.totals.retransmitted_packets > 0


def _sizes(evidence: Evidence) -> object:
    known = evidence.journal is not None or any(
        n.path_mtu is not None for c in evidence.agreed for n in c.negotiated
    )
    return evidence.stories or known or _naks(evidence) or evidence.survey.several_sizes()


def _pauses(evidence: Evidence) -> object:
    return evidence.stories or evidence.pauses or evidence.counts.pause_frames


def _bad_icrcs(evidence: Evidence) -> object:
    bad = evidence.bad_icrc or (evidence.observer is not None and evidence.observer.bad)
    return evidence.icrc_ignored or evidence.stories or bad or evidence.totals.bad_icrcs


def _icmp(evidence: Evidence) -> object:
    return evidence.witnesses is not None and evidence.witnesses.icmp


def _starts(evidence: Evidence) -> object:
    return evidence.stories or _naks(evidence) or any(map(evidence.knows_start, evidence.agreed))


def _vendor(evidence: Evidence) -> object:
    return evidence.observer is not None and evidence.observer.vendor


TABLE: Final = (
    RuleRow("silence", _stories, ("peer-silent",)),
    RuleRow("tail_loss", _stories, ("tail-loss",)),
    RuleRow("loss", _stories_or_uc, ("loss",)),
    RuleRow("reordering", _stories_or_uc, ("reordering",)),
    RuleRow("ack_loss", _stories, ("ack-loss",)),
    RuleRow("duplicate", _copies, ("duplicate",)),
    RuleRow("implied_nak", _stories, ("implied-nak",)),
    RuleRow("nak_ignored", _naks, ("nak-ignored",)),
    RuleRow("needless_repeat", _stories, ("needless-repeat",)),
    RuleRow("timeout_too_short", _stories, ("timeout-too-short",)),
    RuleRow("rnr", _stories, ("rnr",)),
    RuleRow("mtu_mismatch", _sizes, ("mtu-mismatch",)),
    RuleRow(
        "fatal_naks",
        lambda evidence: evidence.is_eventful,
        ("remote-access-error", "invalid-request", "remote-operational-error"),
    ),
    RuleRow("local_errors", lambda evidence: evidence.journal is not None, ("local-error",)),
    RuleRow("dscp_mismatch", _always, ("dscp-mismatch",)),
    RuleRow("class_differs", _always, ("class-differs",)),
    RuleRow("congestion", _always, ("ecn-unanswered", "cnp-storm")),
    RuleRow("incast", _always, ("incast",)),
    RuleRow("pause_stall", _pauses, ("pause-stall",)),
    RuleRow("low_entropy", _always, ("low-entropy",)),
    RuleRow("multipath", _always, ("multipath",)),
    RuleRow("icrc_bad", _bad_icrcs, ("icrc-bad",)),
    RuleRow("cm_rejected", lambda evidence: evidence.cm_records, ("cm-rejected",)),
    RuleRow("cm_unanswered", lambda evidence: evidence.exchanges or evidence.cm, ("cm-unanswered",)),
    RuleRow("icmp", _icmp, ("icmp-unreachable", "icmp-too-big")),
    RuleRow("arp_unanswered", lambda evidence: evidence.unanswered, ("arp-unanswered",)),
    RuleRow("dead_qp", _starts, ("dead-qp",)),
    RuleRow("read_depth", lambda evidence: evidence.agreed, ("read-depth",)),
    RuleRow("silence", _stories, ("retry-exceeded",)),
    RuleRow("retries", _repeats, ("retries-nearly-exhausted",)),
    RuleRow("go_back_cost", _repeats, ("go-back-n-cost",)),
    RuleRow("qpn_used_again", _stories, ("qpn-used-again",)),
    RuleRow("capture_limits", _always, ("capture-gap", "capture-truncated", "malformed")),
    RuleRow("vendor_opcode", _vendor, ("vendor-opcode",)),
    RuleRow("counter_mismatch", lambda evidence: evidence.counters, ("counter-mismatch",)),
)


class RuleTable(Mapping[str, Rule]):
    """The rules by name, in the order of ``TABLE``; a module is imported when a rule of it is asked for."""

    def __init__(self, rows: Iterable[RuleRow]) -> None:
        self._rows = {name: row for row in rows for name in row.names}

    def __getitem__(self, name: str) -> Rule:
        return next(rule for rule in _rules_in(self._rows[name].module) if rule.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _rules_in(module: str) -> tuple[Rule, ...]:
    """The rules of a module of this package."""
    found = vars(import_module(f"{__name__}.{module}"))
    return (found["RULE"],) if "RULE" in found else found["RULES"]


RULES: Final = RuleTable(TABLE)


def find(evidence: Evidence, own: Iterable[Finding] = ()) -> list[Finding]:
    """All findings, the worst first, and among equals in order of their first frames.

    Args:
        own: findings of rules that are not in the table.
    """
    needed = (name for row in TABLE if row.needed(evidence) for name in row.names)
    found = [finding for name in needed for finding in RULES[name].look(evidence)]
    return sorted([*found, *own], key=lambda f: (SEVERITIES.index(f.severity), f.frames[:1] or (1 << 62,)))
