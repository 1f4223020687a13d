"""``rocekit`` many times over for the price of one start: inside the lab an interpreter takes seconds.

:class:`Forks` starts one Python that has everything imported; each ``rocekit …`` is a fork of it, with its
own arguments, standard streams, environment and end. What runs is the command line's own ``main``, in a
process of its own that gets signals and leaves an exit status like any other:

    with Forks() as forks:
        side = forks.start("inject", "ping-sr", stdout=PIPE, stderr=PIPE)
        stdout, stderr = side.communicate(timeout=60)

A process that has loaded them all itself (:func:`load`) forks that Python too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import PIPE, STDOUT
from types import TracebackType
from typing import IO, Any, NoReturn

from rocekit.errors import RocekitError

PRELOADED = (
    *(
        "rocekit.commands.command_line",
        "rocekit.commands.inject",
        "rocekit.inject",
        "rocekit.soft.backend",
        "rocekit.verbs",
    ),
    *("rocekit.commands.inject_soft", "rocekit.commands.inject_text", "rocekit.scenarios.both_sides"),
    *(
        "rocekit.commands.record",
        "rocekit.record.recorder",
        "rocekit.record.build",
        "rocekit.journal.redaction",
    ),
    *("rocekit.record.capture", "rocekit.record.kernel_cm", "rocekit.commands.devices"),
    *("rocekit.machine.devices", "multiprocessing.popen_fork", "encodings.idna", "pyverbs"),
)
"""What the commands of these tests load; what is missing is loaded when it is wanted."""
_REQUEST_BYTES = 1 << 18
_loaded: set[str] = set()


def load(*names: str) -> None:
    """Load modules, those that are there, for all the processes that are forked from this one."""
    for name in names:
        try:
            if name == "pyverbs":
                from rocekit.verbs.loading import load as load_pyverbs  # it knows where it is

                load_pyverbs()
            else:
                importlib.import_module(name)
        except (ImportError, RocekitError):
            continue
    _loaded.update(names)
    # What is there now stays shared with every fork.
    gc.collect()
    gc.freeze()


def read_gid_tables_once() -> None:
    """Read the devices' GID tables for all that this process and its forks do from now on.

    rxe's have 1,024 entries, each a file: to read those of two devices takes an emulated machine seconds, and
    each end of a connection would do it again.
    """
    from rocekit.lab.net import families
    from rocekit.machine import port_files
    from rocekit.machine.gid_tables import filled_entries

    # IPv4's, IPv6's and the link-local one: the kernel enters them a moment after the address is set.
    wanted, end = 3 if "-6" in families() else 1, time.monotonic() + 10
    tables = {}
    for folder in map(str, Path("/sys/class/infiniband").glob("*/ports/*/gids")):
        tables[folder] = filled_entries(folder)
        while len(tables[folder]) < wanted and time.monotonic() < end:
            tables[folder] = filled_entries(folder)
    vars(port_files)["filled_entries"] = tables.__getitem__


def end_as_a_program(program: Callable[[], object]) -> NoReturn:
    """Run a program in a process that was forked, and end as its interpreter would."""
    status: int | str | None = 0
    try:
        program()
    except SystemExit as error:
        status = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or 120
    os._exit(status or 0)


class Run:
    """One ``rocekit …``; as much of ``subprocess.Popen`` as scripts inside the lab use. Pipes carry text."""

    def __init__(self, args: list[str], word: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.args = args
        self.stdout, self.stderr = stdout, stderr
        self.returncode: int | None = None
        self._word = word
        self._said = b""
        self._readers: list[_Reader | None] = []
        while b"\n" not in self._said and self._listen(None):
            pass
        first, _, self._said = self._said.partition(b"\n")
        self.pid = int(first)

    def _listen(self, seconds: float | None) -> bool:
        """Hear from the keeper: the process's number, then how it ended. False at the end of its words."""
        if not select.select([self._word], [], [], seconds)[0]:
            return True
        got = os.read(self._word, 64)
        self._said += got
        return bool(got)

    def poll(self) -> int | None:
        while self.returncode is None and select.select([self._word], [], [], 0)[0]:
            if not self._listen(0):
                # A keeper that was killed says nothing.
                self.returncode = int(self._said or -signal.SIGKILL)
                os.close(self._word)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            select.select([self._word], [], [], left)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read what it prints until it ends; may be called again after a ``TimeoutExpired``."""
        if not self._readers:
            self._readers = [None if pipe is None else _Reader(pipe) for pipe in (self.stdout, self.stderr)]
        self.wait(timeout)
        said = ["" if reader is None else reader.text() for reader in self._readers]
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Reader:
    """Empties a pipe, so that whoever writes to it can go on."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe = pipe
        self._text = ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._text = self._pipe.read()
        self._pipe.close()

    def text(self) -> str:
        self._thread.join()
        return self._text


