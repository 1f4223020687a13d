"""rocekit's interfaces in Wireshark: tshark captures them, with the story of packets as comments."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from places import PCAPS
from test_trace import frames, live

import rocekit
from rocekit.capture import open_capture
from rocekit.cli import rocekit as cli
from rocekit.commands.extcap_words import OVER_SSH
from rocekit.errors import RocekitError
from rocekit.explanation.packet_words import describe
from rocekit.live.frame_stories import FrameStories

LOSS = PCAPS / "ping-write-loss-behind.pcap"

#: Captures by tshark from va, while the frames are sent into vb.
CAPTURE = """
os.environ["XDG_CONFIG_HOME"] = os.getcwd()
subprocess.run([sys.executable, "-m", "rocekit", "extcap", "--install"], check=True, stdout=sys.stderr)

def listed():
    return subprocess.run(["tshark", "-D"], capture_output=True, text=True).stdout

def shark(interface, *more):
    out, err = open("out", "w+b"), open("err", "w+b")
    command = ["tshark", "-n", "-i", interface, "-c", str(len(parts[0])), "-w", "got.pcapng", *more]
    return subprocess.Popen(command, stdout=out, stderr=err)

def settled(process):
    # Whether one packet socket has run on va for a while: libpcap opens one of its own to compile a filter.
    number, since = socket.if_nametoindex("va"), {}
    def same():
        with open("/proc/self/net/packet") as table:
            rows = [line.split() for line in table.readlines()[1:]]
        running = [row[8] for row in rows if int(row[4]) == number and row[5] == "1"]
        for inode in running:
            since.setdefault(inode, time.monotonic())
        return any(time.monotonic() - since[inode] > 0.5 for inode in running) or process.poll() is not None
    until(same)

def comments():
    command = ["tshark", "-n", "-r", "got.pcapng", "-T", "fields", "-e", "frame.number"]
    command += ["-e", "frame.comment"]
    return subprocess.run(command, capture_output=True, text=True).stdout

def captured(shark):
    settled(shark)
    send()
    try:
        shark.wait(60)
    except subprocess.TimeoutExpired:
        shark.kill()
    print(json.dumps({"comments": comments(), "err": open("err").read(), "listed": listed()}))
