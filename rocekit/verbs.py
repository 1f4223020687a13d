"""The verbs backend: an endpoint on any device the kernel offers, through pyverbs and librdmacm.

The only importer of pyverbs. Debian's python3-pyverbs is built for the distribution's Python; a virtual
environment of the same minor version can load it, and only it, from where the distribution keeps it
(:func:`load`), without seeing the rest of the distribution's packages.

The QPs are the program's own and rdma_cm only introduces the peers ("external QPs"), so every state change
and every attribute is known at the moment it happens, and can be chosen: rdma_cm moves QPs that it made
itself without a word.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import importlib.machinery
import importlib.util
import ipaddress
import itertools
import mmap
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rocekit import devices as sysfs
from rocekit.endpoint import (
    ATOMICS,
    LOCAL_WRITE,
    REMOTE_ATOMIC,
    REMOTE_READ,
    REMOTE_WRITE,
    Completion,
    Connection,
    Deadline,
    Disconnected,
    Endpoint,
    EndpointOptions,
    QpOptions,
    RecvWr,
    Region,
    Request,
    SendWr,
    errno_text,
)
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter
from rocekit.rdmacm import Channel, CmEvent, CmId
from rocekit.wire import PATH_MTU_BYTES, PATH_MTU_CODES, WC_STATUSES
from rocekit.wire_cm import REJ_REASONS

DISTRIBUTION = Path("/usr/lib/python3/dist-packages")
_MODULES = ("addr", "cq", "device", "enums", "mr", "pd", "pyverbs_error", "qp", "wr")
_RTR, _RTS = 2, 3  # enum ibv_qp_state
_LOOK_EVERY_S = 0.001
_FLUSH_S = 0.5
_GOODBYE_S = 3.0
_NO_WR = (1 << 64) - 1


def _network_order(immediate: int) -> int:
    """A 32-bit number as the machine's own whose bytes in memory are in network order, or back."""
    return int.from_bytes(immediate.to_bytes(4, "big"), sys.byteorder)


def load(folder: Path = DISTRIBUTION) -> SimpleNamespace:
    """pyverbs' modules, as attributes.

    Raises:
        VerbsError: it is not installed, or is built for another Python.
    """
    if "pyverbs" not in sys.modules and importlib.util.find_spec("pyverbs") is None:
        _load_from(folder)
    try:
        return SimpleNamespace(**{name: importlib.import_module(f"pyverbs.{name}") for name in _MODULES})
    except ImportError as error:
        raise VerbsError(
            f"pyverbs does not load ({error}): apt-get install --reinstall python3-pyverbs"
        ) from None


