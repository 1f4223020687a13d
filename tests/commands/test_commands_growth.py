"""What commands cost grows with their input, also where it is a text with very many of one thing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amount import MORE
from click.testing import CliRunner
from growth import FEW, assert_command_linear, back, save, send

from rocekit import cli
from rocekit.capture import open_capture
from rocekit.conform.values import read_sum
from rocekit.files.yaml import Value


def losses(count: int) -> Iterator[tuple[int, bytes]]:
    """Connections that lose a packet each, which makes a finding of each transfer."""
    now = 0
    for n in range(count):
        for psn in (0, 2, 1, 2):
            now += 1000
            yield now, send(psn, payload=bytes(64), ackreq=1, dest_qpn=0x100 + n)
            if psn == 2:
                yield now + 500, back(1, syndrome=0x60, msn=1, dest_qpn=0x100000 + n)
        yield now + 600, back(2, syndrome=0x1F, msn=3, dest_qpn=0x100000 + n)


def test_explaining_all_transfers_looks_at_all_findings_once(tmp_path: Path) -> None:
    def arguments(count: int) -> list[str]:
        return ["explain", "--all", str(save(tmp_path / f"{count}.pcap", losses(count)))]

    assert_command_linear("explanation/transfer.py", arguments)


def test_messages_that_do_not_end_are_not_looked_for_packet_by_packet(tmp_path: Path) -> None:
    def arguments(count: int) -> list[str]:
        path = tmp_path / f"{count}.yaml"
        path.write_text("- {op: RC_RDMA_WRITE_FIRST, dest_qpn: 17, payload: 4}\n" * count)
        return ["craft", str(path), "-w", str(tmp_path / "x.pcap")]

    assert_command_linear("craft/packet.py", arguments)


def otg(count: int) -> str:
    """A ring of so many ports with a host each."""
    lines = ["ports:", *(f"  - {{name: p{n}}}" for n in range(count)), "devices:"]
    for n in range(count):
        after = (n + 1) % count
        own, other = (f"10.1.{i >> 8}.{i & 255}" for i in (n, after))
        lines += [
            f"  - name: d{n}",
            f"    ethernets: [{{name: e{n}, connection: {{port_name: p{n}}},",
            f"      ipv4_addresses: [{{name: ip{n}, address: {own}}}]}}]",
            f"    rocev2: {{ipv4_interfaces: [{{ipv4_name: ip{n}, peers: [{{name: peer{n},",
            f"      destination_ip_address: {other}, qps: [{{qp_name: qp{n}}}]}}]}}]}}",
        ]
    lines += ["stateful_flows:", "  rocev2:", "    - tx_ports:"]
    for n in range(count):
        flow = f"{{name: f{n}, tx_endpoint: qp{n}, message_size: 1, message_size_unit: kb}}"
        rate = f"{{target_line_rate: {{value: 50, flows: [{flow}]}}}}"
        lines.append(f"        - {{port_name: p{n}, transmit_type: {rate}}}")
    return "\n".join(lines) + "\n"


def many_hosts(folder: Path, count: int) -> list[str]:
    path = folder / f"{count}.yaml"
    path.write_text(otg(count))
    return ["generate", str(folder / "x.pcapng"), "--otg", str(path), "--duration-ms", "0.001"]


def test_a_configuration_of_many_hosts_is_read_and_played_host_by_host(tmp_path: Path) -> None:
    assert_command_linear(
        "soft/traffic/otg.py", lambda count: many_hosts(tmp_path, count), FEW if MORE else 25
    )


def test_three_hundred_hosts_have_a_mac_address_each(tmp_path: Path) -> None:
    """The last byte alone does not tell them apart."""
    done = CliRunner().invoke(cli.rocekit, many_hosts(tmp_path, 300))
    assert done.exit_code == 0, done.output
    with open_capture(tmp_path / "x.pcapng") as capture:
        macs = {bytes(batch.buffer[at + 6 : at + 12]) for batch in capture for at in batch.offset.tolist()}
    assert len(macs) == 300


@pytest.mark.parametrize("number", ["0x" + "f" * 6000, "1" + ":59" * 6000, "9" * 6000])
def test_a_number_of_thousands_of_digits_is_refused_where_it_is_read(tmp_path: Path, number: str) -> None:
    """Python writes none of more than 4,300, and takes the square of its digits to read one to base 60."""
    path = tmp_path / "x.yaml"
    path.write_text(
        f"claim: x\nclause: y\nsteps:\n  - repeat: {{times: {number}, steps: [{{ignore: 1 ms}}]}}\n"
    )
    done = CliRunner().invoke(cli.rocekit, ["drill", str(path)])
    assert done.exit_code == 1
    assert done.stderr == f"rocekit: error: {path}: line 4: a whole number of more than 1,000 digits\n"


def test_a_drill_is_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = "claim: x\nclause: y\nsteps:\n  - ignore: 1 ms\n"
    with subprocess.Popen(["sh", "-c", f"printf '{text}' > {pipe}"]):
        done = subprocess.run(
            [sys.executable, "-m", "rocekit.cli", "drill", str(pipe)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert (done.returncode, done.stdout) == (0, "pipe: pass: x\n"), done.stderr


def test_of_a_line_of_a_hundred_thousand_characters_the_middle_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("- {op: " + "x" * 100_000 + "}\n")
    done = CliRunner().invoke(cli.rocekit, ["craft", str(path)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"rocekit: error: {path}: line 1: no opcode is called XXXX")
    assert done.stderr.endswith("XX; such as RC_SEND_ONLY\n")
    assert " characters left out) … XXXX" in done.stderr
    assert len(done.stderr) < 4_200


def test_a_sum_with_blanks_behind_it_is_read_term_by_term() -> None:
    class Text(str):
        strips = 0

        def rstrip(self, *_: Any) -> str:
            Text.strips += 1
            return super().rstrip()

    assert read_sum(Value(Text("1+" * 500 + "1 "), "x", 1), "psn").value({}) == 501
    assert Text.strips == 1
