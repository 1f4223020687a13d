"""The states of a queue pair: every legal transition, and what each must and may set, in one table (10.3,
11.2.5.2).

Nothing else decides whether a modification is legal. ``None`` as a source stands for every state: any QP may
be moved to ERR or RESET at any time.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocekit.soft.engine.work import refuse

RESET, INIT, RTR, RTS, SQD, SQE, ERR = "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"
STATES: Final = (RESET, INIT, RTR, RTS, SQD, SQE, ERR)

#: Where the receiver takes packets in (10.3.1).
RECEIVES: Final = frozenset({RTR, RTS, SQD, SQE})
#: Where ibv_post_send and ibv_post_recv are refused; elsewhere a request is taken, in SQE and ERR to be
#: flushed.
NO_POST_SEND: Final = frozenset({RESET, INIT, RTR})
NO_POST_RECV: Final = frozenset({RESET})


@dataclass(frozen=True, slots=True)
class Rule:
    """What a transition must set and what it may set."""

    required: frozenset[str]
    optional: frozenset[str]


def _rule(required: str = "", optional: str = "") -> Rule:
    return Rule(frozenset(required.split()), frozenset(optional.split()))


_CONNECTED: Final = {
    (RESET, INIT): _rule("access", "pkey_index"),
    (INIT, INIT): _rule("", "access pkey_index"),
    (RTR, RTS): _rule("sq_psn", "access min_rnr_timer"),
    (RTS, RTS): _rule("", "access min_rnr_timer"),
    (RTS, SQD): _rule(),
    (SQD, RTS): _rule("", "access min_rnr_timer"),
}
_RC: Final = {
    **_CONNECTED,
    (INIT, RTR): _rule(
        "dest_ip dest_qpn path_mtu rq_psn max_dest_rd_atomic min_rnr_timer", "access tclass local_ip"
    ),
    (RTR, RTS): _rule("sq_psn timeout retry_cnt rnr_retry max_rd_atomic", "access min_rnr_timer"),
    (SQD, SQD): _rule(
        "", "access dest_ip timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic min_rnr_timer"
    ),
    (SQD, RTS): _rule(
        "", "access timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic min_rnr_timer"
    ),
}
_UC: Final = {
    **_CONNECTED,
    (INIT, RTR): _rule("dest_ip dest_qpn path_mtu rq_psn", "access tclass local_ip"),
    (SQD, SQD): _rule("", "access dest_ip"),
    (SQE, RTS): _rule("", "access"),
}
_UD: Final = {
    (RESET, INIT): _rule("qkey", "pkey_index"),
    (INIT, INIT): _rule("", "qkey pkey_index"),
    (INIT, RTR): _rule("", "qkey local_ip"),
    (RTR, RTS): _rule("sq_psn", "qkey"),
    (RTS, RTS): _rule("", "qkey"),
    (RTS, SQD): _rule(),
    (SQD, SQD): _rule("", "qkey"),
    (SQD, RTS): _rule("", "qkey"),
    (SQE, RTS): _rule("", "qkey"),
}

TRANSITIONS: Final = MappingProxyType(
    {
        "RC": MappingProxyType(_RC),
        "UC": MappingProxyType(_UC),
        "UD": MappingProxyType(_UD),
    }
)


def check(transport: str, before: str, after: str, given: frozenset[str]) -> None:
    """Whether ``ibv_modify_qp`` may do this.

    Raises:
        VerbsError: EINVAL, naming the transition, what is missing or what is too much.
    """
    if after not in STATES:
        raise refuse(errno.EINVAL, f"no QP state {after!r}; there are {', '.join(STATES)}")
    if after in (RESET, ERR):
        rule = _rule()
    else:
        found = TRANSITIONS[transport].get((before, after))
        if found is None:
            legal = sorted({to for at, to in TRANSITIONS[transport] if at == before} | {RESET, ERR})
            raise refuse(
                errno.EINVAL, f"a {transport} QP goes from {before} to {', '.join(legal)}, not to {after}"
            )
        rule = found
    missing = rule.required - given
    if missing:
        raise refuse(errno.EINVAL, f"{before} to {after} needs {', '.join(sorted(missing))}")
    extra = given - rule.required - rule.optional
    if extra:
        raise refuse(errno.EINVAL, f"{before} to {after} takes no {', '.join(sorted(extra))}")
