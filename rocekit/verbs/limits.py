"""The devices of this machine, with the limits that pyverbs reads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from rocekit.errors import VerbsError
from rocekit.machine import devices as sysfs
from rocekit.verbs.loading import load
from rocekit.wire import PATH_MTU_BYTES

_LIMITS = (
    *("max_qp", "max_qp_wr", "max_sge", "max_sge_rd", "max_cq", "max_cqe", "max_mr", "max_mr_size", "max_pd"),
    *("max_qp_rd_atom", "max_qp_init_rd_atom", "max_res_rd_atom", "max_mw", "max_ah", "max_srq"),
    *("max_srq_wr", "max_srq_sge", "max_mcast_grp", "max_pkeys", "atomic_caps"),
    *("vendor_id", "vendor_part_id", "hw_ver"),
)


def devices(*, with_limits: bool = True) -> list[sysfs.RdmaDevice]:
    """The devices of this machine; with their limits if pyverbs is installed.

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


def _with_limits(pyverbs: SimpleNamespace, device: sysfs.RdmaDevice) -> sysfs.RdmaDevice:
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
