"""The table of rules, in the order in which `rocekit rules` lists them. A new rule is a row."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from rocekit.findings.rules import (
    ack_loss,
    capture_limits,
    cm,
    congestion,
    dead_qp,
    dscp_mismatch,
    duplicate,
    icrc_bad,
    implied_nak,
    loss,
    low_entropy,
    mtu_mismatch,
    needless_repeat,
    pause_stall,
    read_depth,
    refusals,
    reordering,
    rnr,
    silence,
    tail_loss,
)

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
            needless_repeat.RULE,
            rnr.RULE,
            mtu_mismatch.RULE,
            *refusals.RULES,
            dscp_mismatch.RULE,
            *congestion.RULES,
            pause_stall.RULE,
            low_entropy.RULE,
            icrc_bad.RULE,
            *cm.RULES,
            dead_qp.RULE,
            read_depth.RULE,
            silence.EXCEEDED,
            *capture_limits.RULES,
        )
    }
)
