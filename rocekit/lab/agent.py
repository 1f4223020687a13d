"""The agent: sets the lab up where the devices are, runs the command, reports how it ended.

In place it is a child process of ``rocekit lab``; in a VM the guest runs it. It exchanges messages with its
starter over one control channel, each a line of JSON:

    agent → starter  {"say": "hello", "kernel": "..."}       it runs
                     {"say": "up"}                           the devices are there, the command starts
                     {"say": "failed", "message": "..."}     no lab; the last message
                     {"say": "ended", "returncode": n, "timed_out": false, "streams": [n, n]}
                     {"say": "handing over"}                 one more file of the output folder is there
                     {"say": "bye"}                          the output folder is complete
    starter → agent  {"do": "interrupt"}                     the user typed Ctrl-C

The agent ends everything when the channel ends: even a starter that was killed leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rocekit.lab.net import LabError, wired

TIMED_OUT = 124
"""The exit status of a command whose time limit passed, that of timeout(1)."""
GRACE_S = 3.0
"""How long a command may run after SIGTERM before it is killed."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the agent shall do. ``out`` is the folder that the starter reads afterwards."""

    command: tuple[str, ...]
    directory: str
    environment: Mapping[str, str]
    timeout_s: float
    netem: str | None
    netem_b: str | None
    out: str
    scratch: str | None = None
    """The command's output folder while it runs, in memory, if it is not ``out`` itself."""
    devices: int = 2

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        fields = json.loads(text)
        return cls(**{**fields, "command": tuple(fields["command"])})


def say(channel: int, **message: object) -> bool:
    """Send one message; whether the starter is still there."""
    return write_all(channel, json.dumps(message).encode() + b"\n")


def write_all(descriptor: int, data: bytes) -> bool:
    """Write to a starter; False if it is gone.

    Descriptors must be non-blocking: a port of the VM whose other end is gone would block a writer for ever.
    """
    view = memoryview(data)
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(1000)):
                return False
        except OSError:
            return False
    return True


@contextmanager
def _guest_port(name: str, flags: int) -> Iterator[int]:
    """A virtio-serial port of the VM by its name, without waiting for udev's links."""
    end = time.monotonic() + 10
    while True:
        for entry in Path("/sys/class/virtio-ports").glob("*"):
            if (entry / "name").read_text().strip() == name:
                descriptor = os.open(Path("/dev", entry.name), flags)
                try:
                    yield descriptor
                finally:
                    os.close(descriptor)
                return
        if time.monotonic() > end:
            raise LabError(f"the VM has no port named {name}")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended, and the bytes that it printed to each of its two streams."""

    returncode: int
    timed_out: bool
    starter_gone: bool
    printed: tuple[int, int]


def run_command(order: Order, channel: int, streams: Sequence[int]) -> Ending:
    """Run the command and pass on its output, until it ends, its time limit passes or the starter is gone.

    Raises:
        LabError: the order's directory does not exist here.
    """
    scratch = order.scratch or order.out
    if not os.access(order.directory, os.X_OK):
        raise LabError(f"the lab's VM does not have the current directory, {order.directory}: use another")
    adopt_orphans()
    environment = {**order.environment, "ROCEKIT_LAB": "1", "ROCEKIT_LAB_OUT": scratch}
    try:
        child = subprocess.Popen(
            order.command,
            cwd=order.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        status = 127 if isinstance(error, FileNotFoundError) else 126
        text = f"rocekit lab: {order.command[0]}: {error.strerror}\n".encode()
        write_all(streams[1], text)
        return Ending(status, False, False, (0, len(text)))
    assert child.stdout is not None
    assert child.stderr is not None
    routes = {child.stdout.fileno(): 0, child.stderr.fileno(): 1}
    printed = [0, 0]
    deadline = time.monotonic() + order.timeout_s
    kill_at: float | None = None
    drain_until: float | None = None
    timed_out = gone = False
    poll = select.poll()
    for descriptor in (*routes, channel):
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
    pending = b""
    while routes or child.poll() is None:
        now = time.monotonic()
        if child.poll() is not None:
            # A descendant may hold the pipes open for ever: after a moment the whole group is killed.
            drain_until = drain_until or now + GRACE_S
            if now > drain_until:
                break
        elif kill_at is not None and now > kill_at:
            _signal(child, signal.SIGKILL)
        elif kill_at is None and (gone or now > deadline):
            timed_out = not gone
            _signal(child, signal.SIGTERM)
            kill_at = now + GRACE_S
        for descriptor, event in poll.poll(50 if kill_at or drain_until else 200):
            if descriptor == channel:
                data = _read(channel) if event & select.POLLIN else b""
                if not data:
                    gone = True
                    poll.unregister(channel)
                    continue
                pending += data
                *lines, pending = pending.split(b"\n")
                for line in lines:
                    if line and json.loads(line).get("do") == "interrupt":
                        _signal(child, signal.SIGINT)
                continue
            data = os.read(descriptor, 65536)
            if not data:
                poll.unregister(descriptor)
                del routes[descriptor]
                continue
            printed[routes[descriptor]] += len(data)
            if not gone:
                gone = not write_all(streams[routes[descriptor]], data)
    _signal(child, signal.SIGKILL)
    code = child.wait()
    end_orphans()
    child.stdout.close()
    child.stderr.close()
    status = TIMED_OUT if timed_out else code if code >= 0 else 128 - code
    return Ending(status, timed_out, gone, (printed[0], printed[1]))


def _read(channel: int) -> bytes:
    try:
        return os.read(channel, 4096)
    except OSError:
        return b""


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the command's whole process group, which outlives its leader."""
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): processes that the command leaves behind become the agent's children, and can be found."""


def adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End daemons that left the command's process group: they would keep the devices busy."""
    for _ in range(100):
        try:
            children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
        except OSError:
            return
        if not children:
            return
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
                os.waitpid(int(child), 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def serve(order: Order, channel: int, streams: Sequence[int]) -> None:
    """Set up, run the command, hand over the output, undo the set-up."""
    for descriptor in (channel, *streams):
        os.set_blocking(descriptor, False)
    if not say(channel, say="hello", kernel=os.uname().release):
        return
    try:
        if order.scratch is not None:
            Path(order.scratch).mkdir(parents=True, exist_ok=True)
        # Only a VM has a scratch folder.
        throwaway = order.scratch is not None
        with wired(netem=order.netem, netem_b=order.netem_b, devices=order.devices, throwaway=throwaway):
            say(channel, say="up")
            end = run_command(order, channel, streams)
        if end.starter_gone:
            return
        printed = list(end.printed)
        say(channel, say="ended", returncode=end.returncode, timed_out=end.timed_out, streams=printed)
        if order.scratch is not None:
            _hand_over(Path(order.scratch), Path(order.out), lambda: say(channel, say="handing over"))
    except (LabError, OSError) as error:
        say(channel, say="failed", message=str(error))
        return
    say(channel, say="bye")


def _hand_over(scratch: Path, out: Path, tell: Callable[[], object]) -> None:
    """Copy the output folder; ``tell`` is called after each file, for a slow machine takes long."""

    def copy(source: str, target: str) -> None:
        # Times are kept; the owner is not: 9p may not let the guest change it.
        shutil.copy2(source, target, follow_symlinks=False)
        tell()

    shutil.copytree(scratch, out, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def main(arguments: Sequence[str]) -> int:
    """``agent FOLDER`` in a VM, ``agent FOLDER DESCRIPTOR`` in place: the order is FOLDER/order.json."""
    folder = Path(arguments[0])
    order = Order.from_json((folder / "order.json").read_text())
    # The set-up must be undone whatever ends the agent; the channel shows the starter's end. Not SIG_IGN,
    # which the command would inherit.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if len(arguments) > 1:
        serve(order, int(arguments[1]), (1, 2))
        return 0
    with (
        _guest_port("rocekit.control", os.O_RDWR) as channel,
        _guest_port("rocekit.stdout", os.O_WRONLY) as stdout,
        _guest_port("rocekit.stderr", os.O_WRONLY) as stderr,
    ):
        serve(order, channel, (stdout, stderr))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