"""


def told_by(path: Path, batch: int) -> dict[int, list[str]]:
    """What is said live of each frame, as batches of so many come."""
    stories = FrameStories()
    told: dict[int, list[str]] = {}
    with open_capture(path, batch_frames=batch) as reader:
        for frames_ in reader:
            stories.take(frames_)
            stories.rest()
            told |= dict(zip(frames_.number.tolist(), stories.of(frames_), strict=True))
    return told


def subject(words: str) -> tuple[str | None, str | None]:
    """The transfer and the PSN that words are about."""
    transfer, psn = re.search(r"transfer (\d+)", words), re.search(r"PSN (\d+)", words)
    return transfer and transfer[1], psn and psn[1]


@pytest.mark.parametrize("batch", [1, 7, 65536])
@pytest.mark.parametrize(
    "name",
    [
        "ping-write-loss-behind.pcap",
        "ping-read-response-loss.pcap",
        "blast-sr-loss.pcap",
        "mesh-loss.pcap",
        "ud-clean.pcap",
        "ping-sr-duplication.pcap",
    ],
)
def test_what_is_said_live_is_never_other_than_what_the_whole_capture_shows(name: str, batch: int) -> None:
    """Live, less is known; but a transfer, a PSN and a repeat that are named are those of `annotate`."""
    analysis = rocekit.analyze(PCAPS / name, journals=())
    stories = rocekit.packet_stories(analysis)
    later = dict(zip(stories.packets.frame.tolist(), describe(stories), strict=True))
    told = told_by(PCAPS / name, batch)
    named = 0
    for frame, words in later.items():
        now = told[frame][0] if told[frame] else ""
        live_transfer, live_psn = subject(now)
        transfer, psn = subject(words)
        if live_transfer is not None:
            assert (live_transfer, live_psn) == (transfer, psn), frame
            named += 1
        if " again, " in now.replace(", sent again:", ""):
            assert " again " in words or ", the same " in words, (frame, now, words)
    assert named >= len(later) * (0.95 if batch == 65536 else 0.7) - 10


def test_a_packet_sent_again_says_so_and_why_and_a_transfer_says_how_it_ended() -> None:
    told = told_by(LOSS, 1)
    assert told[25][0].startswith("NAK PSN sequence error: expects PSN 16688311; transfer 2")
    assert "PSN 16688311 again, after the NAK" in told[26][0]
    assert "again" not in told[28][0]
    assert told[33][1].startswith("transfer 2: WRITE of 8,192 bytes in ")
    assert told[33][1].endswith("2 packets sent again, 1 NAK")


def test_words_are_kept_only_until_they_are_asked_for() -> None:
    """A capture of days must not grow: nothing stays of a frame that was written."""
    stories = FrameStories()
    with open_capture(LOSS) as reader:
        for batch in reader:
            stories.take(batch)
            stories.rest()
            assert any(stories.of(batch))
            assert not any(stories.of(batch))
    assert stories._tracker.transfers == []


def test_tshark_captures_an_interface_with_the_story_of_its_packets(
    root: None, tshark: str, tmp_path: Path
) -> None:
    told = live(tmp_path, CAPTURE + 'captured(shark("rocekit-va"))\n', frames(LOSS))
    assert "rocekit-va (RoCE with its story: va)" in told["listed"]
    assert f"{OVER_SSH} (RoCE with its story, over SSH)" in told["listed"]
    lines = told["comments"].splitlines()
    assert len(lines) == len(frames(LOSS)), told["err"]
    again = [line for line in lines if " again, after the NAK; WRITE packet" in line]
    assert [line.split("\t")[0] for line in again][:2] == ["26", "27"]
    assert sum("transfer 2: WRITE of 8,192 bytes" in line for line in lines) == 1


def test_tsharks_capture_filter_reaches_the_kernel(root: None, tshark: str, tmp_path: Path) -> None:
    script = CAPTURE.replace("str(len(parts[0]))", '"20"') + (
        'captured(shark("rocekit-va", "-f", "udp and src host 10.9.0.2"))\n'
    )
    told = live(tmp_path, script, frames(LOSS))
    assert len(told["comments"].splitlines()) == 20, told["err"]
    with open_capture(tmp_path / "got.pcapng") as reader:
        sources = {frame[26:30] for batch in reader for frame in batch.frames()}
    assert sources == {bytes([10, 9, 0, 2])}


SSHD = """
subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "key"], check=True)
subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "host"], check=True)
os.makedirs("/run/sshd", exist_ok=True)
here = os.getcwd()
with open("sshd_config", "w") as config:
    config.write(f"Port 2222\\nListenAddress 127.0.0.1\\nHostKey {here}/host\\nPidFile none\\n"
                 f"AuthorizedKeysFile {here}/key.pub\\nStrictModes no\\nPermitRootLogin yes\\nUsePAM no\\n")
daemon = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", "sshd_config"], stderr=open("sshd", "w"))

def listening():
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 2222)) == 0

until(listening)
with open("ssh", "w") as wrapper:
    wrapper.write(f"#!/bin/sh\\nexec ssh -F none -o UserKnownHostsFile={here}/known "
                  "-o StrictHostKeyChecking=accept-new \\"$@\\"\\n")
os.chmod("ssh", 0o755)
base = [sys.executable, "-m", "rocekit", "extcap", "--capture", "--extcap-interface", "%s", "--ssh", "./ssh",
        "--remote-host", "127.0.0.1", "--remote-port", "2222", "--remote-username", "root"]
"""


def test_an_interface_of_another_machine_is_captured_over_ssh(
    root: None, tshark: str, tmp_path: Path
) -> None:
    """A real sshd on loopback, tcpdump behind it."""
    for program in ("sshd", "ssh-keygen", "ssh", "tcpdump"):
        if shutil.which(program, path="/usr/sbin:/usr/bin:/bin") is None:
            pytest.skip(f"no {program}")
    script = (
        "import atexit\n"
        + CAPTURE
        + SSHD % OVER_SSH
        + """
os.mkfifo("fifo")
asked = [*base, "--sshkey", "key", "--remote-interface", "va", "--fifo", "fifo"]
asked += ["--extcap-capture-filter", "host 10.9.0.1"]
extcap = subprocess.Popen(asked, stderr=open("err", "w"))
atexit.register(daemon.terminate)
atexit.register(extcap.terminate)
reader = subprocess.Popen(["tshark", "-n", "-i", "fifo", "-c", str(len(parts[0])), "-w", "got.pcapng"],
                          stderr=subprocess.DEVNULL)
settled(extcap)
send()
try:
    reader.wait(60)
except subprocess.TimeoutExpired:
    reader.kill()
extcap.send_signal(signal.SIGTERM)
status = extcap.wait(60)
until(lambda: not capturing())  # nothing is left running there, though no packet comes any more
wrong = subprocess.run([*base, "--sshkey", "host", "--remote-interface", "va", "--fifo", os.devnull],
                       capture_output=True, text=True)
