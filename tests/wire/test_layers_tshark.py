"""tshark reads what the Scapy layers built as it was meant, over every network."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from layer_cases import NETWORKS, values_for
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from rocekit import wire
from rocekit.layers import BTH, LAYERS, roce
from rocekit.wire import cm as wire_cm
from rocekit.wire.scapy_cm import CM_LAYERS, CM_REJ, CM_REP, CM_REQ, IP_CM, MAD

IGNORED = ("rpcordma", "nvme-rdma", "smb_direct", "iser", "tftp")
FIELDS = {
    "opcode": "infiniband.bth.opcode",
    "solicited": "infiniband.bth.se",
    "migreq": "infiniband.bth.m",
    "padcount": "infiniband.bth.padcnt",
    "version": "infiniband.bth.tver",
    "pkey": "infiniband.bth.p_key",
    "dest_qpn": "infiniband.bth.destqp",
    "ackreq": "infiniband.bth.a",
    "psn": "infiniband.bth.psn",
    "remote_va": "infiniband.reth.va",
    "rkey": "infiniband.reth.r_key",
    "dma_length": "infiniband.reth.dmalen",
    "swap_add": "infiniband.atomiceth.swapdt",
    "compare": "infiniband.atomiceth.cmpdt",
    "syndrome": "infiniband.aeth.syndrome",
    "msn": "infiniband.aeth.msn",
    "original": "infiniband.atomicacketh.origremdt",
    "immediate": "infiniband.immdt",
    "invalidate_rkey": "infiniband.ieth",
    "qkey": "infiniband.deth.q_key",
    "src_qpn": "infiniband.deth.srcqp",
    "icrc": "infiniband.invariant.crc",
}


#: Shown by tshark as bytes.
AS_BYTES = ("infiniband.immdt", "infiniband.ieth")


def number(text: str, field: str = "") -> int:
    if text in ("True", "False"):
        return int(text == "True")
    return int(text, 16 if field in AS_BYTES else 0)


def ask(tshark: str, file: Path, fields: list[str]) -> list[dict[str, str]]:
    """The fields of each frame, as tshark reads them."""
    command = [tshark, "-n", "-r", str(file), "-T", "fields", "-E", "occurrence=f"]
    for protocol in IGNORED:
        command += ["--disable-protocol", protocol]
    for field in fields:
        command += ["-e", field]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return [dict(zip(fields, line.split("\t"), strict=True)) for line in out.splitlines()]


@pytest.mark.parametrize("network", NETWORKS)
def test_tshark_reads_the_same_fields(network: str, tshark: str, tmp_path: Path) -> None:
    # What tshark 4.0 takes for something else: RD, XRC, CNP, and annex A19.
    known = [
        o
        for o in wire.OPCODES.values()
        if o.transport in ("RC", "UC", "UD") and o.operation not in ("FLUSH", "ATOMIC_WRITE")
    ]
    packets = []
    for opcode in known:
        payload = b"p" * 45 if opcode.payload else b""
        packets.append(Ether(bytes(NETWORKS[network]() / roce(opcode.value, payload, **values_for(opcode)))))
    wrpcap(str(tmp_path / "made.pcap"), packets)
    rows = ask(tshark, tmp_path / "made.pcap", list(FIELDS.values()))
    assert len(rows) == len(known)
    compared = 0
    for opcode, packet, row in zip(known, packets, rows, strict=True):
        for header in (wire.BTH, *opcode.headers):
            for f in header.fields:
                if f.name in FIELDS:
                    ours = getattr(packet[LAYERS[header.name]], f.name)
                    assert number(row[FIELDS[f.name]], FIELDS[f.name]) == ours, (opcode.name, f.name)
                    compared += 1
        big = int.from_bytes(packet[BTH].icrc.to_bytes(4, "little"), "big")
        assert number(row[FIELDS["icrc"]]) == big
    assert compared > 300


CM_FIELDS: dict[str, dict[str, int | str]] = {
    "REQ": {
        "infiniband.cm.req": 0x01020304,
        "infiniband.cm.req.localqpn": 0x112233,
        "infiniband.cm.req.startpsn": 0x445566,
        "infiniband.cm.req.retrcount": 5,
        "infiniband.cm.req.rnrretrcount": 6,
        "infiniband.cm.req.pppmtu": 3,
        "infiniband.cm.req.responderres": 7,
        "infiniband.cm.req.initdepth": 9,
        "infiniband.cm.req.localcaguid": 0x0102030405060708,
        "infiniband.cm.req.serviceid.dport": 18515,
        "infiniband.cm.req.ip_cm.sport": 54321,
        "infiniband.cm.req.ip_cm.sip4": "10.9.0.1",
        "infiniband.cm.req.ip_cm.dip4": "10.9.0.2",
    },
    "REP": {
        "infiniband.cm.rep": 0x0A0B0C0D,
        "infiniband.cm.rep.remotecommid": 0x01020304,
        "infiniband.cm.rep.localqpn": 0x332211,
        "infiniband.cm.rep.startpsn": 0x665544,
        "infiniband.cm.rep.respres": 4,
        "infiniband.cm.rep.initdepth": 3,
        "infiniband.cm.rep.tgtackdelay": 15,
        "infiniband.cm.rep.rnrretrcount": 7,
    },
    "REJ": {"infiniband.cm.rej.reason": 28, "infiniband.cm.rej.msgrej": 1},
    "RTU": {"infiniband.cm.rtu.localcommid": 0x01020304, "infiniband.cm.rtu.remotecommid": 0x0A0B0C0D},
    "DREQ": {"infiniband.cm.dreq.localcommid": 0x01020304, "infiniband.cm.dreq.remotecommid": 0x0A0B0C0D},
    "DREP": {"infiniband.cm.drsp.localcommid": 0x01020304, "infiniband.cm.drsp.remotecommid": 0x0A0B0C0D},
}
COMMS = {"local_comm_id": 0x01020304, "remote_comm_id": 0x0A0B0C0D}


def test_tshark_reads_the_same_cm_messages(tshark: str, tmp_path: Path) -> None:
    address = IP_CM(source_port=54321, source_address="10.9.0.1", destination_address="10.9.0.2")
    messages = {
        "REQ": CM_REQ(
            local_comm_id=0x01020304,
            service_id=0x0106_4853,
            local_ca_guid=0x0102030405060708,
            local_qpn=0x112233,
            starting_psn=0x445566,
            retry_count=5,
            rnr_retry_count=6,
            path_mtu_code=3,
            responder_resources=7,
            initiator_depth=9,
            private_data=address / b"program's own",
        ),
        "REP": CM_REP(
            local_comm_id=0x0A0B0C0D,
            remote_comm_id=0x01020304,
            local_qpn=0x332211,
            starting_psn=0x665544,
            responder_resources=4,
            initiator_depth=3,
            target_ack_delay=15,
            rnr_retry_count=7,
        ),
        "REJ": CM_REJ(message_rejected="REP", reason=wire_cm.REJ_CONSUMER, **COMMS),
        **{name: CM_LAYERS[name](**COMMS) for name in ("RTU", "DREQ", "DREP")},
    }
    packets = [
        NETWORKS["IPv4"]() / roce("UD_SEND_ONLY", MAD(transaction_id=77 + i) / message)
        for i, message in enumerate(messages.values())
    ]
    wrpcap(str(tmp_path / "cm.pcap"), [Ether(bytes(p)) for p in packets])
    common = ["infiniband.mad.transactionid", "infiniband.mad.mgmtclass", "infiniband.mad.method"]
    attribute = "infiniband.mad.attributeid"
    fields = [*common, attribute, *(f for asked in CM_FIELDS.values() for f in asked)]
    rows = ask(tshark, tmp_path / "cm.pcap", fields)
    for i, (name, row) in enumerate(zip(messages, rows, strict=True)):
        assert [number(row[f]) for f in common] == [77 + i, wire_cm.MGMT_CLASS_CM, wire_cm.METHOD_SEND]
        assert number(row[attribute]) == wire_cm.CM_ATTRIBUTE_IDS[name]
        for field, value in CM_FIELDS[name].items():
            theirs: Any = row[field] if isinstance(value, str) else number(row[field])
            assert theirs == value, field
