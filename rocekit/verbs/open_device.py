"""A device of the kernel, opened through pyverbs: what QPs, CQs and regions are made on."""

from __future__ import annotations

import contextlib
import copy
import ipaddress
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from rocekit.endpoint import Target, errno_text
from rocekit.errors import VerbsError
from rocekit.machine.devices import Local
from rocekit.wire import PATH_MTU_BYTES
from rocekit.wire.build import gid


class OpenDevice:
    """An open device and a protection domain on it.

    Args:
        local: which device, port and GID.
        resources: takes down what was made, last made first.

    Attributes:
        max_reads: READs and atomics that it can have outstanding on a QP.

    Raises:
        VerbsError: the device refused.
    """

    def __init__(self, pyverbs: SimpleNamespace, local: Local, resources: ExitStack) -> None:
        self.pyverbs = pyverbs
        self.name = local.device.name
        self.port = local.port.number
        self._gid_index = local.gid.index
        self._resources = resources
        self._handles: dict[str, Any] = {}
        self.context = self.ask(f"open {self.name}", lambda: pyverbs.device.Context(name=self.name))
        self.release(self.context.close)
        attributes = self.context.query_device()
        self.max_cqe: int = attributes.max_cqe
        self.max_reads: int = min(attributes.max_qp_rd_atom, attributes.max_qp_init_rd_atom)
        self.active_mtu = PATH_MTU_BYTES[self.context.query_port(self.port).active_mtu]
        self.pd = self.ask("allocate a protection domain", lambda: pyverbs.pd.PD(self.context))
        self.release(self.pd.close)

    def within(self, resources: ExitStack) -> OpenDevice:
        """The same open device with a protection domain of its own; ``resources`` takes down what is made.

        Raises:
            VerbsError: the device refused.
        """
        other = copy.copy(self)
        other._resources, other._handles = resources, {}
        other.pd = self.ask("allocate a protection domain", lambda: self.pyverbs.pd.PD(self.context))
        other.release(other.pd.close)
        return other

    def ask(self, what: str, call: Callable[[], Any]) -> Any:
        """Call pyverbs; its error becomes a VerbsError.

        Raises:
            VerbsError: the device refused.
        """
        try:
            return call()
        except self.pyverbs.pyverbs_error.PyverbsError as error:
            code = getattr(error, "error_code", None) or None
            why = str(error) if code is None else errno_text(code)
            raise VerbsError(f"{self.name} cannot {what}: {why}", errno=code) from None

    def release(self, call: Callable[[], None]) -> None:
        """Have something taken down when the endpoint closes, quietly."""
        self._resources.callback(self.quietly(call))

    def quietly(self, call: Callable[[], None]) -> Callable[[], None]:
        """The call that takes something down, without its refusals.

        If a device refuses this (it may be gone), it is left to the end of the process: the rest is taken
        down, and an earlier error is the one reported.
        """
        refusals = (VerbsError, self.pyverbs.pyverbs_error.PyverbsError)

        def refused_or_done() -> None:
            with contextlib.suppress(*refusals):
                call()

        return refused_or_done

    def access(self, names: Iterable[str]) -> int:
        """Access flags (``enum ibv_access_flags``)."""
        flags = 0
        for name in names:
            flags |= getattr(self.pyverbs.enums, f"IBV_ACCESS_{name}")
        return flags

    def route(self, ip: str) -> Any:
        """The route from this device's GID to an address."""
        addr = self.pyverbs.addr
        dgid = addr.GID(ipaddress.IPv6Address(gid(ip)).exploded)
        return addr.GlobalRoute(dgid=dgid, sgid_index=self._gid_index, hop_limit=64)

    def address_handle(self, target: Target, made: Callable[[str], None]) -> Any:
        """The address handle of a UD request's target (``ibv_create_ah``), made once.

        Args:
            made: called with the address if the handle is new.
        """
        handle = self._handles.get(target.ip)
        if handle is None:
            addr = self.pyverbs.addr
            attributes = addr.AHAttr(gr=self.route(target.ip), is_global=1, port_num=self.port)
            handle = self.ask(
                f"create an address handle to {target.ip}", lambda: addr.AH(self.pd, attr=attributes)
            )
            self.release(handle.close)
            self._handles[target.ip] = handle
            made(target.ip)
        return handle
