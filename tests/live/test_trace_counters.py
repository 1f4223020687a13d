"""``rocekit trace --counters`` takes a snapshot before and after, while it captures."""

from __future__ import annotations

from pathlib import Path

from test_trace import live, shots

from rocekit.journal import read_journal
from rocekit.journal.counters import snapshots_in


def test_the_snapshots_are_kept_beside_the_packets(root: None, tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace("--counters", "--write", "x.pcapng", "--format", "json")
        send(0)
        until(printed)  # packets are read: the first snapshot was taken
        send(1)
        time.sleep(0.3)
        traced.send_signal(signal.SIGINT)
        tell(traced)
        """,
        shots("a RC_SEND_ONLY 5 64\n b ACK 5"),
        [bytes.fromhex("0200000000020200000000019999") + bytes(50)] * 3,
    )
    assert told["status"] == 0, told["err"]
    before, after = snapshots_in(read_journal(tmp_path / "x.counters.journal.jsonl"))
    assert (before.place.device, before.place.interface) == (None, "va")
    assert (before.captured_on, before.captured_to) == ("va", "x.pcapng")
    assert after.since(before)["link"]["rx_packets"] >= 3


def test_without_the_option_nothing_is_kept(root: None, tmp_path: Path) -> None:
    told = live(
        tmp_path,
        """
        traced = trace("--write", "x.pcapng", "--duration", "0.2")
        tell(traced)
        """,
        [],
    )
    assert told["status"] == 0, told["err"]
    assert not list(tmp_path.glob("*.jsonl"))
