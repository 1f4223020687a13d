"""The table of rules, in the order in which `rocekit rules` lists them. A new rule is a row."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from rocekit.findings.finding import SEVERITIES
from rocekit.findings.rules import (
    ack_loss,
    arp_unanswered,
    capture_limits,
    class_differs,
    cm_rejected,
    cm_unanswered,
    congestion,
    counter_mismatch,
    dead_qp,
    dscp_mismatch,
    duplicate,
    fatal_naks,
    go_back_cost,
    icmp,
    icrc_bad,
    implied_nak,
    incast,
    loss,
    low_entropy,
    mtu_mismatch,
    multipath,
    nak_ignored,
    needless_repeat,
    pause_stall,
    read_depth,
    reordering,
    retries,
    rnr,
    silence,
    tail_loss,
    timeout_too_short,
    vendor_opcode,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocekit.findings.evidence import Evidence
    from rocekit.findings.finding import Finding

RULES: Final = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            silence.SILENT,
            tail_loss.RULE,
            loss.RULE,
            reordering.RULE,
            ack_loss.RULE,
            duplicate.RULE,
            implied_nak.RULE,
            nak_ignored.RULE,
            needless_repeat.RULE,
            timeout_too_short.RULE,
            rnr.RULE,
            mtu_mismatch.RULE,
            *fatal_naks.RULES,
            dscp_mismatch.RULE,
            class_differs.RULE,
            *congestion.RULES,
            incast.RULE,
            pause_stall.RULE,
            low_entropy.RULE,
            multipath.RULE,
            icrc_bad.RULE,
            cm_rejected.RULE,
            cm_unanswered.RULE,
            *icmp.RULES,
            arp_unanswered.RULE,
            dead_qp.RULE,
            read_depth.RULE,
            silence.EXCEEDED,
            retries.RULE,
            go_back_cost.RULE,
            *capture_limits.RULES,
            vendor_opcode.RULE,
            counter_mismatch.RULE,
        )
    }
)


def find(evidence: Evidence, own: Iterable[Finding] = ()) -> list[Finding]:
    """All findings, the worst first, and among equals in order of their first frames.

    Args:
        own: findings of rules that are not in the table.
    """
    found = [finding for rule in RULES.values() for finding in rule.look(evidence)]
    return sorted([*found, *own], key=lambda f: (SEVERITIES.index(f.severity), f.frames[:1] or (1 << 62,)))
