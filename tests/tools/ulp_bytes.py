"""What applications send, byte by byte from their specifications: private data, and first messages.

Each is (application, port, REQ's private data, REP's private data, first message of the client).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """An application's connection; empty bytes: it sends none."""

    name: str
    port: int
    request: bytes = b""
    reply: bytes = b""
    message: bytes = b""
    answer: bytes = b""
    short: str = ""


def nvme_request(queue: int, receives: int = 128, sends: int = 127, controller: int = 0) -> bytes:
    """NVMe over Fabrics 1.1, figure 72: RDMA_CM_REQUEST private data."""
    return struct.pack("<5H22s", 0, queue, receives, sends, controller, b"")


def nvme_connect(queue: int, size: int = 127, subsystem: bytes = b"") -> bytes:
    """NVMe over Fabrics 1.1, 3.3: the Connect capsule, with its data where ``subsystem`` is given."""
    sgl = struct.pack("<QIB2sB", 0, 1024, 0, b"", 0x01)
    command = struct.pack("<BBHB19s16sHHHBBI12s", 0x7F, 0x40, 5, 1, b"", sgl, 0, queue, size, 0, 0, 0, b"")
    data = struct.pack("<16sH238s256s256s256s", bytes(range(16)), 0xFFFF, b"", subsystem, b"nqn.host", b"")
    return command + (data if subsystem else b"")


def iser_login() -> bytes:
    """RFC 7145, 9.2 (28 bytes on InfiniBand) before a login request of RFC 7143, 11.12."""
    text = b"InitiatorName=iqn.2016-04.com.open-iscsi:1\0TargetName=iqn.2026-01.org.t:disk\0"
    head = struct.pack(">BBBB", 0x43, 0x87, 0, 0) + len(text).to_bytes(4, "big")
    return bytes([0x10]).ljust(28, b"\0") + (head + bytes.fromhex("00023d000000")).ljust(48, b"\0") + text


def rpc_call(program: int, version: int = 4, chunks: bytes = bytes(12), xid: int = 0x5EED1234) -> bytes:
    """RFC 8166, 4.2 (header and three chunk lists) before RFC 5531's call."""
    header = struct.pack(">4I", xid, 1, 32, 0) + chunks
    return header + struct.pack(">6I", xid, 0, 2, program, version, 0) + bytes(16)


def rpc_reply(xid: int = 0x5EED1234) -> bytes:
    """RFC 8166's header before RFC 5531's accepted reply."""
    return struct.pack(">4I", xid, 1, 32, 0) + bytes(12) + struct.pack(">6I", xid, 1, 0, 0, 0, 0)


#: RFC 8797, 4.1: magic, version 1, remote invalidation, both sizes 4,096.
RPC_PRIVATE = bytes.fromhex("f6ab0e18 01 01 03 03")
#: A read list of one segment, a write list of one chunk of one segment, no reply chunk.
CHUNKS = struct.pack(">6I I 2I4I I I", 1, 4, 7, 512, 0, 64, 0, 1, 1, 9, 512, 0, 64, 0, 0)

SMB_REQUEST = struct.pack("<4H3I", 0x100, 0x100, 0, 255, 1364, 8192, 1 << 20)  # MS-SMBD 2.2.1
SMB_RESPONSE = struct.pack(  # MS-SMBD 2.2.2
    "<6H5I", 0x100, 0x100, 0x100, 0, 255, 255, 0, 1 << 20, 1364, 8192, 1 << 20
)
SMB_DATA = struct.pack("<4H3I4s", 10, 0, 0, 0, 0, 24, 64, b"") + b"\xfeSMB" + bytes(60)  # MS-SMBD 2.2.3


def lnet(kind: int, order: str = "<") -> bytes:
    """o2iblnd-idl.h: kib_msg with connection parameters, from 10.0.0.1@o2ib to 10.0.0.2@o2ib1."""
    nids = [0x0005_0000_0A00_0001, 0x0005_0001_0A00_0002]
    head = struct.pack(f"{order}IHBBII", 0x0BE91B91, 0x12, kind, 0, 56, 0)
    return head + struct.pack(f"{order}4QHHI", nids[0], 77, nids[1], 0, 8, 256, 4096)


