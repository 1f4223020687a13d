"""The soft counterparts of rping, the ping-pongs and perftest understand each other in both roles.

With the programs that nobody here wrote they talk in test_soft_lab.py.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

from rocekit.soft.peers.perftest import TESTS

CONVERSATIONS = [
    ("rping", "-s", "5000"),
    *((f"{transport}_pingpong", "-s", "1000") for transport in ("rc", "uc", "ud")),
    *((test, "-s", "3000", "-R") for test in TESTS),
    ("read_bw", "-s", "3000"),
    ("send_bw", "-s", "3000", "-c", "UC"),
    ("send_bw", "-s", "1000", "-c", "UD"),
]


@pytest.mark.parametrize("words", CONVERSATIONS, ids=" ".join)
def test_a_server_and_a_client_come_to_a_good_end(words: tuple[str, ...]) -> None:
    program = [sys.executable, "-m", "rocekit.soft.peers", *words, "-n", "20", "--timeout", "30"]
    with socket.create_server(("", 0)) as free:
        port = ["-p", str(free.getsockname()[1])]
    server = subprocess.Popen([*program, *port], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    first = server.stdout.readline()
    host = first.split()[-1]
    client = subprocess.run([*program, *port, host], capture_output=True, text=True, check=False)
    said = first + server.stdout.read()
    assert server.wait(60) == 0, said
    assert client.returncode == 0, client.stderr
    assert re.search(r"^20 rounds", client.stdout, re.MULTILINE)
