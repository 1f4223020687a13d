"""``vendor-opcode``: packets whose opcode the specification leaves to vendors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rocekit.findings.finding import INFO, Finding, Rule
from rocekit.wire.words import plural

if TYPE_CHECKING:
    from rocekit.findings.evidence import Evidence


def _look(evidence: Evidence) -> Iterator[Finding]:
    observer = evidence.observer
    if observer is None or not observer.vendor:
        return
    counts = dict(sorted(observer.vendor_counts.items()))
    packets = sum(counts.values())
    names = ", ".join(f"{opcode:#04x}" for opcode in counts)
    checked = not observer.vendor_unchecked
    state = "right ICRCs" if checked else "ICRCs that could not all be checked"
    yield RULE.finding(
        f"{plural(packets, 'packet')} with {'a vendor opcode' if len(counts) == 1 else 'vendor opcodes'} "
        f"({names}) and {state}",
        frames=sorted(frame for frames in observer.vendor.values() for frame in frames),
        evidence={
            "packets": packets,
            "opcodes": {f"{opcode:#04x}": count for opcode, count in counts.items()},
            "icrcs_right": checked,
        },
    )


RULE = Rule(
    "vendor-opcode",
    INFO,
    "packets with opcodes that the specification leaves to vendors",
    "The opcode is 0xC0 or above, which the specification leaves to vendors, or an undefined one of "
    "congestion notification (0x80 to 0x9F). What these packets mean is not public, so they are in no "
    "connection and no transfer.",
    "The opcode in the BTH, and an ICRC that is not wrong.",
    "malformed: an opcode that the specification reserves. icrc-bad: the ICRC is wrong. Where ICRCs cannot "
    "be checked, the packets may be of another program that uses port 4791.",
    "Nothing to do if the NICs of both hosts are of the same vendor. Otherwise look in the NIC's settings "
    "for a protocol of its own.",
    _look,
)