def srp_login() -> bytes:
    """srp.h, srp_login_req_rdma: direct and indirect descriptors, 16-byte port identifiers."""
    return struct.pack(
        ">QHBBI16s16sH6s", 0, 0x0006, 1, 0, 2116, bytes(range(1, 17)), bytes(range(17, 33)), 80, b""
    )


def srp_login_ib() -> bytes:
    """T10 SRP, 6.2: SRP_LOGIN_REQ of 64 bytes, where no IP addressing precedes it."""
    ports = bytes(range(1, 17)) + bytes(range(17, 33))
    return struct.pack(">B7sQI4sHBBH2s", 0, b"", 0, 2116, b"", 0x0006, 1, 0, 0, b"") + ports


SRP_RESPONSE = struct.pack(">B3sIQIIHB25s", 0xC0, b"", 63, 0, 2116, 2116, 0x0006, 0, b"")
SRP_REJECT = struct.pack(">B3sIQ8sH6s", 0xC2, b"", 0x10006, 0, b"", 0x0006, b"")

RTRS_REQUEST = struct.pack(
    "<2s5H16s16sB11s", b"", 0x1BBD, 0x0200, 1, 5, 0, bytes(range(16)), bytes(range(16, 32)), 0, b""
)
RTRS_RESPONSE = struct.pack("<4H3I36s", 0x1BBD, 0x0200, 0, 512, 1 << 17, 4096, 0, b"")

RDS_REQUEST = bytes([10, 0, 0, 1, 10, 0, 0, 2]) + struct.pack(">BBHBBHQI", 4, 1, 3, 0, 0, 0, 0, 16)
RDS6_REQUEST = bytes(range(1, 33)) + struct.pack(">BBHBBHQI", 4, 1, 2, 0, 0, 0, 9, 0)


def rsocket(address: int = 0x7F00_0000_1000) -> bytes:
    """rsocket.c, rs_conn_data: version 1, I/O map, credits, target SGL of two, data buffer."""
    return struct.pack(">BBH3sBQIIQII", 1, 2, 384, b"", 16, address, 0x1234, 2, address + 4096, 0x1235, 65536)


def ucx(length: int = 40) -> bytes:
    """rdmacm_cm.h and ucp_ep.h: length, status, endpoint ID, error and address mode, address."""
    return struct.pack("<BBQBBB", length, 0, 0x55D0_1234_5678, 1, 2, 0) + bytes(range(1, length - 10))


def nccl(index: int, *, release: str = "2.30", devices: int = 1) -> bytes:
    """ncclIbSendFifo of one request: as 2.30 has it, or 2.27 or 2.23."""
    rkeys = [0x588F + n for n in range(devices)] + [0] * 8
    address, size = 0x7FAA_0000_0000, 1 << 20
    if release == "2.30":
        return struct.pack("<QQ8IIIQ", address, size, *rkeys[:8], 1, 2, index)
    if release == "2.27":
        return struct.pack("<QQ4IIIQ16x", address, size, *rkeys[:4], 1, 2, index)
    return struct.pack("<QI2III4xQ24x", address, size, *rkeys[:2], 1, 2, index)


ROCEKIT_PLAN = b"rcki" + b"ping-sr".ljust(16, b"\0") + bytes(36)
CEPH_BANNER = b"ceph v2\n" + struct.pack("<HQQ", 16, 1, 0)
PERFTEST_VERSION = b"6.20".ljust(16, b"\0")
RPING_INFO = struct.pack(">QII", 0x5B26_9382_E5E0, 0x2095, 64)

