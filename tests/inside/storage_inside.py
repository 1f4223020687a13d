"""A storage target and an initiator of the kernel's own, over RDMA, for the truth bench.

``storage_inside.py serve KIND`` offers a disk in memory (or a folder) at 10.9.0.2 until it is ended.
``storage_inside.py use KIND WRITES READS BYTES`` waits for it, connects from 10.9.0.1, writes and reads
without a cache, compares what it read, and disconnects. Needs root and the lab's wire.

Kinds: ``nvme`` (nvmet-rdma, nvme-rdma), ``iser`` (ib_isert, ib_iser; open-iscsi) and ``nfs`` (svcrdma,
xprtrdma; nfs-kernel-server, nfs-common).
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Protocol

SERVER, CLIENT = "10.9.0.2", "10.9.0.1"
CONFIG: Final = Path("/sys/kernel/config")
READY, GONE = Path("/run/storage_inside.ready"), Path("/run/storage_inside.gone")
READY_LIMIT_S = 60.0
DISK_LIMIT_S = 30.0
IQN: Final = "iqn.2026-01.net.example:disk"
NFS_PORT: Final = "20049"


def command(*words: str, limit_s: float = 30.0) -> str:
    """Run a program that must succeed; gives what it prints."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(words)}: {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def write(path: Path, text: str) -> None:
    """Write to a file of the kernel."""
    with path.open("w") as file:
        file.write(text)


def modules(*names: str) -> None:
    command("modprobe", "-a", *names)


def memory_at(path: Path) -> None:
    """A file system in memory at a folder that cannot be written."""
    path.mkdir(parents=True, exist_ok=True)
    command("mount", "-t", "tmpfs", "none", str(path))


def with_config() -> None:
    """The kernel's configuration, as files."""
    modules("configfs")
    if not any(CONFIG.iterdir()):
        command("mount", "-t", "configfs", "none", str(CONFIG))


class Storage(Protocol):
    """One kind of storage: what the target does, and what the initiator does."""

    def serve(self) -> None: ...

    def end(self) -> None: ...

    def connect(self) -> Path:
        """Connect; gives the disk or file."""
        ...

    def disconnect(self) -> None: ...


class Nvme:
    """NVMe over Fabrics."""

    root = CONFIG / "nvmet"
    subsystem = root / "subsystems" / "disk"
    port = root / "ports" / "1"

    def serve(self) -> None:
        modules("nvmet", "nvmet-rdma", "brd")
        with_config()
        self.subsystem.mkdir()
        write(self.subsystem / "attr_allow_any_host", "1")
        disk = self.subsystem / "namespaces" / "1"
        disk.mkdir()
        write(disk / "device_path", "/dev/ram0")
        write(disk / "enable", "1")
        self.port.mkdir()
        for name, value in (("trtype", "rdma"), ("adrfam", "ipv4"), ("traddr", SERVER), ("trsvcid", "4420")):
            write(self.port / f"addr_{name}", value)
        (self.port / "subsystems" / "disk").symlink_to(self.subsystem)

    def end(self) -> None:
        (self.port / "subsystems" / "disk").unlink()
        self.port.rmdir()
        write(self.subsystem / "namespaces" / "1" / "enable", "0")
        (self.subsystem / "namespaces" / "1").rmdir()
        self.subsystem.rmdir()

    def connect(self) -> Path:
        command("modprobe", "nvme-core", "io_timeout=15")
        modules("nvme-rdma")
        options = f"transport=rdma,traddr={SERVER},trsvcid=4420,nqn=disk,host_traddr={CLIENT}"
        write(Path("/dev/nvme-fabrics"), f"{options},nr_io_queues=2,queue_size=16,ctrl_loss_tmo=20")
        return disk_of("/dev/nvme?n1")

    def disconnect(self) -> None:
        for device in Path("/sys/class/nvme").iterdir():
            write(device / "delete_controller", "1")


