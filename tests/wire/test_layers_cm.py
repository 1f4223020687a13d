"""MADs and CM messages in Scapy."""

from __future__ import annotations

from typing import Any

import pytest
from layer_cases import chain
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from rocekit import wire
from rocekit.layers import BTH, DETH, roce
from rocekit.wire import cm as wire_cm
from rocekit.wire.build import build_frame, build_ip_cm, build_mad
from rocekit.wire.scapy_cm import CM_LAYERS, CM_REQ, CM_SIDR_REQ, IP_CM, MAD


@pytest.mark.parametrize("qpn", wire.MAD_QPNS)
@pytest.mark.parametrize("message", wire_cm.CM_MESSAGES)
def test_a_cm_message_on_qp_0_or_1_is_read_and_built_again(message: str, qpn: int) -> None:
    fields = {
        f.name: 0x5A5A_5A5A_5A5A_5A5A & (1 << f.bits) - 1
        for f in wire_cm.CM_MESSAGES[message].fields
        if not f.is_bytes and not f.reserved
    }
    payload = build_mad(message, 0x1122334455667788, private_data=b"private", **fields)
    frame = build_frame("UD_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=qpn, payload=payload)
    packet = Ether(frame)
    assert chain(packet) == ["BTH", "DETH", "MAD", f"CM_{message}"]
    assert packet[MAD].transaction_id == 0x1122334455667788
    layer = packet[CM_LAYERS[message]]
    assert {name: getattr(layer, name) for name in fields} == fields
    assert bytes(layer.private_data).startswith(b"private")
    assert bytes(packet) == frame
    rebuilt = MAD(transaction_id=0x1122334455667788) / CM_LAYERS[message](private_data=b"private", **fields)
    assert bytes(rebuilt) == payload


def test_ud_payload_on_other_qps_is_not_a_mad() -> None:
    frame = build_frame(
        "UD_SEND_ONLY", src="10.0.0.1", dst="10.0.0.2", dest_qpn=2, payload=build_mad("REQ", 1)
    )
    assert chain(Ether(frame)) == ["BTH", "DETH", "Raw"]


def test_a_mad_that_is_not_cm_keeps_its_bytes() -> None:
    packet = IP(
        bytes(IP() / UDP() / roce("UD_SEND_ONLY", MAD(mgmt_class=3, attribute_id=0x38) / Raw(bytes(232))))
    )
    assert chain(packet) == ["BTH", "DETH", "MAD", "Raw"]


@pytest.mark.parametrize("message", [CM_REQ, CM_SIDR_REQ])
@pytest.mark.parametrize(("src", "dst"), [("10.9.0.1", "10.9.0.2"), ("fd00:9::1", "fd00:9::2")])
def test_private_data_of_an_rdma_cm_service_starts_with_addresses(message: Any, src: str, dst: str) -> None:
    version = 6 if ":" in src else 4
    header = IP_CM(ip_version=version, source_port=4321, source_address=src, destination_address=dst)
    mad = bytes(MAD() / message(service_id=0x0106_4853, private_data=header / b"mine"))
    assert len(mad) == 256
    assert build_ip_cm(src, dst, 4321, b"mine") in mad
    read = MAD(mad)[IP_CM]
    assert (read.ip_version, read.source_port) == (version, 4321)
    assert (read.source_address, read.destination_address) == (src, dst)
    assert read[Raw].load.rstrip(b"\0") == b"mine"
    assert bytes(MAD(mad)) == mad


def test_private_data_of_another_service_is_the_programs_own() -> None:
    mad = MAD(bytes(MAD() / CM_REQ(service_id=0x1234, private_data=build_ip_cm("10.9.0.1", "10.9.0.2", 1))))
    assert IP_CM not in mad


def test_changing_an_address_inside_private_data_changes_the_bytes() -> None:
    read = MAD(bytes(MAD() / CM_REQ(service_id=0x0106_4853, private_data=IP_CM(source_address="10.9.0.1"))))
    read[IP_CM].source_address = "10.9.0.7"
    assert bytes([10, 9, 0, 7]) in bytes(read)


def test_a_cm_mad_goes_to_qp_1_with_its_well_known_key() -> None:
    packet = roce("UD_SEND_ONLY", MAD() / CM_REQ())
    assert (packet[BTH].dest_qpn, packet[DETH].src_qpn, packet[DETH].qkey) == (1, 1, 0x8001_0000)