#: What is stated.
CERTAIN = (
    Sample(
        "NVMe-oF", 4420, nvme_request(3), struct.pack("<HH28s", 0, 128, b""), nvme_connect(3), short="queue 3"
    ),
    Sample("NVMe-oF", 4421, nvme_request(0, 32, 31), message=nvme_connect(0, 31), short="admin queue"),
    Sample("NFS/RDMA", 20049, RPC_PRIVATE, RPC_PRIVATE, rpc_call(100003), rpc_reply(), "NFS version 4"),
    Sample("NFS/RDMA", 2050, message=rpc_call(100003, 3, CHUNKS), short="NFS version 3"),
    Sample("NFS/RDMA", 20049, RPC_PRIVATE),
    Sample("RPC-over-RDMA", 2050, RPC_PRIVATE),
    Sample("iSER", 3260, b"\xc0\0\0\0", b"\x80\0\0\0", iser_login()),
    Sample("iSER", 3261, message=iser_login()),
    Sample("iSER", 3260, b"\xc0\0\0\0"),
    Sample("SMB Direct", 445, message=SMB_REQUEST, answer=SMB_RESPONSE),
    Sample("SMB Direct", 5000, message=SMB_REQUEST, answer=SMB_RESPONSE),
    Sample("SMB Direct", 5445, message=SMB_REQUEST),
    Sample("SMB Direct", 5000, message=SMB_DATA),
    Sample("LNet", 988, lnet(0xC0), lnet(0xC1), lnet(0xD1)),
    Sample("LNet", 987, lnet(0xC0, ">")),
    Sample("SRP", 5555, srp_login(), SRP_RESPONSE),
    Sample("RTRS", 1234, RTRS_REQUEST, RTRS_RESPONSE, short="connection 1 of 5"),
    Sample("RTRS", 5555, RTRS_REQUEST, short="connection 1 of 5"),
    Sample("RDS", 18634, RDS_REQUEST, RDS_REQUEST),
    Sample("RDS", 16385, RDS6_REQUEST[:52] + bytes(4)),
    Sample("rsockets", 7427, rsocket(), rsocket(0x7F11_0000_0000)),
    Sample("perftest", 18515, message=PERFTEST_VERSION, short="version 6.20"),
    Sample("rping", 7174, message=RPING_INFO),
    Sample("Gluster", 24008, message=rpc_call(34123456, 1)),
    Sample("Gluster", 49152, message=rpc_call(1298437, 330)),
    Sample("Ceph", 6800, message=CEPH_BANNER, short="messenger 2"),
    Sample("rocekit", 18515, ROCEKIT_PLAN, short="scenario ping-sr"),
)

#: What is probable.
PROBABLE = (
    Sample("SRP", 5555, srp_login()),
    Sample("rsockets", 7427, rsocket()),
    Sample("UCX", 13337, ucx(), ucx(48)),
    Sample("UCX", 13337, ucx(54)),
    Sample("SMB Direct", 5000, message=SMB_REQUEST),
    Sample("perftest", 5000, message=PERFTEST_VERSION, short="version 6.20"),
    Sample("iSER", 3260),
    Sample("NFS/RDMA", 20049),
    Sample("SMB Direct", 5445),
    Sample("SMB Direct", 445),
    Sample("perftest", 18515),
    Sample("rping", 7174),
    Sample("Gluster", 24008),
    Sample("Ceph", 3300),
    Sample("librdmacm's examples", 7471),
)

#: What is not named: nothing known, or something that the port's application would have sent is missing.
UNNAMED = (
    Sample("", 5555),
    Sample("", 5555, b"\x01\x02\x03\x04", b"\x05"),
    Sample("", 5555, nvme_request(3)),
    Sample("", 5555, b"\xc0\0\0\0"),
    Sample("", 5555, RDS_REQUEST),
    Sample("", 4420),
    Sample("", 4420, b"another protocol"),
    Sample("", 4420, bytes(32)),
    Sample("", 988),
    Sample("", 1234),
    Sample("", 18634, b"\x0a\0\0\x01" * 4),
    Sample("", 18515, b"\x05"),
    Sample("", 18515, message=b"something else"),
    Sample("", 7174, message=bytes(16)),
    Sample("", 20049, message=b"no RPC at all, but a text"),
    Sample("", 445, message=b"no RPC at all, but a text"),
    Sample("", 5555, message=RPING_INFO),
)
