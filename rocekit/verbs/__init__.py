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
import errno
import importlib
import importlib.machinery
import importlib.util
import ipaddress
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rocekit.endpoint import (
    Completion,
    Connection,
    Deadline,
    DeviceMemory,
    Endpoint,
    EndpointOptions,
    QpOptions,
    Region,
    Request,
    SharedReceives,
    Target,
    Ways,
    errno_text,
)
from rocekit.endpoint.tcp import port_taken
from rocekit.errors import VerbsError
from rocekit.journal import JournalWriter
from rocekit.machine import devices as sysfs
from rocekit.verbs.cq import Completions
from rocekit.verbs.memory import VerbsDeviceMemory, VerbsMemory
from rocekit.verbs.qp import VerbsConnection, VerbsShared
from rocekit.verbs.rdmacm import Channel, CmEvent, CmId, cm_error
from rocekit.wire import PATH_MTU_BYTES
from rocekit.wire.build import gid

DISTRIBUTION = Path("/usr/lib/python3/dist-packages")
_MODULES = ("addr", "cq", "device", "enums", "mr", "pd", "pyverbs_error", "qp", "srq", "wr")
_LOOK_EVERY_S = 0.001
_LISTEN_S = 0.05


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
        options: which one; see :func:`rocekit.machine.devices.choose`.
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
        super().__init__(local.device.name, local.gid.ip, journal, options)
        self.port = local.port.number
        self.gid_index = local.gid.index
        self.has_windows = True
        self.by_id: dict[int, VerbsConnection] = {}
        self._requests: deque[tuple[CmId, CmEvent]] = deque()
        self._dialing: deque[CmEvent] = deque()
        self._looked = 0.0
        self._handles: dict[str, Any] = {}
        self._news = threading.Condition()
        self._stopping = False
        try:
            self.channel = Channel()
            self.release(self.channel.close)
            self.context = self.ask(
                f"open {self.device}", lambda: self.pyverbs.device.Context(name=self.device)
            )
            self.release(self.context.close)
            attributes = self.context.query_device()
            self.max_reads = min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom)
            self.active_mtu = PATH_MTU_BYTES[self.context.query_port(self.port).active_mtu]
            self.pd = self.ask("allocate a protection domain", lambda: self.pyverbs.pd.PD(self.context))
            self.release(self.pd.close)
            entries = min(options.completions, attributes.max_cqe)
            self.completions = Completions(
                self,
                entries,
                extended=options.extended,
                timestamps=options.timestamps,
                # By its source, rdma-core's rxe has given the CQ back when ibv_next_poll finds no more; the
                # ibv_end_poll that must follow then skips the next completion, before it is there.
                walks=local.device.driver != "rxe",
            )
            if self.ways.cm == "thread":
                thread = threading.Thread(target=self._listen_to_events, name="cm events", daemon=True)
                thread.start()
                self.resources.callback(self._stop, thread)
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

    def release(self, call: Callable[[], None]) -> None:
        """Have something taken down when the endpoint closes. What a device refuses then (it may be gone) is
        left to the end of the process, so that the rest is taken down and an earlier error is the one told.
        """
        refusals = (VerbsError, self.pyverbs.pyverbs_error.PyverbsError)

        def quietly() -> None:
            with contextlib.suppress(*refusals):
                call()

        self.resources.callback(quietly)

    def access(self, names: Iterable[str]) -> int:
        flags = 0
        for name in names:
            flags |= getattr(self.pyverbs.enums, f"IBV_ACCESS_{name}")
        return flags

    def _register(self, length: int, access: list[str]) -> Region:
        return VerbsMemory(self, length, self.access(access))

    def _device_memory(self, length: int, access: list[str]) -> DeviceMemory:
        return VerbsDeviceMemory(self, length, self.access(access))

    def _share(self, depth: int, sges: int) -> SharedReceives:
        return VerbsShared(self, depth, sges)

    def _poll(self, most: int) -> list[Completion]:
        return self.completions.poll(most)

    def _arm(self) -> None:
        self.completions.arm()

    def _sleep(self, seconds: float) -> bool:
        also = self.channel.fd if self.ways == Ways("poll", "nonblocking") else None
        return self.completions.sleep(seconds, also)

    def address_handle(self, target: Target) -> Any:
        """The address handle of a UD request's target (``ibv_create_ah``), made once."""
        made = self._handles.get(target.ip)
        if made is None:
            addr = self.pyverbs.addr
            attributes = addr.AHAttr(gr=self.route(target.ip), is_global=1, port_num=self.port)
            made = self.ask(
                f"create an address handle to {target.ip}", lambda: addr.AH(self.pd, attr=attributes)
            )
            self.release(made.close)
            self._handles[target.ip] = made
            self.log("ah_created", device=self.device, dest_ip=target.ip, local_ip=self.ip)
        return made

    def route(self, ip: str) -> Any:
        """The way from this endpoint's GID to an address."""
        addr = self.pyverbs.addr
        dgid = addr.GID(ipaddress.IPv6Address(gid(ip)).exploded)
        return addr.GlobalRoute(dgid=dgid, sgid_index=self.gid_index, hop_limit=64)

    # Meeting peers.

    def hear(self, wait_s: float = 0.0) -> None:
        if self.ways.cm == "thread":
            with self._news:
                if wait_s:
                    self._news.wait(wait_s)
            return
        event = self.channel.event(wait_s)
        while event is not None:
            self._heard(event)
            event = self.channel.event()

    def _listen_to_events(self) -> None:
        """What the thread does that ``--cm thread`` has for connection events."""
        while not self._stopping:
            event = self.channel.event(_LISTEN_S)
            if event is not None:
                with self._news:
                    self._heard(event)
                    self._news.notify_all()

    def _stop(self, thread: threading.Thread) -> None:
        self._stopping = True
        thread.join()

    def _heard(self, event: CmEvent) -> None:
        connection = self.by_id.get(event.id)
        cm = CmId(self.channel, event.id)
        self.log_cm(event.type, event.status, event.private_data, cm.local, cm.remote, connection)
        if event.type == "CONNECT_REQUEST":
            self._requests.append((cm, event))
        elif connection is not None:
            connection.heard(event)
        else:
            self._dialing.append(event)

    def gone(self, *, expected: bool = False) -> Connection | None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return None
        self._looked = now
        return super().gone(expected=expected)

    def _dial(self, host: str, port: int, options: QpOptions, deadline: Deadline) -> VerbsConnection:
        self._dialing.clear()
        cm = self.channel.create_id()
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
            self.hear(min(0.1, deadline.left()))
            if not self._dialing and deadline.passed():
                raise VerbsError(
                    f"no {wanted} within {deadline.seconds:g} s (--timeout)", errno=errno.ETIMEDOUT
                )
        event = self._dialing.popleft()
        if event.type != wanted:
            raise cm_error(event, cm)

    def queue_pair(self, options: QpOptions) -> Connection:
        return VerbsConnection(self, None, options)

    def provoke(
        self, event: str, peer: tuple[str, int], private_data: bytes, deadline: Deadline
    ) -> str | None:
        from rocekit.verbs.provoke import provoke

        return provoke(self, event, peer[0], deadline)

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

    def _listen(self, port: int, backlog: int) -> None:
        cm = self.channel.create_id()
        self.release(cm.close)
        try:
            cm.bind(self.ip, port)
            cm.listen(backlog)
        except VerbsError as error:
            raise port_taken(self.ip, port) if error.errno == errno.EADDRINUSE else error from None

    def _asked(self) -> VerbsRequest | None:
        return VerbsRequest(self, *self._requests.popleft()) if self._requests else None
