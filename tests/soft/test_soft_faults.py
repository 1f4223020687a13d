"""Faults on a wire: aimed ones hit only their packet, and errors in a file name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocekit.errors import ScenarioError
from rocekit.soft.engine.packet import ECN_CE, Route, Unusable, mark_ce, parse
from rocekit.soft.testbed import check_run, run
from rocekit.soft.testbed.program import Post, Program, QpSetup, Receive
from rocekit.soft.wires.fault_file import KEYS, fault_from_words, parse_faults, read_faults
from rocekit.soft.wires.faults import Fault, at_random
from rocekit.wire.build import build_transport
from rocekit.wire.icrc import icrc


def test_a_file_lists_faults_in_braces_or_in_lines() -> None:
    faults = parse_faults(
        """
        # lost twice
        - {qpn: 1, psn: 4, type: drop, iter: 1}
        - qpn: 2
          psn: 0x10
          type: ecn     # marked
          from: server
          of: response
        - {type: reorder, rate: 1%, delay_us: 50}
        """
    )
    assert faults == (
        Fault("drop", 1, 4, 1),
        Fault("ecn", 2, 16, of="response", sender="server"),
        Fault("reorder", None, of=None, rate=0.01, delay_us=50.0),
    )


def test_words_are_faults_too() -> None:
    assert fault_from_words("qpn=1,psn=4,type=drop,iter=2") == Fault("drop", 1, 4, 2)
    assert fault_from_words("drop=2%") == Fault("drop", None, of=None, rate=0.02)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("- {qpn: 1, psnn: 4, type: drop}", f"line 2: no key 'psnn'; a fault has {', '.join(KEYS)}"),
        ("- {qpn: one, psn: 4, type: drop}", "line 2: qpn is a whole number, not 'one'"),
        ("- {qpn: 1, psn: 4, type: lose}", "line 2: type is one of drop, ecn, bit-error"),
        ("- {qpn: 1, psn: 4}", "line 2: a fault has a type"),
        ("- {qpn: 1, psn: 0, type: drop}", "line 2: psn is counted from 1, not 0"),
        (
            "- {psn: 16777217, type: drop}",
            "line 2: psn is at most 16777216: there are no more PSNs of 24 bits",
        ),
        ("- {psn: 4, type: delay, delay_us: -5}", "line 2: delay_us is 0 to 3600000000, an hour, not -5.0"),
        ("- {psn: 4, type: delay, delay_us: nan}", "line 2: delay_us is 0 to 3600000000, an hour, not nan"),
        ("- {type: drop, rate: 200%}", "line 2: rate is a chance from 0 to 1"),
        ("- {type: drop, psn: 1, rate: 2%}", "line 2: a fault has either psn or rate"),
        ("- {qpn: 1, psn: 4, type: drop", "line 3: no YAML: expected ',' or '}'"),
        ("faults: 7", "line 2: expected a list of faults"),
        ("- {qpn}", "line 2: qpn has no value"),
        ("- 7", "line 2: a fault is written as key: value"),
        ("- {qpn: 1, qpn: 2, psn: 4, type: drop}", "line 2: qpn is there twice"),
    ],
)
def test_a_wrong_line_is_named_with_its_file_and_what_was_expected(
    line: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "faults.yaml"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(ScenarioError) as raised:
        read_faults(path)
    assert str(raised.value).startswith(f"{path}: {words}")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"nowhere.yaml: cannot be read: No such file"):
        read_faults("nowhere.yaml")


def two_connections() -> Program:
    return Program(
        (QpSetup(timeout=8), QpSetup(timeout=8, a_psn=100)),
        (*(Post(n, "a", "SEND", 3000) for n in (0, 1, 0, 1)), Post(1, "b", "SEND", 10)),
        (Receive(0, "b", 2), Receive(1, "b", 2), Receive(1, "a", 1)),
    )


def test_an_aimed_fault_hits_one_packet_of_one_queue_pair() -> None:
    result = run(two_connections(), [Fault("drop", qpn=2, psn=2)])
    assert result.faults_done["drop"] == 1
    again = {t["requester"]["qpn"]: t["retransmitted_packets"] for t in result.transfer_dicts()[:4]}
    assert again[17] == 0
    assert sum(t["naks"] for t in result.transfer_dicts() if t["requester"]["qpn"] == 18) == 1


def test_from_turns_the_fault_to_the_other_requester() -> None:
    result = run(two_connections(), [Fault("drop", qpn=2, psn=1, sender="soft_b")])
    hit = [t for t in result.transfer_dicts() if t["timeouts"]]
    assert [t["requester"]["ip"] for t in hit] == ["10.9.0.2"]


def test_a_bit_error_is_what_the_icrc_is_for() -> None:
    result = run(two_connections(), [Fault("bit-error", psn=1)])
    assert result.hosts[1].device.counters["drop_icrc"] == 1
    assert check_run(result) == []


def test_a_marked_packet_keeps_both_its_checksums() -> None:
    for source, destination in (("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")):
        route = Route(source, destination, qpn=17, udp_sport=0xC000, tclass=2)
        data = route.datagram(build_transport("RC_SEND_ONLY", b"x" * 10, dest_qpn=5, psn=9)).data
        marked = mark_ce(data)
        packet = parse(marked)
        assert (packet.ecn, packet.psn, packet.payload) == (ECN_CE, 9, b"x" * 10)
        if ":" not in source:
            words = [int.from_bytes(marked[i : i + 2], "big") for i in range(0, 20, 2)]
            total = sum(words)
            assert (total & 0xFFFF) + (total >> 16) == 0xFFFF


def test_the_same_seed_hits_the_same_packets() -> None:
    rates = at_random({"drop": 0.2, "duplicate": 0.05, "reorder": 0.05})
    first, second, other = (run(two_connections(), rates, seed) for seed in (1, 1, 2))
    assert first.transfer_dicts() == second.transfer_dicts()
    assert first.faults_done == second.faults_done
    assert other.transfer_dicts() != first.transfer_dicts()


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_datagram_cut_short_is_dropped_and_never_an_error(cut: int) -> None:
    route = Route("10.0.0.1", "10.0.0.2", qpn=17, udp_sport=0xC000)
    data = route.datagram(build_transport("RC_RDMA_WRITE_ONLY", b"x" * 10, dest_qpn=5, psn=9)).data
    with pytest.raises(Unusable):
        parse(data[:cut])
    assert icrc(data[:-4], 20) == int.from_bytes(data[-4:], "little")
