"""Filters: tshark's names and classes of opcodes choose what tshark chooses; what says nothing is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

from rocekit.files.reader import open_capture
from rocekit.packets import COLUMNS
from rocekit.packets.decoder import Decoder
from rocekit.packets.field_words import FROM_TSHARK, MEANINGS, OPCODE_CLASSES, completions
from rocekit.packets.filters import Filter, FilterError
from rocekit.verify.tshark import find_tshark
from rocekit.wire import OPCODES

CAPTURE = ROOT / "pcaps" / "ping-write-loss-behind.pcap"


def frames(expression: str, path: Path = CAPTURE) -> list[int]:
    """The frames that a filter chooses."""
    chosen, decoder, found = Filter(expression), Decoder(), []
    with open_capture(path) as capture:
        for batch in capture:
            packets = decoder.decode(batch)
            found += packets.frame[chosen(packets)].tolist()
    return found


def tshark_frames(expression: str, path: Path = CAPTURE) -> list[int]:
    try:
        tshark, _ = find_tshark()
    except Exception as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [tshark, "-n", "-r", path, "-Y", expression, "-T", "fields", "-e", "frame.number"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_an_expression_of_tshark_chooses_the_frames_that_tshark_chooses() -> None:
    for expression in (
        "infiniband.bth.psn == 16688369",
        "infiniband.aeth.syndrome >= 0x60 && ip.src == 10.9.0.2",
        "infiniband.reth.r_key == 0x591 and infiniband.reth.dmalen gt 1024",
        "infiniband && ip.addr == 10.9.0.1 and infiniband.bth.opcode in {0x06, 0x08}",
        "infiniband.bth.destqp eq 0x14 and not infiniband.aeth and frame.number lt 100",
    ):
        ours = expression.replace("infiniband && ", "")
        theirs = tshark_frames(f"infiniband && ({expression})")
        assert frames(ours) == theirs, expression
        assert theirs, expression


def test_an_address_field_of_one_ip_version_is_in_packets_of_that_version_only() -> None:
    assert frames("ip.ttl > 0") == frames("hop_limit > 0")
    assert frames("ipv6.hlim >= 0") == []
    assert frames("ipv6.src != fd00::1") == []


def test_either_address_is_one_of_them_and_unequal_is_both() -> None:
    there = set(frames("src == 10.9.0.1 or dst == 10.9.0.1"))
    assert set(frames("ip.addr == 10.9.0.1")) == there
    assert set(frames("ip.addr in 10.9.0.1/32")) == there
    assert frames("ip.addr != 10.9.0.1") == []


def test_a_class_of_opcodes_is_all_opcodes_of_its_operation() -> None:
    names = {word: {OPCODES[value].name for value in values} for word, values in OPCODE_CLASSES.items()}
    assert names["WRITE"] == names["RDMA_WRITE"]
    assert "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE" in names["WRITE"]
    assert not any("ATOMIC" in name for name in names["WRITE"])
    assert {"RC_RDMA_READ_REQUEST", "RC_RDMA_READ_RESPONSE_LAST"} <= names["READ"]
    assert {"RC_FETCH_ADD", "RC_COMPARE_SWAP", "RC_ATOMIC_ACKNOWLEDGE"} <= names["ATOMIC"]
    assert "RC_ATOMIC_WRITE" not in names["ATOMIC"]
    assert names["SEND_ONLY"] == {f"{t}_SEND_ONLY" for t in ("RC", "UC", "RD", "UD", "XRC")}


def test_opcodes_go_by_their_class_in_any_case() -> None:
    every = frames("RETH or opcode in (RC_RDMA_WRITE_MIDDLE, RC_RDMA_WRITE_LAST)")
    for expression in (
        "opcode == WRITE",
        "opcode == rdma_write",
        "opcode in (Write, CNP)",
        "write == opcode",
    ):
        assert frames(expression) == every, expression
    rest = frames("opcode != WRITE")
    assert sorted(rest + every) == frames("psn >= 0")
    assert frames("opcode == rc_acknowledge") == frames("opcode == RC_ACKNOWLEDGE")


@pytest.mark.parametrize("name", ["src", "ip.src", "opcode", "icrc_state", "not dst", "flow and psn > 3"])
def test_a_field_that_every_packet_has_is_refused_alone(name: str) -> None:
    with pytest.raises(FilterError, match="alone says nothing"):
        Filter(name)


def test_a_wrong_name_of_tshark_is_told_the_nearest() -> None:
    with pytest.raises(FilterError, match=r"did you mean infiniband\.bth\.psn"):
        Filter("infiniband.bth.pns == 3")
    with pytest.raises(FilterError, match="write time_ns"):
        Filter("frame.time_epoch > 3")


def test_each_column_has_a_meaning_and_each_field_of_tshark_a_column() -> None:
    assert set(MEANINGS) == set(COLUMNS)
    assert {column for column, _ in FROM_TSHARK.values()} <= set(COLUMNS)


def test_words_of_a_filter_are_completed_in_any_case() -> None:
    assert "dest_qpn" in completions("dest")
    assert "RC_RDMA_WRITE_ONLY" in completions("rc_rdma")
    assert "infiniband.bth.psn" in completions("infiniband.bth.")
    assert np.all([isinstance(word, str) for word in completions("")])
