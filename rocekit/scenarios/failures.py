"""``failures``: every completion status and connection event that can be provoked, once."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

from rocekit.endpoint import CmNews, Connection, Deadline, Endpoint, QpOptions, Request
from rocekit.errors import ScenarioError, VerbsError
from rocekit.scenarios.failure_cases import BYTES, CASES, Case, Side
from rocekit.scenarios.failure_meanings import EVENT_WORDS, STATUS_NOT, STATUS_WORDS
from rocekit.scenarios.scenario import OwnConnections, Plan, Remote, ScenarioRun, pack_reply, unpack_reply
from rocekit.wire import CM_EVENTS, WC_STATUSES

_ASKED = struct.Struct(">4sB")
_REPORT = struct.Struct(">4sII")
_MAGIC = b"rckf"
_BROKEN, _REFUSE, _LAST = 253, 254, 255
_COMPLETES_S = 3.0
_GOODBYE_S = 5.0
_STATUSES = tuple(WC_STATUSES.values())
#: Events that no case's connection causes, in this order: the device is gone after the last.
_PROVOKED = (
    *("ADDR_ERROR", "UNREACHABLE", "CONNECT_ERROR", "MULTICAST_JOIN", "MULTICAST_ERROR"),
    *("ADDR_CHANGE", "TIMEWAIT_EXIT"),
)
_LAST_PROVOKED = ("ROUTE_ERROR", "DEVICE_REMOVAL")


class Failures(OwnConnections):
    """Failures, one at a time, each on its own connection.

    1. for each status of a completion (enum ibv_wc_status) the client connects (rdma_connect), makes the one
       mistake that causes it, or has the server make it (ibv_post_send, ibv_post_recv, ibv_modify_qp), and
       polls (ibv_poll_cq); the QP has failed then, and is taken down (rdma_disconnect,
       ibv_destroy_qp);
    2. connection events (enum rdma_cm_event_type) come with that (rdma_get_cm_event); the others
       are provoked: a port without a listener and a server that rejects (rdma_connect, rdma_reject),
       addresses without a route (rdma_resolve_addr), a multicast group (rdma_join_multicast), and others that
       the backend supports;
    3. the server sends in the private data of its last accept (rdma_accept) which statuses and events it saw;
    4. for each one (ibv_wc_status_str, rdma_event_str) is printed which side saw it, how it was provoked
       or why it cannot be, and what it means. With --journal and --capture, rocekit explain shows the same
       for each work request.
    """

    name = "failures"
    summary = "Each completion status and CM event once, as far as the device can; says what each means."
    default_size = BYTES
    tcp = False
    default_iterations = 1

    def call(
        self, endpoint: Endpoint, host: str, plan: Plan, port: int, options: QpOptions, timeout_s: float
    ) -> ScenarioRun:
        run = ScenarioRun(endpoint, plan, [], timeout_s=timeout_s, options=options)
        statuses: dict[str, list[str]] = {}
        instead: dict[str, list[str]] = {}
        passing: dict[str, list[str]] = {}
        for index, case in enumerate(CASES):
            if case.windows and not endpoint.has_windows:
                instead[case.status] = ["not provoked: this device has no memory windows"]
                continue
            seen = self._try(endpoint, host, port, index, case, options, timeout_s)
            if case.status in seen:
                statuses.setdefault(case.status, []).append(case.how)
            else:
                other = f"tried {case.how}; the device reports {', '.join(seen) or 'nothing'}"
                instead.setdefault(case.status, []).append(other)
            for status in set(seen) & set(_STATUSES) - {case.status}:
                passing.setdefault(status, []).append(case.how)
            run.done += 1
        self._refusals(endpoint, host, port, options, timeout_s)
        broken = _ASKED.pack(_MAGIC, _BROKEN)

        def provoke(events: tuple[str, ...]) -> dict[str, str]:
            limit = min(timeout_s, _GOODBYE_S)
            found = {
                event: endpoint.provoke(event, (host, port), broken, Deadline(limit)) for event in events
            }
            return {event: why for event, why in found.items() if why is not None}

        why_not = provoke(_PROVOKED)
        theirs = self._report(endpoint, host, port, options, timeout_s)
        why_not |= provoke(_LAST_PROVOKED)
        _tell(run, statuses, instead, passing, why_not, theirs)
        return run

    def _try(
        self,
        endpoint: Endpoint,
        host: str,
        port: int,
        index: int,
        case: Case,
        options: QpOptions,
        timeout_s: float,
    ) -> list[str]:
        """The client's completion statuses in a case; or the device's error."""
        deadline = Deadline(timeout_s)
        region = endpoint.register(BYTES)
        wanted = case.client_options(_few(options))
        connection = endpoint.dial(host, port, wanted, deadline)
        side = Side(endpoint, connection, region)
        case.prepare_client(side)
        side.peer = unpack_reply(connection.connect(_ASKED.pack(_MAGIC, index), deadline))
        said: list[str] = []
        try:
            case.client(side)
            side.await_completions(case.expect, _COMPLETES_S)
        except VerbsError as error:
            said.append(str(error))
        connection.disconnect(Deadline(_GOODBYE_S))
        endpoint.forget(connection)
        return [completion.status for completion in side.completions] + said

    def _refusals(
        self, endpoint: Endpoint, host: str, port: int, options: QpOptions, timeout_s: float
    ) -> None:
        """Connect to a server that rejects."""
        deadline = Deadline(timeout_s)
        connection = endpoint.dial(host, port, _few(options), deadline)
        try:
            connection.connect(_ASKED.pack(_MAGIC, _REFUSE), deadline)
        except VerbsError:
            endpoint.forget(connection)
            return
        raise ScenarioError("the server accepted the connection that it should reject")

    def _report(
        self, endpoint: Endpoint, host: str, port: int, options: QpOptions, timeout_s: float
    ) -> tuple[set[str], set[str]]:
        """(statuses, events) that the server saw."""
        deadline = Deadline(timeout_s)
        connection = endpoint.dial(host, port, _few(options), deadline)
        said = connection.connect(_ASKED.pack(_MAGIC, _LAST), deadline)
        magic, statuses, events = _REPORT.unpack_from(said)
        if magic != _MAGIC:
            raise ScenarioError("the server is not `rocekit inject failures`")
        connection.disconnect(Deadline(_GOODBYE_S))
        endpoint.forget(connection)
        return _names(statuses, _STATUSES), _names(events, CM_EVENTS)

    def serve(self, endpoint: Endpoint, port: int, options: QpOptions, timeout_s: float) -> ScenarioRun:
        run = ScenarioRun(endpoint, Plan(self.name, BYTES, 1), [], timeout_s=timeout_s, options=options)
        statuses: set[str] = set()
        while True:
            deadline = Deadline(timeout_s)
            request = endpoint.request(deadline)
            asked = request.private_data[: _ASKED.size]
            magic, index = _ASKED.unpack(asked.ljust(_ASKED.size, b"\0"))
            if magic != _MAGIC or (index >= len(CASES) and index not in (_BROKEN, _REFUSE, _LAST)):
                request.reject(b"this server does failures")
            elif index == _REFUSE:
                request.reject(b"refused on purpose")
            elif index == _BROKEN:
                connection = request.connection(_few(options))
                with contextlib.suppress(VerbsError):
                    connection.accept(b"", deadline)
                endpoint.forget(connection)
            elif index == _LAST:
                report = _REPORT.pack(
                    _MAGIC, _bits(statuses, _STATUSES), _bits(_events(endpoint.heard_of), CM_EVENTS)
                )
                connection = request.connection(_few(options))
                connection.accept(report, deadline)
                _await_goodbye(endpoint, connection, timeout_s)
                return run
            else:
                statuses |= self._serve_one(endpoint, request, CASES[index], options, timeout_s)
                run.done += 1

    def _serve_one(
        self, endpoint: Endpoint, request: Request, case: Case, options: QpOptions, timeout_s: float
    ) -> set[str]:
        """The server's completion statuses in a case."""
        region = endpoint.register(BYTES, case.access)
        connection = request.connection(case.server_options(_few(options)))
        side = Side(endpoint, connection, region, Remote(0, 0, 0))
        case.prepare(side)
        connection.accept(pack_reply(region), Deadline(timeout_s))
        case.server(side)
        while not connection.disconnected:
            side.await_completions(len(side.completions) + 1, 0.05)
            endpoint.gone(expected=True)
        connection.disconnect(Deadline(_GOODBYE_S))
        endpoint.forget(connection)
        return {completion.status for completion in side.completions}


