"""What a filter chooses, and what it says of an expression that it cannot understand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handmade import Net, batch_of, ethernet, roce_v1, transport
from hypothesis import given
from hypothesis import strategies as st

from rocekit.decode import COLUMNS, Decoder, Packets
from rocekit.packets.filters import Filter, FilterError
from rocekit.wire import OPCODE_NAMES

HIGH = 0xFFFF_8880_0000_1001  # an address whose low bits a float would lose


@pytest.fixture(scope="module")
def packets() -> Packets:
    """Eight packets, frames 1 to 8."""
    to, back = Net(), Net(src="10.9.0.2", dst="10.9.0.1", tclass=0x6B)
    v6 = replace(to, version=6, src="fd00:9::1", dst="fd00:9::2")
    op = OPCODE_NAMES
    bad = bytearray(to.wrap(transport(op["RC_SEND_ONLY"], b"abcd", psn=7)))
    bad[-1] ^= 1
    frames = [
        ethernet(to.wrap(transport(op["RC_SEND_ONLY"], b"abcd", psn=1, dest_qpn=17))),
        ethernet(back.wrap(transport(op["RC_ACKNOWLEDGE"], psn=1, syndrome=0x60, msn=1))),
        ethernet(to.wrap(transport(op["RC_RDMA_WRITE_ONLY"], psn=3, remote_va=HIGH, rkey=5, dma_length=8))),
        ethernet(to.wrap(transport(op["RC_RDMA_READ_REQUEST"], psn=4, remote_va=HIGH + 1, rkey=0))),
        ethernet(v6.wrap(transport(op["UD_SEND_ONLY"], b"x", psn=5, qkey=9))),
        ethernet(roce_v1(transport(op["RC_SEND_ONLY"], psn=6)), 0x8915, (0x8100, 0x6005)),
        ethernet(bytes(bad)),
        ethernet(to.wrap(transport(0x1F, psn=8))),
    ]
    return Decoder().decode(batch_of(frames))


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("psn >= 3 and psn < 6", [3, 4, 5]),
        ("3 <= psn < 6", [3, 4, 5]),
        ("opcode == RC_SEND_ONLY", [1, 6, 7]),
        ("opcode == 'RC_SEND_ONLY' and psn == 1", [1]),
        ("opcode in (RC_ACKNOWLEDGE, UD_SEND_ONLY)", [2, 5]),
        ("opcode not in (RC_ACKNOWLEDGE, UD_SEND_ONLY, RC_SEND_ONLY)", [3, 4, 8]),
        ("opcode == 0x1f", [8]),
        ("src == 10.9.0.2", [2]),
        ("src == 10.9.0.2 or dst == fd00:9::2", [2, 5]),
        ("src == FD00:9:0::1", [5]),
        ("src in 10.9.0.0/31", [1, 3, 4, 7, 8]),
        ("src in (fd00::/8, 10.9.0.2)", [2, 5]),
        ("src not in 10.0.0.0/8", [5, 6]),
        ("src == 192.0.2.1", []),
        ("ecn == 3 and dscp == 26", [2]),
        ("dest_qpn == 17", [1]),
        ("AETH and (syndrome >> 5) & 3 == 3", [2]),
        ("not AETH and psn < 4", [1, 3]),
        ("RETH && !(rkey == 5)", [4]),
        ("AETH || RETH", [2, 3, 4]),
        ("rkey == 0", [4]),
        ("rkey != 5", [4]),
        ("not rkey == 5", [1, 2, 4, 5, 6, 7, 8]),
        (f"remote_va == {HIGH:#x}", [3]),
        (f"remote_va - 1 == {HIGH:#x}", [4]),
        (f"remote_va + dma_length == {HIGH + 8:#x}", [3]),
        ("icrc_state == invalid", [7]),
        ("malformed", [8]),
        ("malformed == 'unknown opcode'", [8]),
        ("vlan == 5 and priority == 3", [6]),
        ("vlan == -1 and roce_version == 1", []),
        ("GRH", [6]),
        ("payload_length % 4 == 1", [5]),
        ("frame in (1, 8, 99)", [1, 8]),
        ("truncated", []),
        ("not truncated and True", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("dest_qpn > 99999999999999999999", []),
    ],
)
def test_a_filter_chooses(packets: Packets, text: str, frames: list[int]) -> None:
    assert packets.where(Filter(text)(packets)).frame.tolist() == frames


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("psnn == 3", "did you mean psn?"),
        ("opcode == RC_SEND_ONYL", "did you mean RC_SEND_ONLY?"),
        ("opcode == 'RC_SEND_ONYL'", "did you mean RC_SEND_ONLY?"),
        ("psn ==", "is not an expression"),
        ("", "is not an expression"),
        ("psn = 3", "is not an expression"),
        ("src == 10.9.0", "is no IP address|not something|is not an expression"),
        ("src == 10.9.0.0/24", "goes with 'in'"),
        ("src in (10.9.0.1, banana)", "no field 'banana'"),
        ("src in ('banana', 3)", "no IP address or network"),
        ("src < 10.9.0.1", "no order"),
        ("src + 1 == 2", "no number"),
        ("psn == 'three'", "not compared with words"),
        ("psn in 3", "list in parentheses"),
        ("psn == (1, 2)", "goes with 'in'"),
        ("'abc'", "stands alone"),
        ("psn << 64", "shift"),
        ("psn % 0", "division by zero"),
        ("2 << 60 << 60", "too large"),
        ("psn is 3", "use =="),
        ("psn == 1.5", "not something"),
        ("__import__('os').system('true')", "not something"),
        ("psn.__class__", "not something"),
        ("(lambda: 1)()", "not something"),
        ("[x for x in psn]", "not something"),
        ("psn if psn else 1", "not something"),
        ("not " * 100000 + "psn", "too long"),
        ("(" * 4000 + "psn" + ")" * 4000, "not an expression|nested"),
    ],
)
def test_what_cannot_be_understood_is_said(text: str, says: str) -> None:
    with pytest.raises(FilterError, match=says):
        Filter(text)


def test_an_unknown_name_lists_the_fields_there_are() -> None:
    with pytest.raises(FilterError) as caught:
        Filter("banana == 3")
    assert all(name in str(caught.value) for name in COLUMNS)


@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from([*COLUMNS, "==", "in", "(", ")", "1", "-", "src", "10.0.0.1", "::"]), max_size=8
    ).map(" ".join)
)
def test_no_text_whatever_raises_anything_else(text: str) -> None:
    packets = Decoder().decode(batch_of([ethernet(Net().wrap(transport(4)))]))
    try:
        mask = Filter(text)(packets)
    except FilterError:
        return
    assert mask.shape == (1,)
    assert mask.dtype == np.bool_