class Forks:
    """A Python that has everything loaded, and the ``rocekit`` processes that it forks.

    Args:
        more: modules to load beside ``PRELOADED``.
    """

    def __init__(self, *more: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        with theirs:
            if _loaded.issuperset((*PRELOADED, *more)):
                self._server = _forked_server(ours, theirs)
            else:
                self._server = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno()), *more],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                ).pid

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Start no more; what runs goes on."""
        self._socket.close()
        os.waitpid(self._server, 0)

    def start(
        self,
        *arguments: str,
        stdin: int | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
    ) -> Run:
        """``rocekit ARGUMENTS``; the rest means what it does to ``subprocess.Popen``. Without ``stdin`` its
        input is empty.

        Raises:
            RuntimeError: the preloaded Python is gone.
        """
        ends: list[IO[str] | None] = [None, None]
        given = []
        opened = []
        for place, wanted in enumerate((stdout, stderr)):
            if wanted == PIPE:
                mine, its = os.pipe()
                ends[place] = os.fdopen(mine, errors="replace")
                opened.append(its)
                given.append(its)
            elif wanted == STDOUT:
                given.append(given[0])
            else:
                given.append(
                    place + 1 if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
                )
        word, its_word = os.pipe()
        opened.append(its_word)
        request = {
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
            "directory": str(cwd or Path.cwd()),
            "session": start_new_session,
        }
        read = [] if stdin is None else [stdin]
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*given, its_word, *read])
        except OSError as error:
            raise RuntimeError(f"the preloaded Python is gone: {error}") from None
        finally:
            for descriptor in opened:
                os.close(descriptor)
        return Run(["rocekit", *arguments], word, ends[0], ends[1])


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns in the fork only, which then is to become what was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers come and go by themselves
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for those who run
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not data:
            sys.exit(0)
        if os.fork() == 0:
            requests.close()
            _keep(*descriptors)
            request: dict[str, Any] = json.loads(data)
            return request
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(stdout: int, stderr: int, word: int, stdin: int | None = None) -> None:
    """Fork once more, and report the fork; returns in the fork, with its standard streams in place.

    Only its parent learns of a process's end, and the preloaded Python has other things to wait for.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.write(word, f"{pid}\n".encode())
        for descriptor in (stdout, stderr, 1, 2, *(() if stdin is None else (stdin,))):
            os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        os.write(word, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(word)
    if stdin is not None:
        os.dup2(stdin, 0)
        os.close(stdin)
        sys.stdin = os.fdopen(0, closefd=False)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)


def become(request: dict[str, Any]) -> None:
    """Take on the arguments, environment, folder and signals of the process that was asked for."""
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["rocekit", *request["arguments"]]
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = os.fdopen(descriptor, "w", buffering=1 if name == "stderr" else -1, closefd=False)
        stream.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]  # as the interpreter has it
        setattr(sys, name, stream)


def _forked_server(ours: socket.socket, theirs: socket.socket) -> int:
    """Fork a process that forks for each request; its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        for number in (signal.SIGTERM, signal.SIGHUP):  # not the handlers of whoever forks
            signal.signal(number, signal.SIG_DFL)
        end_as_a_program(lambda: _rocekit(theirs))
    return pid


def _rocekit(requests: socket.socket) -> None:
    """Fork for each request; the fork is the ``rocekit`` that was asked for."""
    become(serve(requests))
    from rocekit.cli import main as rocekit

    rocekit()


def main() -> None:
    load(*sys.argv[2:], *PRELOADED)
    _rocekit(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
