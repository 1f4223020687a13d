"""The Internet checksum (RFC 1071) of IPv4, UDP and TCP."""

from __future__ import annotations


def internet_sum(data: bytes) -> int:
    """The ones' complement sum of 16-bit words: a number of base 2^16 modulo 2^16 − 1, never 0 for data."""
    number = int.from_bytes(data + b"\0" if len(data) & 1 else data, "big")
    return number % 0xFFFF or (0xFFFF if number else 0)


def internet_checksum(data: bytes) -> int:
    """The checksum of ``data``, in which the checksum field is zero or left out."""
    return 0xFFFF - internet_sum(data)
