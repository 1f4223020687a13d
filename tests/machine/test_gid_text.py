"""The claim about GIDs as text: it is what the module ipaddress of this Python writes."""

from __future__ import annotations

import ipaddress
import random

import pytest

from rocekit.machine.gid_text import address_of, gid_in_sysfs, ipv6_text


def gids() -> list[bytes]:
    """Random ones, with runs of zeros of every length at every place, and mapped ones."""
    dice = random.Random(3)
    found = [bytes(16), bytes(15) + b"\1", b"\xff" * 16, bytes(10) + b"\xff\xff\0\0\0\0"]
    for _ in range(3000):
        gid = bytearray(dice.randbytes(16))
        for _ in range(dice.randrange(4)):
            start = dice.randrange(16)
            length = dice.randrange(16 - start)
            gid[start : start + length] = bytes(length)
        found.append(bytes(gid))
        found.append(bytes(10) + b"\xff\xff" + bytes(gid[:4]))
        found.append(bytes(12) + bytes(gid[:4]))
    return found


def test_the_text_is_that_of_ipaddress() -> None:
    for gid in gids():
        address = ipaddress.IPv6Address(gid)
        assert ipv6_text(gid) == str(address)
        assert address_of(gid) == str(address.ipv4_mapped or address)
        assert gid_in_sysfs(address.exploded) == gid
        assert gid_in_sysfs(str(address)) == gid


@pytest.mark.parametrize("text", ["", "x", "0000:0000:0000:0000:0000:ffff:0a09:000x", "1:2:3", "fe80::1::"])
def test_what_is_no_gid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        gid_in_sysfs(text)