def _few(options: QpOptions) -> QpOptions:
    return replace(options, send_depth=4, recv_depth=4)


def _await_goodbye(endpoint: Endpoint, connection: Connection, timeout_s: float) -> None:
    deadline = Deadline(timeout_s)
    while not connection.disconnected and not deadline.passed():
        endpoint.gone(expected=True)
        endpoint.pause(0.01)
    connection.disconnect(Deadline(_GOODBYE_S))


def _events(news: list[CmNews]) -> set[str]:
    return {one.type for one in news}


def _bits(names: set[str], order: tuple[str, ...]) -> int:
    return sum(1 << place for place, name in enumerate(order) if name in names)


def _names(bits: int, order: tuple[str, ...]) -> set[str]:
    return {name for place, name in enumerate(order) if bits >> place & 1}


def _tell(
    run: ScenarioRun,
    statuses: dict[str, list[str]],
    instead: dict[str, list[str]],
    passing: dict[str, list[str]],
    why_not: dict[str, str],
    theirs: tuple[set[str], set[str]],
) -> None:
    """Note for each status and event who saw it, how it was provoked or why it was not, and what it means."""
    ours = _events(run.endpoint.heard_of)
    rows = []
    for status in _STATUSES:
        by = _seen_by(status in statuses or status in passing, status in theirs[0])
        if status in statuses:
            how = "; ".join(statuses[status] + instead.get(status, []))
        elif status in passing:
            how = "; ".join(passing[status] + instead.get(status, []))
        elif by:
            how = "the server's side of another mistake"
        else:
            how = "; ".join(instead.get(status, [])) or f"not provoked: {STATUS_NOT[status]}"
        rows.append(("WC", status, by, how, STATUS_WORDS[status]))
    for event in CM_EVENTS:
        by = _seen_by(event in ours, event in theirs[1])
        how = "" if by else f"not provoked: {why_not.get(event, 'it did not come in time')}"
        rows.append(("CM", event, by, how, EVENT_WORDS[event]))
    width = max(len(name) for _, name, *_ in rows)
    for kind, name, by, how, means in rows:
        run.notes.append(f"{kind}  {name:<{width}}  {by or '–':<14}  {means}")
        if how:
            run.notes.append(f"{'':<{width + 22}}{how}")
    run.details["provoked"] = [
        {"kind": kind, "name": name, "seen_by": by or None, "how": how or None, "means": means}
        for kind, name, by, how, means in rows
    ]
    for name in ("wc", "cm"):
        mine = [row for row in rows if row[0].lower() == name]
        seen = sum(bool(row[2]) for row in mine)
        run.notes.append(f"{seen} of {len(mine)} {'statuses' if name == 'wc' else 'connection events'} seen")


def _seen_by(client: bool, server: bool) -> str:
    return "client, server" if client and server else "client" * client + "server" * server
