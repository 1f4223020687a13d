"""The findings are what happened: seeded runs of soft endpoints with faults, compared with their own record.

A thousand runs, shared out among the kinds of faults, or by default a sixth of them of a kind that allows no
mistake; more with ``ROCEKIT_SEEDS=20000 pytest tests/findings/test_findings_truth.py``.
``benchmarks/findings.py`` reports precision and recall of each rule.
"""

from __future__ import annotations

import pytest
from amount import runs
from fault_truth import KINDS, Kind, outcomes

SEEDS, FEWER_SEEDS = runs(1000, always=True), runs(1000)

#: The shares of what must be named that may be missed, and of runs in which something else may be said, where
#: the packets do not tell for certain (see the report in benchmarks/README.md).
LIMITS = {
    "response dropped": (0.03, 0.05),
    "response corrupted": (0.0, 0.05),
    "request doubled": (0.05, 0.05),
    "request held up 20 µs": (0.10, 0.10),
    "three in a hundred dropped": (0.0, 0.05),
    "request never arrives": (0.10, 0.10),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_each_fault_is_named_by_its_rule_and_psn_and_nothing_else(kind: Kind) -> None:
    seeds = SEEDS if kind.name in LIMITS else FEWER_SEEDS
    told = list(outcomes(kind, range(KINDS.index(kind), seeds, len(KINDS))))
    assert told
    missed = [(o.seed, e.rule, sorted(e.psns)) for o in told for e in o.missed]
    strange = [(o.seed, rule, sorted(psns)) for o in told for rule, psns in o.strange]
    may_miss, may_err = LIMITS.get(kind.name, (0.0, 0.0))
    assert len(missed) <= may_miss * sum(len(o.expected) for o in told), missed
    assert len({seed for seed, _, _ in strange}) <= may_err * len(told), strange


@pytest.mark.parametrize("seed", [65, 88])
def test_a_wait_for_the_receiver_outlasts_what_comes_late_in_it(seed: int) -> None:
    """A delayed packet arrives during the wait after an RNR NAK: the repeat that ends the wait is no loss."""
    (held_up,) = [kind for kind in KINDS if kind.name == "request held up 20 µs"]
    (told,) = outcomes(held_up, [seed])
    assert told.strange == []
    assert told.missed == []