none = subprocess.run([*base, "--sshkey", "key", "--remote-interface", "nosuch", "--fifo", os.devnull],
                      capture_output=True, text=True)
daemon.terminate()
print(json.dumps({"comments": comments(), "err": open("err").read(), "status": status,
                  "wrong": [wrong.returncode, wrong.stderr], "none": [none.returncode, none.stderr]}))
"""
    )
    told = live(tmp_path, script, frames(LOSS))
    lines = told["comments"].splitlines()
    assert len(lines) == len(frames(LOSS)), told["err"]
    assert sum(" again, after the NAK; WRITE packet" in line for line in lines) > 4
    assert (told["status"], told["err"]) == (0, "")
    status, words = told["wrong"]
    assert status == 1
    assert words.count("\n") == 1
    assert "Permission denied" in words
    status, words = told["none"]
    assert status == 1
    assert words.count("\n") == 1
    assert "nosuch" in words


def test_the_launcher_is_installed_and_removed_and_another_program_stays(tmp_path: Path) -> None:
    run = CliRunner().invoke
    folder = tmp_path / "extcap"
    assert run(cli, ["extcap", "--install", "--folder", str(folder)]).exit_code == 0
    launcher = folder / "rocekit"
    assert launcher.stat().st_mode & 0o111
    assert run(cli, ["extcap", "--install", "--folder", str(folder)]).exit_code == 0
    assert run(cli, ["extcap", "--uninstall", "--folder", str(folder)]).exit_code == 0
    assert not launcher.exists()
    again = run(cli, ["extcap", "--uninstall", "--folder", str(folder)])
    assert (again.exit_code, "nothing is installed" in again.output) == (1, True)
    launcher.write_text("#!/bin/sh\necho mine\n")
    for option in ("--install", "--uninstall"):
        refused = run(cli, ["extcap", option, "--folder", str(folder)])
        assert refused.exit_code == 1
        assert launcher.read_text().endswith("echo mine\n")


def test_a_wrong_capture_filter_is_said_on_standard_output_as_wireshark_reads_it() -> None:
    from rocekit.machine.libpcap import compiled

    try:
        compiled("ip")
    except RocekitError as error:
        pytest.skip(str(error))
    run = CliRunner().invoke
    ask = ["extcap", "--extcap-interface", "rocekit-lo", "--extcap-capture-filter"]
    good = run(cli, [*ask, "udp port 4791"])
    assert (good.exit_code, good.output) == (0, "")
    bad = run(cli, [*ask, "udp prt 4791"])
    assert bad.exit_code == 1
    assert "udp prt 4791" in bad.output


def test_a_traces_capture_filter_passes_what_tcpdump_passes(root: None, tmp_path: Path) -> None:
    """Also behind a VLAN tag, which the kernel takes out of the frame before a filter sees it."""
    if shutil.which("tcpdump") is None:
        pytest.skip("no tcpdump")
    plain = frames(LOSS)
    tagged = [frame[:12] + bytes.fromhex("81000007") + frame[12:] for frame in plain]
    script = """
    words = ["dst host 10.9.0.2 and ip[1] & 3 == 0", "vlan 7 and dst host 10.9.0.2", "udp and less 120"]
    passed = []
    for number, expression in enumerate(words):
        dump = subprocess.Popen(["tcpdump", "-i", "va", "-w", os.devnull, expression],
                                stderr=subprocess.PIPE, text=True)
        until(capturing)
        written = f"trace{number}.pcapng"
        traced = trace("-f", expression, "--write", written, "--quiet")
        # It is made when its socket is bound: a socket seen before is libpcap's, which compiles the filter.
        until(lambda: os.path.exists(written))
        send()
        # Then it listens to signals, too.
        until(lambda: os.path.getsize(written) > 300)
        traced.send_signal(signal.SIGINT)
        traced.wait(100)
        dump.send_signal(signal.SIGINT)
        said = dump.communicate(timeout=240)[1]
        passed.append(int(re.search(r"(\\d+) packets received by filter", said)[1]))
    print(json.dumps({"passed": passed}))
    """
    pairs = [frame for pair in zip(plain, tagged, strict=True) for frame in pair]
    told = live(tmp_path, "import re\n" + textwrap.dedent(script), pairs)
    ours = [frames(tmp_path / f"trace{number}.pcapng") for number in range(3)]
    # The kernel counts what tcpdump's filter passes, also what tcpdump does not read any more.
    assert [len(found) for found in ours] == told["passed"]
    assert all(0 < len(found) < len(pairs) for found in ours)
    to_2 = bytes([10, 9, 0, 2])
    assert ours[1] == [frame for frame in tagged if frame[34:38] == to_2]