class Iser:
    """iSCSI extensions for RDMA."""

    backstore = CONFIG / "target" / "core" / "rd_mcp_0" / "disk"
    target = CONFIG / "target" / "iscsi" / IQN
    group = target / "tpgt_1"
    where = ("-m", "node", "-T", IQN, "-p", f"{SERVER}:3260")

    def serve(self) -> None:
        modules("target_core_mod", "sd_mod", "iscsi_target_mod", "ib_isert")
        with_config()
        self.backstore.mkdir(parents=True)
        write(self.backstore / "control", "rd_pages=4096")
        write(self.backstore / "enable", "1")
        (self.group / "lun" / "lun_0").mkdir(parents=True)
        (self.group / "lun" / "lun_0" / "disk").symlink_to(self.backstore)
        portal = self.group / "np" / f"{SERVER}:3260"
        portal.mkdir(parents=True)
        write(portal / "iser", "1")
        for name in ("authentication", "demo_mode_write_protect"):
            write(self.group / "attrib" / name, "0")
        for name in ("generate_node_acls", "cache_dynamic_acls"):
            write(self.group / "attrib" / name, "1")
        write(self.group / "enable", "1")

    def end(self) -> None:
        write(self.group / "enable", "0")
        (self.group / "np" / f"{SERVER}:3260").rmdir()
        (self.group / "lun" / "lun_0" / "disk").unlink()
        (self.group / "lun" / "lun_0").rmdir()
        self.group.rmdir()
        self.target.rmdir()
        self.backstore.rmdir()
        self.backstore.parent.rmdir()

    def connect(self) -> Path:
        modules("ib_iser")
        memory_at(Path("/etc/iscsi"))
        Path("/etc/iscsi/initiatorname.iscsi").write_text("InitiatorName=iqn.2026-01.net.example:user\n")
        Path("/etc/iscsi/iscsid.conf").write_text("")
        Path("/run/lock/iscsi").mkdir(parents=True, exist_ok=True)
        self.daemon = subprocess.Popen(  # it ends its whole group with it
            ("iscsid", "-f"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(1.0)
        command("iscsiadm", *self.where, "-I", "iser", "-o", "new")
        command("iscsiadm", *self.where, "-I", "iser", "--login", limit_s=50.0)
        return disk_of("/dev/sd?")

    def disconnect(self) -> None:
        command("iscsiadm", *self.where, "--logout", limit_s=50.0)
        self.daemon.terminate()
        self.daemon.wait()
        command("umount", "/etc/iscsi")


class Nfs:
    """NFS over RDMA, version 4.1."""

    exported, mounted = Path("/tmp/storage-exported"), Path("/tmp/storage-mounted")
    daemon = Path("/proc/fs/nfsd")

    def serve(self) -> None:
        modules("nfsd", "rpcrdma")
        state = Path("/var/lib/nfs")
        memory_at(state)
        for name in ("v4recovery", "rpc_pipefs", "nfsdcld"):
            (state / name).mkdir()
        for name in ("etab", "rmtab"):
            (state / name).touch()
        command("mount", "-t", "rpc_pipefs", "none", str(state / "rpc_pipefs"))
        memory_at(self.exported)
        command("mount", "-t", "nfsd", "nfsd", str(self.daemon))
        options = "rw,fsid=0,no_root_squash,insecure,no_subtree_check"
        command("exportfs", "-o", options, f"10.9.0.0/24:{self.exported}")
        command("rpc.mountd", "-N", "3")
        command("rpc.nfsd", "-N", "3", "4")
        write(self.daemon / "portlist", f"rdma {NFS_PORT}\n")
        write(self.daemon / "v4_end_grace", "Y")

    def end(self) -> None:
        command("rpc.nfsd", "0")
        command("exportfs", "-ua")
        command("pkill", "rpc.mountd")
        for path in (self.daemon, self.exported, Path("/var/lib/nfs/rpc_pipefs"), Path("/var/lib/nfs")):
            command("umount", "-l", str(path))

    def connect(self) -> Path:
        self.mounted.mkdir(exist_ok=True)
        options = f"rdma,port={NFS_PORT},vers=4.1,sec=sys"
        command("mount", "-t", "nfs", "-o", options, f"{SERVER}:/", str(self.mounted), limit_s=60.0)
        file = self.mounted / "file"
        file.touch()
        return file

    def disconnect(self) -> None:
        command("umount", str(self.mounted), limit_s=60.0)


KINDS: Final[dict[str, type[Storage]]] = {"nvme": Nvme, "iser": Iser, "nfs": Nfs}


def disk_of(pattern: str) -> Path:
    """The device file that appears."""
    end = time.monotonic() + DISK_LIMIT_S
    while time.monotonic() < end:
        for found in sorted(Path("/dev").glob(Path(pattern).name)):
            if found.is_block_device():
                return found
        time.sleep(0.1)
    raise SystemExit(f"no {pattern} came")


def use(path: Path, writes: int, reads: int, size: int) -> None:
    """Write and read in turns, past all caches; what is read must be what was written."""
    page = mmap.mmap(-1, size)  # O_DIRECT wants memory of whole pages
    said = [bytes([n % 251 + 1]) * size for n in range(writes)]
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        for n, text in enumerate(said):
            page[:] = text
            if os.pwrite(descriptor, page, n * size) != size:
                raise SystemExit(f"{path}: a write of {size} bytes was cut")
        for n in range(reads):
            place = n % max(1, writes)
            if os.preadv(descriptor, [page], place * size) != size or (said and page[:] != said[place]):
                raise SystemExit(f"{path}: read other bytes than were written")
    finally:
        os.close(descriptor)


def serve(kind: str) -> int:
    """Offer storage until its user takes the file away that says so, or a signal comes."""
    for path in (READY, GONE):
        path.unlink(missing_ok=True)
    for left in Path("/sys/class/nvme").glob("*/delete_controller"):  # of a user that was ended
        write(left, "1")
    offered = KINDS[kind]()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    offered.serve()
    READY.write_text(kind)
    while READY.exists() and signal.sigtimedwait(signals, 0.1) is None:
        pass
    READY.unlink(missing_ok=True)
    offered.end()
    GONE.touch()
    return 0


def wait_for(path: Path, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{path} did not come")
        time.sleep(0.1)


def main(words: list[str]) -> int:
    if len(words) != {"serve": 2, "use": 5}.get(words[0] if words else "") or words[1] not in KINDS:
        raise SystemExit(
            f"storage_inside.py serve KIND, or use KIND WRITES READS BYTES; kinds: {', '.join(KINDS)}"
        )
    if words[0] == "serve":
        return serve(words[1])
    wait_for(READY, READY_LIMIT_S)
    user = KINDS[words[1]]()
    try:
        path = user.connect()
        try:
            use(path, *map(int, words[2:5]))
        finally:
            user.disconnect()
    finally:
        READY.unlink()
        wait_for(GONE, READY_LIMIT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
