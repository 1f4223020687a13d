"""Soft devices against the kernel's rxe, with programs of others: rping, the ping-pongs, perftest.

Both roles, RC, UC and UD, connections by CM and by hand, IPv4 and IPv6, path MTUs 256 to 4096, and loss,
reordering and duplication in both directions: of each something with ``scripts/test --more``, and all of it
with ``scripts/test --everything``.
"""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import soft_lab_inside
from amount import EVERYTHING, lacks_more, needs_everything
from lab_boot import Boot, Part
from lab_forks import PRELOADED

from rocekit.analysis import analyze
from rocekit.capture import open_capture
from rocekit.decode import Decoder
from rocekit.wire import OPCODES

WANTED = () if EVERYTHING else soft_lab_inside.SHORT
PART = Part("soft", (soft_lab_inside.__file__, *WANTED), timeout_s=2400, loads=PRELOADED, obstacle=lacks_more)
pytestmark = pytest.mark.lab(PART)

CONVERSATIONS = soft_lab_inside.CONVERSATIONS
CLEAN = [name for name, c in CONVERSATIONS.items() if not c.faults and c.netem is None]


@pytest.fixture(scope="module")
def out(boot: Boot) -> Path:
    return boot.of(PART)


@pytest.fixture(scope="module")
def facts(out: Path) -> dict[str, Any]:
    lines = (out / "facts.jsonl").read_text().splitlines()
    return {fact["name"]: fact for fact in map(json.loads, lines)}


def only_if_run(name: str) -> None:
    """Skip what the short run leaves out."""
    if name not in soft_lab_inside.SHORT:
        needs_everything()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_kernels_program_and_the_soft_peer_are_both_content(facts: dict[str, Any], name: str) -> None:
    only_if_run(name)
    fact, conversation = facts[name], CONVERSATIONS[name]
    assert (fact["error"], fact["status"]) == (None, -signal.SIGKILL if conversation.hangs else 0), fact
    if conversation.rounds is not None:
        assert fact["rounds"] == conversation.rounds


@pytest.mark.parametrize(
    "name", ["write_bw_server", "write_bw_server_rdma_cm", "write_bw_server_rdma_cm_loss"]
)
def test_what_perftest_writes_is_in_the_soft_peers_memory(
    out: Path, facts: dict[str, Any], name: str
) -> None:
    """The bytes of the packets, joined without the engine."""
    only_if_run(name)
    data: dict[int, bytes] = {}
    with open_capture(out / f"{name}.pcapng") as reader:
        decoder = Decoder()
        for packets in map(decoder.decode, reader):
            for row, opcode in enumerate(packets.opcode):
                if OPCODES[int(opcode)].operation == "WRITE":
                    data[int(packets.psn[row])] = packets.payload(row)
    whole = b"".join(data[psn] for psn in sorted(data))
    size = soft_lab_inside.BYTES
    assert len(whole) == size * soft_lab_inside.MESSAGES
    assert hashlib.sha256(whole[-size:]).hexdigest() == facts[name]["memory"]


@pytest.mark.parametrize("transport", ["uc", "ud"])
def test_of_unreliable_messages_the_whole_ones_arrive(
    out: Path, facts: dict[str, Any], transport: str
) -> None:
    only_if_run(f"send_bw_server_{transport}_loss")
    to_soft, to_rxe = (facts[f"send_bw_{role}_{transport}_loss"] for role in ("server", "client"))
    transfers = analyze(out / f"{to_soft['name']}.pcapng").transfers
    size = 1000 if transport == "ud" else soft_lab_inside.SHORT_BYTES
    assert to_soft["rounds"] == sum(t.status == "sent" and t.bytes == size for t in transfers)
    # Possibly none of 20 datagrams is hit.
    assert 0 < to_soft["rounds"] <= soft_lab_inside.MESSAGES - (transport == "uc")
    assert to_rxe["received_by_rxe"] == soft_lab_inside.MESSAGES - 2


@pytest.mark.parametrize("name", soft_lab_inside.INJECTS)
def test_every_scenario_runs_between_rxe_and_a_soft_device(
    out: Path, facts: dict[str, Any], name: str
) -> None:
    only_if_run(name)
    fact = facts[name]
    assert (fact["error"], fact["status"]) == (None, 0), fact
    analysis = analyze(out / f"{name}.pcapng")
    assert analysis.capture.counts.bad_icrc == 0
    scenario, _ = soft_lab_inside.INJECTS[name]
    assert {t.status for t in analysis.transfers} == {"sent" if scenario in ("uc", "ud") else "acked"}
    if scenario in soft_lab_inside.BOTH_ROLES:
        assert len(analysis.connections) == 2


@pytest.mark.parametrize("name", CLEAN)
def test_their_packets_are_right_and_all_arrive(out: Path, facts: dict[str, Any], name: str) -> None:
    only_if_run(name)
    analysis = analyze(out / f"{name}.pcapng")
    assert analysis.capture.counts.bad_icrc == 0
    unreliable = name.startswith(("uc", "ud")) or name.endswith(("_uc", "_ud"))
    assert {t.status for t in analysis.transfers} == {"sent" if unreliable else "acked"}
    # A slow machine sends delayed packets again, and a peer may close first; no packet may be wrong.
    wrong = {f"drop_{why}" for why in ("icrc", "malformed", "transport", "source", "qkey", "pkey", "access")}
    assert not wrong & set(facts[name]["counters"]), facts[name]["counters"]
