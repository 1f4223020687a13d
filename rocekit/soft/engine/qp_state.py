"""The states of a queue pair, and the attributes that each transition must and may set (10.3, 11.2.5.2).

Only this table decides whether a modification is legal. Besides, any QP may be moved to ERR or RESET at any
time.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocekit.soft.engine.errors import verbs_error

RESET, INIT, RTR, RTS, SQD, SQE, ERR = "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"
STATES: Final = (RESET, INIT, RTR, RTS, SQD, SQE, ERR)

#: States that receive packets (10.3.1).
RECEIVES: Final = frozenset({RTR, RTS, SQD, SQE})
#: States in which ibv_post_send and ibv_post_recv fail. In all others a request is posted; in SQE and ERR it
#: is flushed.
NO_POST_SEND: Final = frozenset({RESET, INIT, RTR})
NO_POST_RECV: Final = frozenset({RESET})


@dataclass(frozen=True, slots=True)
class Transition:
    """The attributes that a transition must set and may set."""

    required: frozenset[str]
    optional: frozenset[str]


def _to(required: str = "", optional: str = "") -> Transition:
    return Transition(frozenset(required.split()), frozenset(optional.split()))


_CONNECTED: Final = {
    (RESET, INIT): _to("access", "pkey_index"),
    (INIT, INIT): _to("", "access pkey_index"),
    (RTR, RTS): _to("sq_psn", "access min_rnr_timer"),
    (RTS, RTS): _to("", "access min_rnr_timer"),
    (RTS, SQD): _to(),
    (SQD, RTS): _to("", "access min_rnr_timer"),
}
_RC: Final = {
    **_CONNECTED,
    (INIT, RTR): _to(
        "dest_ip dest_qpn path_mtu rq_psn max_dest_rd_atomic min_rnr_timer", "access tclass local_ip"
    ),
    (RTR, RTS): _to("sq_psn timeout retry_cnt rnr_retry max_rd_atomic", "access min_rnr_timer"),
    (SQD, SQD): _to(
        "", "access dest_ip timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic min_rnr_timer"
    ),
    (SQD, RTS): _to("", "access timeout retry_cnt rnr_retry max_rd_atomic max_dest_rd_atomic min_rnr_timer"),
}
_UC: Final = {
    **_CONNECTED,
    (INIT, RTR): _to("dest_ip dest_qpn path_mtu rq_psn", "access tclass local_ip"),
    (SQD, SQD): _to("", "access dest_ip"),
    (SQE, RTS): _to("", "access"),
}
_UD: Final = {
    (RESET, INIT): _to("qkey", "pkey_index"),
    (INIT, INIT): _to("", "qkey pkey_index"),
    (INIT, RTR): _to("", "qkey local_ip"),
    (RTR, RTS): _to("sq_psn", "qkey"),
    (RTS, RTS): _to("", "qkey"),
    (RTS, SQD): _to(),
    (SQD, SQD): _to("", "qkey"),
    (SQD, RTS): _to("", "qkey"),
    (SQE, RTS): _to("", "qkey"),
}

TRANSITIONS: Final = MappingProxyType(
    {
        "RC": MappingProxyType(_RC),
        "UC": MappingProxyType(_UC),
        "UD": MappingProxyType(_UD),
    }
)


def check(transport: str, before: str, after: str, given: frozenset[str]) -> None:
    """Check that ``ibv_modify_qp`` may do this.

    Raises:
        VerbsError: EINVAL; names the transition, and the attributes that are missing or not allowed.
    """
    if after not in STATES:
        raise verbs_error(errno.EINVAL, f"no QP state {after!r}; there are {', '.join(STATES)}")
    if after in (RESET, ERR):
        transition = _to()
    else:
        found = TRANSITIONS[transport].get((before, after))
        if found is None:
            legal = sorted({to for at, to in TRANSITIONS[transport] if at == before} | {RESET, ERR})
            raise verbs_error(
                errno.EINVAL, f"a {transport} QP goes from {before} to {', '.join(legal)}, not to {after}"
            )
        transition = found
    missing = transition.required - given
    if missing:
        raise verbs_error(errno.EINVAL, f"{before} to {after} needs {', '.join(sorted(missing))}")
    extra = given - transition.required - transition.optional
    if extra:
        raise verbs_error(errno.EINVAL, f"{before} to {after} takes no {', '.join(sorted(extra))}")
