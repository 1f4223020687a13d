"""A device of the kernel as the device of a drill, through pyverbs."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rocekit.conform.device import FEATURES, ConformDevice, RefusedError, UnfitError
from rocekit.conform.verbs_cm import VerbsCm, answers_too
from rocekit.endpoint import RecvWr, SendWr, Sge, Target
from rocekit.errors import VerbsError
from rocekit.machine import devices as sysfs
from rocekit.machine import guard
from rocekit.verbs.cq import Completions
from rocekit.verbs.loading import load
from rocekit.verbs.memory import VerbsMemory
from rocekit.verbs.open_device import OpenDevice
from rocekit.verbs.post import post, recv_wr, send_wr
from rocekit.wire import PATH_MTU_CODES

_DEPTH: Final = 512
_ENTRIES: Final = 2048
_BIND_WR: Final = 1 << 32
#: What rxe lacks, and since which Linux it has it: (major, minor), or None.
_RXE_LACKS: Final = {"cnp": None, "flush": None, "atomic_write": (6, 2)}
#: Bits of ``enum ibv_qp_attr_mask`` of attributes whose names are not those of the bits.
_MASKS: Final = {
    "max_rd_atomic": "MAX_QP_RD_ATOMIC",
    "dest_qpn": "DEST_QPN",
    "access": "ACCESS_FLAGS",
    "tclass": "AV",
}
_FIELDS: Final = {"dest_qpn": "dest_qp_num", "access": "qp_access_flags"}


class VerbsConformDevice(ConformDevice):
    """A device of the kernel.

    Args:
        device, gid_index, ip: which one; see :func:`rocekit.machine.devices.choose`.
        allowed: addresses of other machines that the user named, which a peer may have.

    Raises:
        VerbsError: pyverbs, RDMA in the kernel, or the device is missing.
    """

    def __init__(
        self,
        device: str | None = None,
        *,
        port: int = 1,
        gid_index: int | None = None,
        ip: str | None = None,
        allowed: tuple[str, ...] = (),
    ) -> None:
        found = sysfs.devices()
        self._verbs = load()
        local = sysfs.choose(found, device=device, port=port, gid_index=gid_index, ip=ip)
        self._stay = ExitStack()
        self._opened = OpenDevice(self._verbs, local, self._stay)
        self.name = f"{local.device.name}, Linux {platform.release()}"
        self.ip = local.gid.ip
        self._allowed = allowed
        self._checked: set[str] = set()
        self._counters = Path("/sys/class/infiniband", local.device.name, f"ports/{port}/hw_counters")
        # pyverbs ends with a segmentation fault where a provider refuses without naming the request.
        lacks = {"early_posts"}
        if local.device.driver == "rxe":
            lacks |= {name for name, since in _RXE_LACKS.items() if since is None or _linux() < since}
        else:
            lacks.add("listed_counters")
        self.features = frozenset(FEATURES) - lacks
        # What the next drill may use again, and what each has for itself.
        self._stack, self._own = ExitStack(), ExitStack()
        self._regions: dict[str, VerbsMemory] = {}
        self._kept_for: tuple[Any, ...] | None = None
        self._spent = False
        self._cm: VerbsCm | None = None

    def open(self, setup: dict[str, Any], peer_ip: str) -> dict[str, int]:
        self.close()
        if peer_ip not in self._checked:
            guard.check([peer_ip], self._allowed)
            self._checked.add(peer_ip)
        try:
            return self._open(setup, peer_ip)
        except VerbsError as error:
            self.close()
            raise RefusedError(str(error), errno=error.errno) from None

    def _open(self, setup: dict[str, Any], peer_ip: str) -> dict[str, int]:
        verbs = self._verbs
        self._peer_ip, self._setup = peer_ip, setup
        memory = setup["memory"]
        # Regions, protection domains and the CQ cost most of what making them costs.
        wanted = (memory, setup["transport"] == "UD", setup["srq"])
        if self._kept_for != wanted:
            self._give_back()
            self._make_shared(setup)
            self._kept_for = wanted
        names: dict[str, int] = {}
        for name, made in self._regions.items():
            made.write(0, bytes.fromhex(memory[name]["content"]).ljust(made.length, b"\0"))
            facts = {"addr": made.addr, "length": made.length, "lkey": made.lkey, "rkey": made.rkey}
            names |= facts if name == "main" else {f"{name}.{key}": value for key, value in facts.items()}
        main = self._main
        capacity = verbs.qp.QPCap(
            max_send_wr=_DEPTH,
            max_recv_wr=0 if setup["srq"] else _DEPTH,
            max_send_sge=1,
            max_recv_sge=0 if setup["srq"] else 1,
            max_inline_data=128,
        )
        init = verbs.qp.QPInitAttr(
            qp_type=getattr(verbs.enums, f"IBV_QPT_{setup['transport']}"),
            scq=self._completions.cq,
            rcq=self._completions.cq,
            srq=self._srq,
            cap=capacity,
            sq_sig_all=0,
        )
        self._qp = main.ask("create a QP", lambda: verbs.qp.QP(main.pd, init))
        self._own.callback(main.quietly(self._qp.close))
        names["qpn"] = self._qp.qp_num
        path = ["INIT", "RTR", "RTS"]
        for state in path[: path.index(setup["state"]) + 1] if setup["state"] in path else ():
            self.modify(state=state, **self._attributes(state))
        return names

    def _make_shared(self, setup: dict[str, Any]) -> None:
        """Protection domains, regions, the CQ and a shared receive queue."""
        verbs, stack = self._verbs, self._stack
        domains = {"main": self._opened.within(stack)}
        main = self._main = domains["main"]
        for name, region in setup["memory"].items():
            domain = domains.get(region["domain"])
            if domain is None:
                domain = domains[region["domain"]] = self._opened.within(stack)
            self._regions[name] = VerbsMemory(domain, region["length"], domain.access(region["access"]))
        self._completions = Completions(
            main,
            min(_ENTRIES, main.max_cqe),
            way="nonblocking",
            extended=False,
            timestamps=False,
            datagrams=setup["transport"] == "UD",
        )
        self._srq: Any = None
        if setup["srq"]:
            wanted = verbs.srq.SrqInitAttr(verbs.srq.SrqAttr(max_wr=_DEPTH, max_sge=1))
            self._srq = main.ask("create a shared receive queue", lambda: verbs.srq.SRQ(main.pd, wanted))
            main.release(self._srq.close)
            self._spent = True  # receives of one drill would serve the next

    def _attributes(self, state: str) -> dict[str, Any]:
        """What a QP of the setup's transport needs to enter a state."""
        setup, transport = self._setup, self._setup["transport"]
        if state == "INIT":
            if transport == "UD":
                return {"qkey": setup["qkey"]}
            rights = (
                setup["access"] if transport == "RC" else [r for r in setup["access"] if r == "REMOTE_WRITE"]
            )
            return {"access": rights}
        if transport == "UD":
            return {} if state == "RTR" else {"sq_psn": setup["sq_psn"]}
        if state == "RTR":
            given = {"path_mtu": setup["path_mtu"], "dest_qpn": setup["peer_qpn"], "rq_psn": setup["rq_psn"]}
            given["tclass"] = setup["tclass"]
            more = ["max_dest_rd_atomic", "min_rnr_timer"]
        else:
            given = {"sq_psn": setup["sq_psn"]}
            more = ["timeout", "retry_cnt", "rnr_retry", "max_rd_atomic"]
        return given | ({key: setup[key] for key in more} if transport == "RC" else {})

    def modify(self, **attributes: Any) -> None:
        verbs, enums = self._verbs, self._verbs.enums
        state = attributes.pop("state", None)
        made = verbs.qp.QPAttr()
        mask = 0
        if state is not None:
            made = verbs.qp.QPAttr(qp_state=getattr(enums, f"IBV_QPS_{state}"))
            mask |= enums.IBV_QP_STATE
        if state == "INIT":
            made.pkey_index, made.port_num = 0, self._main.port
            mask |= enums.IBV_QP_PKEY_INDEX | enums.IBV_QP_PORT
        for name, value in attributes.items():
            if name == "tclass":
                route = self._main.route(self._peer_ip)
                route.traffic_class = value
                value = verbs.addr.AHAttr(gr=route, is_global=1, port_num=self._main.port)
                made.ah_attr = value
            elif name == "access":
                made.qp_access_flags = self._main.access(value)
            else:
                number = PATH_MTU_CODES.get(value, value) if name == "path_mtu" else value
                setattr(made, _FIELDS.get(name, name), number)
            mask |= getattr(enums, f"IBV_QP_{_MASKS.get(name, name.upper())}")
        self._ask(lambda: self._main.ask(f"modify the QP ({state})", lambda: self._qp.modify(made, mask)))

    @staticmethod
    def _ask(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RefusedError:
            raise
        except VerbsError as error:
            raise RefusedError(str(error), errno=error.errno) from None

    def _sges(self, wr: dict[str, Any]) -> tuple[Sge, ...]:
        length = wr.get("length", 0)
        return (Sge(self._regions[wr.get("region", "main")], wr.get("at", 0), length),) if length else ()

    def post(self, **wr: Any) -> None:
        operation, main = wr["op"], self._regions["main"]
        if not hasattr(self._verbs.enums, f"IBV_WR_{operation}"):
            raise RefusedError(f"this pyverbs has no {operation}")
        addressed = not operation.startswith("SEND")
        made = SendWr(
            wr.get("wr_id", 1),
            operation,
            self._sges(wr),
            signaled=wr.get("signaled", True),
            inline=wr.get("inline", False),
            fenced=wr.get("fenced", False),
            solicited=wr.get("solicited", False),
            remote_va=wr.get("remote_va", main.addr) if addressed else None,
            rkey=wr.get("rkey", main.rkey) if addressed else None,
            imm=wr.get("imm", 0) if operation.endswith("IMM") else None,
            invalidate_rkey=wr.get("invalidate_rkey"),
            compare=wr.get("compare", 0),
            swap_add=wr.get("swap_add", 0),
            to=Target(self._peer_ip, wr["qpn"], wr.get("qkey", 0)) if "qpn" in wr else None,
        )
        handle = lambda to: self._main.address_handle(to, lambda ip: None)  # noqa: E731
        _, code = post(self._verbs, self._qp.post_send, [send_wr(self._verbs, made, handle)])
        if code:
            raise RefusedError(f"ibv_post_send gave errno {code}", errno=code)

    def recv(self, **wr: Any) -> None:
        queue = self._qp if self._srq is None else self._srq
        for i in range(wr.get("count", 1)):
            made = RecvWr(wr.get("wr_id", 1) + i, self._sges(wr))
            _, code = post(self._verbs, queue.post_recv, [recv_wr(self._verbs, made)])
            if code:
                raise RefusedError(f"ibv_post_recv gave errno {code}", errno=code)

    def poll(self) -> list[dict[str, Any]]:
        found = []
        for completion in self._completions.poll(64):
            if completion.wr_id >= _BIND_WR:
                continue
            document = asdict(completion)
            found.append(
                {k: document[k] for k in ("wr_id", "status", "opcode", "byte_len", "imm", "src_qpn")}
            )
        return found

    def read(self, region: str, offset: int, length: int) -> str:
        return self._regions[region].read(offset, length).hex()

    def fill(self, region: str, offset: int, content: str) -> None:
        self._regions[region].write(offset, bytes.fromhex(content))

    def state(self) -> str:
        attributes, _ = self._qp.query(self._verbs.enums.IBV_QP_STATE)
        names = ("RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")  # enum ibv_qp_state
        return names[int(attributes.qp_state)] if int(attributes.qp_state) < len(names) else "UNKNOWN"

    def counters(self) -> dict[str, int]:
        found = {}
        for path in self._counters.glob("*"):
            text = path.read_text().strip()
            if text.isdigit() and path.name != "lifespan":
                found[path.name] = int(text)
        return found

    def bind(self, region: str, offset: int, length: int, access: list[str]) -> int:
        verbs, memory, main = self._verbs, self._regions[region], self._main
        self._spent = True
        enums, mr = verbs.enums, verbs.mr
        window = self._ask(
            lambda: main.ask("allocate a memory window", lambda: mr.MW(main.pd, enums.IBV_MW_TYPE_2))
        )
        main.release(window.close)
        rkey = (int(window.rkey) & ~0xFF) | (int(window.rkey) + 1) & 0xFF
        order = verbs.wr.SendWR(
            wr_id=_BIND_WR, opcode=enums.IBV_WR_BIND_MW, num_sge=1, sg=[verbs.wr.SGE(0, 0, 0)], send_flags=0
        )
        order.num_sge = 0
        order.set_bind_wr(window, mr.MWBindInfo(memory.mr, memory.addr + offset, length, main.access(access)))
        _, code = post(verbs, self._qp.post_send, [order])
        if code:
            raise RefusedError(f"the device cannot bind a memory window: errno {code}", errno=code)
        return rkey

    def _program(self) -> VerbsCm:
        """The connection manager's part of the program."""
        if self._cm is None:
            other = answers_too(sysfs.devices(), self._main.name, self._peer_ip)
            if other is not None:
                raise UnfitError(
                    f"{other} has {self._peer_ip} too, and its connection manager would answer beside the "
                    f"packet side: take it away (rdma link delete {other}), or give --peer-ip another address"
                )
            self._cm = VerbsCm(self.ip, self._peer_ip, int(self._qp.qp_num), self._setup, self.modify)
        return self._cm

    def listen(self, port: int) -> None:
        self._ask(lambda: self._program().listen(port))

    def accept(self, **param: Any) -> None:
        self._ask(lambda: self._program().accept(param))

    def reject(self) -> None:
        self._ask(lambda: self._program().reject())

    def connect(self, port: int) -> None:
        self._ask(lambda: self._program().connect(port))

    def disconnect(self) -> None:
        self._ask(lambda: self._program().disconnect())

    def arm(self, *, solicited: bool = False) -> None:
        self._spent = True
        self._completions.arm(solicited=solicited)

    def events(self) -> list[dict[str, Any]]:
        found = [{"type": "COMPLETION", "status": 0}] if self._completions.sleep(0, None) else []
        cm = self._cm
        return found if cm is None else found + list(self._ask(cm.events))

    def deregister(self, region: str) -> None:
        self._spent = True
        self._ask(lambda: self._main.ask("deregister a region", self._regions[region].mr.close))

    def close(self) -> None:
        if self._cm is not None:
            self._cm.close()
            self._cm = None
            self._spent = True
        self._own.close()
        if self._spent or self._kept_for is None:
            self._give_back()
        else:
            while self._completions.poll(64):
                pass  # of the QP that is gone

    def _give_back(self) -> None:
        """Take down what drills may share."""
        self._kept_for, self._spent, self._regions = None, False, {}
        self._stack.close()

    def shut(self) -> None:
        """Give the device back."""
        self.close()
        self._give_back()
        self._stay.close()


def _linux() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