def _load_from(folder: Path) -> None:
    package = folder / "pyverbs"
    start = package / "__init__.py"
    if not start.exists():
        raise VerbsError("pyverbs is missing: apt-get install python3-pyverbs")
    built = {path.name.split(".", 1)[1] for path in package.glob("device.*.so")}
    ours = importlib.machinery.EXTENSION_SUFFIXES[0].lstrip(".")
    if ours not in built:
        raise VerbsError(
            f"pyverbs is built for another Python ({', '.join(sorted(built))}; this one needs {ours}): "
            "make the virtual environment with /usr/bin/python3"
        )
    spec = importlib.util.spec_from_file_location("pyverbs", start, submodule_search_locations=[str(package)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    spec.loader.exec_module(module)


def devices(*, with_limits: bool = True) -> list[sysfs.Device]:
    """The devices of this machine; with their limits where pyverbs is there.

    Raises:
        VerbsError: the kernel has no RDMA, or no device.
    """
    found = sysfs.devices()
    if not with_limits:
        return found
    try:
        pyverbs = load()
    except VerbsError:
        return found
    return [_with_limits(pyverbs, device) for device in found]


_LIMITS = (
    *("max_qp", "max_qp_wr", "max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_mr_size", "max_pd"),
    *("max_qp_rd_atom", "max_qp_init_rd_atom", "max_res_rd_atom", "max_mw", "max_ah", "max_srq"),
    *("max_srq_wr", "max_srq_sge", "max_mcast_grp", "max_pkeys", "atomic_caps"),
    *("vendor_id", "vendor_part_id", "hw_ver"),
)
_WC_OPCODES = (
    *("SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV"),
    *("RECV", "RECV_RDMA_WITH_IMM"),
)


def _with_limits(pyverbs: SimpleNamespace, device: sysfs.Device) -> sysfs.Device:
    try:
        with pyverbs.device.Context(name=device.name) as context:
            attributes = context.query_device()
            limits = {name: int(getattr(attributes, name)) for name in _LIMITS}
            ports = []
            for port in device.ports:
                attribute = context.query_port(port.number)
                ports.append(
                    replace(
                        port,
                        active_mtu=PATH_MTU_BYTES.get(attribute.active_mtu),
                        max_mtu=PATH_MTU_BYTES.get(attribute.max_mtu),
                    )
                )
    except pyverbs.pyverbs_error.PyverbsError:
        return device
    return replace(device, limits=limits, ports=tuple(ports))


class _Memory(Region):
    """A region over memory of this process that is zero at first."""

    def __init__(self, endpoint: VerbsEndpoint, length: int, access: int) -> None:
        if length < 1:
            raise ValueError("a region has at least one byte")
        self._bytes = mmap.mmap(-1, length)
        self.length = length
        self.addr = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        make = endpoint.pyverbs.mr.MR
        self._mr = endpoint.ask("register memory", lambda: make(endpoint.pd, length, access, self.addr))
        self.lkey = self._mr.lkey
        self.rkey = self._mr.rkey
        endpoint.resources.callback(self._mr.close)

    def read(self, offset: int, length: int) -> bytes:
        return self._bytes[offset : offset + length]

    def write(self, offset: int, data: bytes) -> None:
        self._bytes[offset : offset + len(data)] = data


class VerbsConnection(Connection):
    """An RC QP of a device, introduced to its peer by rdma_cm."""

    endpoint: VerbsEndpoint

    def __init__(self, endpoint: VerbsEndpoint, cm: CmId, options: QpOptions) -> None:
        self._cm = cm
        self._options = options
        self._pyverbs = endpoint.pyverbs
        self._responses: deque[CmEvent] = deque()
        qp = self._pyverbs.qp
        capacity = qp.QPCap(
            max_send_wr=options.send_depth,
            max_recv_wr=options.recv_depth,
            max_send_sge=options.sges,
            max_recv_sge=options.sges,
            max_inline_data=options.inline_size,
        )
        wanted = qp.QPInitAttr(
            qp_type=self._pyverbs.enums.IBV_QPT_RC,
            scq=endpoint.cq,
            rcq=endpoint.cq,
            cap=capacity,
            sq_sig_all=0,
        )
        hint = f"a QP with {options.send_depth} sends and {options.recv_depth} receives (-t, -r, -I)"
        self._qp = endpoint.ask(f"create {hint}", lambda: qp.QP(endpoint.pd, wanted))
        super().__init__(endpoint, self._qp.qp_num)
        endpoint.connections[self.qpn] = self
        endpoint.by_id[cm.handle] = self
        endpoint.resources.callback(self._close)
        if endpoint.journal is not None:
            endpoint.journal.write(
                "qp_created",
                qp=self.qp,
                transport="RC",
                max_send_wr=options.send_depth,
                max_recv_wr=options.recv_depth,
                sq_sig_all=False,
                local_ip=endpoint.ip,
            )
        self._to_init()

    # States: RESET to INIT when made, to RTR and RTS when the peer is known, to ERR when it is over.

    def _to_init(self) -> None:
        enums = self._pyverbs.enums
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_INIT)
        attributes.pkey_index = 0
        attributes.port_num = self.endpoint.port
        attributes.qp_access_flags = self.endpoint.access((REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC))
        mask = enums.IBV_QP_STATE | enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT | enums.IBV_QP_ACCESS_FLAGS
        self._modify("INIT", attributes, mask)

    def _to_ready(self) -> None:
        """To RTR and RTS, with what the handshake said and the options want."""
        options, enums = self._options, self._pyverbs.enums
        told, _ = self._cm.qp_attributes(_RTR)
        mtu = min(PATH_MTU_BYTES[told.path_mtu], options.path_mtu or max(PATH_MTU_BYTES.values()))
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTR)
        attributes.path_mtu = PATH_MTU_CODES[mtu]
        attributes.dest_qp_num = told.dest_qp_num
        attributes.rq_psn = told.rq_psn
        attributes.max_dest_rd_atomic = told.max_dest_rd_atomic
        attributes.min_rnr_timer = options.min_rnr_timer
        attributes.ah_attr, dest_gid = self._address(told.ah_attr)
        mask = enums.IBV_QP_STATE | enums.IBV_QP_AV | enums.IBV_QP_PATH_MTU | enums.IBV_QP_DEST_QPN
        mask |= enums.IBV_QP_RQ_PSN | enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER
        self._modify(
            "RTR",
            attributes,
            mask,
            dest_qpn=told.dest_qp_num,
            rq_psn=told.rq_psn,
            path_mtu=mtu,
            min_rnr_timer=options.min_rnr_timer,
            dest_gid=str(dest_gid),
            dest_ip=str(dest_gid.ipv4_mapped or dest_gid),
            local_ip=self.endpoint.ip,
        )
        told, _ = self._cm.qp_attributes(_RTS)
        attributes = self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTS)
        attributes.sq_psn = told.sq_psn
        attributes.timeout = options.timeout
        attributes.retry_cnt = options.retry_cnt
        attributes.rnr_retry = options.rnr_retry
        attributes.max_rd_atomic = told.max_rd_atomic
        mask = enums.IBV_QP_STATE | enums.IBV_QP_SQ_PSN | enums.IBV_QP_TIMEOUT | enums.IBV_QP_RETRY_CNT
        mask |= enums.IBV_QP_RNR_RETRY | enums.IBV_QP_MAX_QP_RD_ATOMIC
        self._modify(
            "RTS",
            attributes,
            mask,
            sq_psn=told.sq_psn,
            timeout=options.timeout,
            retry_cnt=options.retry_cnt,
            rnr_retry=options.rnr_retry,
        )
        self.path_mtu = mtu

    def _address(self, told: Any) -> tuple[Any, ipaddress.IPv6Address]:
        addr = self._pyverbs.addr
        gid = ipaddress.IPv6Address(bytes(told.grh.dgid))
        route = addr.GlobalRoute(
            dgid=addr.GID(gid.exploded),
            sgid_index=told.grh.sgid_index,
            hop_limit=told.grh.hop_limit,
            flow_label=told.grh.flow_label,
            traffic_class=told.grh.traffic_class,
        )
        return addr.AHAttr(gr=route, is_global=1, port_num=told.port_num, sl=told.sl), gid

    def _modify(self, state: str, attributes: Any, mask: int, **told: Any) -> None:
        self.endpoint.ask(f"move QP {self.qpn:#x} to {state}", lambda: self._qp.modify(attributes, mask))
        if self.endpoint.journal is not None:
            self.endpoint.journal.write("qp_modified", qp=self.qp, state=state, **told)

    # Meeting the peer.

    def connect(self, private_data: bytes, deadline: Deadline) -> bytes:
        options = self._options
        self._cm.connect(
            self.qpn,
            private_data,
            reads=min(options.reads, self.endpoint.max_reads),
            retry=options.retry_cnt,
            rnr_retry=options.rnr_retry,
        )
        response = self._response(deadline)
        self.peer_data = response.private_data
        self._to_ready()
        self._cm.establish()
        self.connected = True
        return self.peer_data

    def accept(self, private_data: bytes, deadline: Deadline) -> None:
        self._to_ready()
        reads = min(self._options.reads, self.endpoint.max_reads)
        self._cm.accept(self.qpn, private_data, reads=reads, rnr_retry=self._options.rnr_retry)
        self._response(deadline)
        self.connected = True

    def _response(self, deadline: Deadline) -> CmEvent:
        while not self._responses:
            self.endpoint.events(min(0.1, deadline.left()))
            if not self._responses and deadline.passed():
                raise VerbsError(
                    f"no answer within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        response = self._responses.popleft()
        if response.type in ("CONNECT_RESPONSE", "ESTABLISHED"):
            return response
        raise cm_error(response, self._cm)

    def heard(self, event: CmEvent) -> None:
        """A CM event for this connection."""
        if event.type == "TIMEWAIT_EXIT":
            return
        if event.type in ("DISCONNECTED", "DEVICE_REMOVAL"):
            self.disconnected = True
        if not self.connected:
            self._responses.append(event)

    # Work.

    def _post_send(self, wrs: Sequence[SendWr]) -> tuple[int, int]:
        return self._post(self._qp.post_send, [self._send_wr(wr) for wr in wrs])

    def _post_recv(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        return self._post(self._qp.post_recv, [self._recv_wr(wr) for wr in wrs])

    def _post(self, post: Callable[[Any, Any], None], made: list[Any]) -> tuple[int, int]:
        """Post a list; on refusal, libibverbs says at which WR."""
        for wr, following in itertools.pairwise(made):
            wr.next_wr = following
        kind = self._pyverbs.wr
        empty = kind.SGE(0, 0, 0)
        bad = type(made[0])(wr_id=_NO_WR, num_sge=1, sg=[empty])
        empty.close()
        try:
            post(made[0], bad)
        except self._pyverbs.pyverbs_error.PyverbsRDMAError as error:
            ids = [wr.wr_id for wr in made]
            return ids.index(bad.wr_id) if bad.wr_id in ids else 0, abs(error.error_code) or errno.EINVAL
        finally:
            # pyverbs frees nothing by itself here, and a second close would free twice. After a refusal,
            # `bad` shares its list with the WR that was refused.
            if bad.wr_id == _NO_WR:
                bad.close()
            for wr in made:
                wr.close()
        return 0, 0

    def _recv_wr(self, wr: RecvWr) -> Any:
        sges = self._sges(wr)
        made = self._pyverbs.wr.RecvWR(wr_id=wr.wr_id, num_sge=len(sges), sg=sges)
        made.num_sge = len(wr.sges)
        for sge in sges:
            sge.close()
        return made

    def _sges(self, wr: SendWr | RecvWr) -> list[Any]:
        sge = self._pyverbs.wr.SGE
        # pyverbs wants one at least; a WR without data has its number of elements set to 0 afterwards.
        return [sge(part.addr, part.length, part.region.lkey) for part in wr.sges] or [sge(0, 0, 0)]

    def _send_wr(self, wr: SendWr) -> Any:
        enums = self._pyverbs.enums
        flags = enums.IBV_SEND_SIGNALED if wr.signaled else 0
        flags |= enums.IBV_SEND_INLINE if wr.inline else 0
        flags |= enums.IBV_SEND_FENCE if wr.fenced else 0
        flags |= enums.IBV_SEND_SOLICITED if wr.solicited else 0
        sges = self._sges(wr)
        made = self._pyverbs.wr.SendWR(
            wr_id=wr.wr_id,
            opcode=getattr(enums, f"IBV_WR_{wr.opcode}"),
            num_sge=len(sges),
            sg=sges,
            send_flags=flags,
            imm_data=0 if wr.imm is None else _network_order(wr.imm),
        )
        made.num_sge = len(wr.sges)
        for sge in sges:
            sge.close()
        if wr.opcode in ATOMICS:
            add = wr.opcode == "ATOMIC_FETCH_AND_ADD"
            # ibv_send_wr's compare_add is what is added, or what is compared with.
            first, second = (wr.swap_add, 0) if add else (wr.compare, wr.swap_add)
            made.set_wr_atomic(wr.rkey, wr.remote_va, first, second)
        elif wr.rkey is not None:
            made.set_wr_rdma(wr.rkey, wr.remote_va)
        return made

    # The end.

    def disconnect(self, deadline: Deadline) -> None:
        if not self.connected:
            return
        self.connected = False
        with contextlib.suppress(VerbsError):
            self._cm.disconnect()  # a DREQ, or the DREP to the peer's
        while not self.disconnected and not deadline.passed():
            self.endpoint.events(min(0.1, deadline.left()))
        enums = self._pyverbs.enums
        self._modify("ERR", self._pyverbs.qp.QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
        flush = Deadline(_FLUSH_S)
        while self.outstanding and not flush.passed():
            if not self.endpoint.poll():
                time.sleep(0.001)

    def _close(self) -> None:
        try:
            self.disconnect(Deadline(_GOODBYE_S))
        finally:
            self.endpoint.by_id.pop(self._cm.handle, None)
            self.endpoint.connections.pop(self.qpn, None)
            self._qp.close()
            self._cm.close()


class VerbsRequest(Request):
    """A peer that asked to connect to a listening endpoint."""

    def __init__(self, endpoint: VerbsEndpoint, cm: CmId, event: CmEvent) -> None:
        self._endpoint = endpoint
        self._cm = cm
        self.private_data = event.private_data

    def connection(self, options: QpOptions) -> VerbsConnection:
        made = VerbsConnection(self._endpoint, self._cm, options)
        made.peer_data = self.private_data
        return made

    def reject(self, private_data: bytes) -> None:
        self._cm.reject(private_data)
        self._cm.close()


class VerbsEndpoint(Endpoint):
    """A device of the kernel's.

    Args:
        options: which one; see :func:`rocekit.devices.choose`.
        journal: where to write what happens.

    Raises:
        VerbsError: pyverbs, RDMA in the kernel, or the device is missing; says which, and how to get it.
    """

    def __init__(self, options: EndpointOptions, journal: JournalWriter | None = None) -> None:
        found = devices(with_limits=False)
        self.pyverbs = load()
        local = sysfs.choose(
            found, device=options.device, port=options.port, gid_index=options.gid_index, ip=options.ip
        )
        super().__init__(local.device.name, local.gid.ip, journal)
        self.port = local.port.number
        self.by_id: dict[int, VerbsConnection] = {}
        self._requests: deque[tuple[CmId, CmEvent]] = deque()
        self._looked = 0.0
        self._dialing: deque[CmEvent] = deque()
        enums = self.pyverbs.enums
        self._opcodes = {int(getattr(enums, f"IBV_WC_{name}")): name for name in _WC_OPCODES}
        self._with_imm = int(enums.IBV_WC_WITH_IMM)
        try:
            self._channel = Channel()
            self.resources.callback(self._channel.close)
            self.context = self.ask(
                f"open {self.device}", lambda: self.pyverbs.device.Context(name=self.device)
            )
            self.resources.callback(self.context.close)
            attributes = self.context.query_device()
            self.max_reads = min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom)
            self.active_mtu = PATH_MTU_BYTES[self.context.query_port(self.port).active_mtu]
            self.pd = self.ask("allocate a protection domain", lambda: self.pyverbs.pd.PD(self.context))
            self.resources.callback(self.pd.close)
            entries = min(options.completions, attributes.max_cqe)
            self.cq = self.ask(f"create a CQ of {entries}", lambda: self.pyverbs.cq.CQ(self.context, entries))
            self.resources.callback(self.cq.close)
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, call: Callable[[], Any]) -> Any:
        """Call pyverbs; its error becomes ours.

        Raises:
            VerbsError: the device refused.
        """
        try:
            return call()
        except self.pyverbs.pyverbs_error.PyverbsError as error:
            code = getattr(error, "error_code", None) or None
            why = str(error) if code is None else errno_text(code)
            raise VerbsError(f"{self.device} cannot {what}: {why}", errno=code) from None

    def access(self, names: Sequence[str]) -> int:
        flags = 0
        for name in names:
            flags |= getattr(self.pyverbs.enums, f"IBV_ACCESS_{name}")
        return flags

    def _register(self, length: int, access: list[str]) -> Region:
        return _Memory(self, length, self.access(access))

    def _poll(self, most: int) -> list[Completion]:
        count, found = self.cq.poll(most)
        if not count:
            return []
        return [self._completion(wc) for wc in found]

    def _completion(self, wc: Any) -> Completion:
        status = WC_STATUSES.get(wc.status, str(wc.status))
        if status != "SUCCESS":
            # Only wr_id, status, qp_num and vendor_err are valid then (ibv_poll_cq(3)).
            return Completion(wc.qp_num, wc.wr_id, status, vendor_err=wc.vendor_err)
        imm = wc.imm_data if wc.wc_flags & self._with_imm else None
        return Completion(
            qpn=wc.qp_num,
            wr_id=wc.wr_id,
            status=status,
            opcode=self._opcodes.get(wc.opcode, str(wc.opcode)),
            byte_len=wc.byte_len,
            vendor_err=wc.vendor_err,
            imm=None if imm is None else _network_order(imm),
        )

    # Meeting peers.

    def events(self, wait_s: float = 0.0) -> None:
        """Take the CM events that are there; wait for the first one so long."""
        event = self._channel.event(wait_s)
        while event is not None:
            self._heard(event)
            event = self._channel.event()

    def _heard(self, event: CmEvent) -> None:
        connection = self.by_id.get(event.id)
        cm = CmId(self._channel, event.id)
        if self.journal is not None:
            local, remote = cm.local or (None, None), cm.remote or (None, None)
            self.journal.write(
                "cm_event",
                qp=None if connection is None else connection.qp,
                type=event.type,
                status=event.status,
                private_data=event.private_data.hex() or None,
                local_ip=local[0],
                local_port=local[1],
                remote_ip=remote[0],
                remote_port=remote[1],
            )
        if event.type == "CONNECT_REQUEST":
            self._requests.append((cm, event))
        elif connection is not None:
            connection.heard(event)
        else:
            self._dialing.append(event)

    def gone(self) -> Connection | None:
        now = time.monotonic()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self.events()
            os.sched_yield()
        for connection in self.connections.values():
            if connection.disconnected:
                return connection
        return None

    def dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> VerbsConnection:
        self.check_mtu(options)
        self._dialing.clear()
        cm = self._channel.create_id()
        try:
            cm.resolve_address(self.ip, host, port, deadline)
            self._step("ADDR_RESOLVED", cm, deadline)
            cm.resolve_route(deadline)
            self._step("ROUTE_RESOLVED", cm, deadline)
            return VerbsConnection(self, cm, options)
        except BaseException:
            if cm.handle not in self.by_id:
                cm.close()
            raise

    def _step(self, wanted: str, cm: CmId, deadline: Deadline) -> None:
        while not self._dialing:
            self.events(min(0.1, deadline.left()))
            if not self._dialing and deadline.passed():
                raise VerbsError(
                    f"no {wanted} within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        event = self._dialing.popleft()
        if event.type != wanted:
            raise cm_error(event, cm)

    def check_mtu(self, options: QpOptions) -> None:
        """Refuse a path MTU that the port cannot carry.

        Raises:
            VerbsError: it is above the port's.
        """
        if options.path_mtu is not None and options.path_mtu > self.active_mtu:
            raise VerbsError(
                f"MTU {options.path_mtu} (-m) is above the {self.active_mtu} of {self.device} port "
                f"{self.port}; its netdev's MTU decides (ip link set ... mtu)"
            )

    def listen(self, port: int, backlog: int) -> None:
        cm = self._channel.create_id()
        self.resources.callback(cm.close)
        try:
            cm.bind(self.ip, port)
            cm.listen(backlog)
        except VerbsError as error:
            if error.errno == errno.EADDRINUSE:
                raise VerbsError(
                    f"port {port} of {self.ip} is taken; another server? choose another with -p",
                    errno=error.errno,
                ) from None
            raise

    def request(self, deadline: Deadline) -> VerbsRequest:
        while not self._requests:
            self.events(min(0.1, deadline.left()))
            gone = self.gone()
            if gone is not None:
                raise Disconnected(f"the peer of QP {gone.qpn:#x} disconnected")
            if not self._requests and deadline.passed():
                raise VerbsError(
                    f"nobody asked to connect within {deadline.seconds:g} s (--timeout)",
                    errno=errno.ETIMEDOUT,
                )
        cm, event = self._requests.popleft()
        return VerbsRequest(self, cm, event)


def cm_error(event: CmEvent, cm: CmId) -> VerbsError:
    """What a CM event that ends a handshake means."""
    remote = cm.remote
    there = "the peer" if remote is None else f"{remote[0]} port {remote[1]}"
    if event.type == "REJECTED":
        said = event.private_data.rstrip(b"\0").decode("utf-8", "replace")
        if said and said.isprintable():
            return VerbsError(f"{there} rejected the connection: {said}", errno=errno.ECONNREFUSED)
        reason = REJ_REASONS.get(event.status, f"reason {event.status}")
        hint = "; is its server running?" if event.status == 8 else ""
        return VerbsError(f"{there} rejected the connection: {reason}{hint}", errno=errno.ECONNREFUSED)
    code = -event.status if event.status < 0 else None
    why = "" if code is None else f": {errno_text(code)}"
    return VerbsError(f"{event.type} on the way to {there}{why}", errno=code)


__all__ = ["LOCAL_WRITE", "VerbsConnection", "VerbsEndpoint", "devices", "load"]
