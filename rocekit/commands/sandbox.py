"""Which rights each command keeps: what it reads and writes after root is given up, and what needs more.

Reading commands give up root before they open a file; live ones once their packet socket is open.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rocekit.commands import load_numpy

if TYPE_CHECKING:
    from rocekit.machine.rights import User

OWN_PROCESS: Final = "this process is the command's own"
"""The context's ``obj`` where the command line was started as a program: its rights are nobody else's."""
_SANDBOX: Final = "rocekit.sandbox"
_USER: Final = "rocekit.user"


ALWAYS: Final = "always"


class Files(NamedTuple):
    """The parameters of a command that name its files, and what else it needs.

    Attributes:
        reads, writes: parameters.
        live: a parameter; where it is given, the command gives up root itself, when its socket is open.
            ``ALWAYS``: it always does so itself.
        temporary: whether it always makes temporary files. (From a pipe every command may.)
        homes: folders in the user's home, of programs and libraries that it uses.
    """

    reads: tuple[str, ...] = ("files", "journal", "rules")
    writes: tuple[str, ...] = ()
    live: str | None = None
    temporary: bool = False
    homes: tuple[str, ...] = ()


FILES: Final[dict[str, Files]] = {
    "analyze": Files(),
    "annotate": Files(writes=("files", "out", "sidecar")),
    "check": Files(writes=("outs",)),
    "craft": Files(reads=("file",), writes=("out",), live="interface"),
    "decode": Files(reads=("file",)),
    "explain": Files(),
    "export": Files(writes=("files", "out")),
    "extcap": Files(reads=(), writes=("fifo",), live=ALWAYS),
    "generate": Files(reads=("otg",), writes=("file", "out", "journal")),
    "plot": Files(writes=("output",), temporary=True, homes=(".config/matplotlib", ".cache/matplotlib")),
    "replay": Files(reads=("file",), writes=("out",), live="interface"),
    "report": Files(writes=("output",)),
    "rules": Files(),
    "slice": Files(writes=("files", "out")),
    "stats": Files(),
    "top": Files(reads=(), live=ALWAYS),
    "topology": Files(),
    "trace": Files(reads=("journal",), writes=("write",), live=ALWAYS),
    "verify": Files(reads=("file",), temporary=True, homes=(".config/wireshark", ".wireshark")),
}
"""The commands that give up root."""

KEEPS: Final[dict[str, str]] = {
    "completion": "prints a script, and reads nothing",
    "conform": "its packets are sent and its devices opened for each drill anew",
    "conform-agent": "opens a device for each drill that it is asked for",
    "counters": "asks drivers (ethtool, tc); one that only reads journals gives up root",
    "devices": "asks drivers, and reads no file of others",
    "doctor": "says what its caller may do",
    "drill": "as conform",
    "fleet": "becomes the caller of sudo before its workers start, which open what they find",
    "inject": "opens devices and asks namespaces while it runs; with soft devices and no -d it gives up root",
    "lab": "runs a program in a machine, or as root in namespaces",
    "record": "its program keeps its caller's rights; root is given up before packets are explained",
}
"""The commands that keep the rights of their caller, and why."""


def sandbox_options(command: Any) -> Any:
    """``--sandbox/--no-sandbox`` and ``--user``, kept for :func:`give_up_root`."""
    command = click.option(
        "--user",
        metavar="NAME",
        expose_value=False,
        callback=_keep(_USER),
        help="As root: become this user once what needs root is open.  [default: the caller of sudo]",
    )(command)
    return click.option(
        "--sandbox/--no-sandbox",
        default=None,
        expose_value=False,
        callback=_keep(_SANDBOX),
        help="Give up root and capabilities once they are not needed, and all files but the command's own.  "
        "[default: as root]",
    )(command)


def _keep(key: str) -> Any:
    def keep(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.meta[key] = value

    return keep


def sandboxed(name: str, command: click.Command) -> None:
    """Have a command give up root before anything else, if its file names are all that it needs."""
    files = FILES.get(name)
    if files is None or command.callback is None:
        return
    inside = command.callback

    @functools.wraps(inside)
    def callback(*arguments: Any, **given: Any) -> Any:
        ctx = click.get_current_context()
        if files.live != ALWAYS and (files.live is None or ctx.params.get(files.live) is None):
            give_up_root()
        return inside(*arguments, **given)

    command.callback = callback


def give_up_root(reads: Iterable[str | Path] | None = None, writes: Iterable[str | Path] = ()) -> None:
    """Give up what the command that runs does not need any more.

    Users without root give up capabilities only. A program that calls rocekit keeps its rights: nothing is
    done in a process that is not the command's own.

    Args:
        reads, writes: what is still read and written, if not what ``FILES`` says.
    """
    ctx = click.get_current_context()
    wanted = ctx.meta.get(_SANDBOX)
    files = Files() if reads is not None else FILES.get(ctx.info_name or "")
    if ctx.find_root().obj is not OWN_PROCESS or files is None or sys.platform != "linux":
        return
    root = os.geteuid() == 0
    name = ctx.meta.get(_USER)
    if name is not None and not root:
        raise click.UsageError("--user is for root: others stay who they are", ctx)
    if wanted is False or not (root or wanted or _has_capabilities()):
        return
    from rocekit.errors import RocekitError
    from rocekit.machine.landlock import confine
    from rocekit.machine.rights import calling_user, give_up

    user = _named(name, ctx) if name is not None else calling_user() if root else None
    read = _read(ctx, files) if reads is None else list(map(str, reads))
    written = _written(ctx, files) if reads is None else list(map(str, writes))
    try:
        give_up([*read, *map(_folder, read), *_program()], written, user=user, insist=name is not None)
    except OSError as error:
        words = f"this process may not become that user: {error.strerror}"
        raise RocekitError(f"--user {name}: {words}") from None
    if wanted is None and not root:
        return
    remote = any("://" in path for path in read)
    own = [*read, *_program(), *_programs()]
    if files.live:
        own += map(_folder, read)  # journals of programs that still run: they may be replaced
    if remote or ctx.params.get("rules"):  # credentials; Python that may read what its user likes
        own = ["/"]
    made: list[str | Path] = [*_made_in(written), *_homes(files)]
    if files.temporary or remote or ctx.params.get("triggers") or _spools(read):
        made.append(_temporary())
    confine(own, made, lists=map(_folder, read), network=remote)


def become_caller(
    reads: Iterable[str | Path] = (), writes: Iterable[str | Path] = (), *, or_stay: bool = False
) -> None:
    """Give up root as :func:`give_up_root` does, but not files and connections: programs are still started.

    Args:
        or_stay: keep all rights where there is no user to become, or one who may not do what is needed:
            processes that are started have no rights to files of others but root's.
    """
    ctx = click.get_current_context()
    name = ctx.meta.get(_USER)
    ours = ctx.find_root().obj is OWN_PROCESS and sys.platform == "linux"
    if not ours or os.geteuid() != 0 or ctx.meta.get(_SANDBOX) is False:
        return
    from rocekit.errors import RocekitError
    from rocekit.machine.rights import calling_user, give_up, may

    user = _named(name, ctx) if name is not None else calling_user()
    read = [*map(str, reads), *_program()]
    written = list(map(str, writes))
    if or_stay and (user is None or (name is None and not may(user, read, written))):
        return
    try:
        give_up(read, written, user=user, insist=name is not None)
    except OSError as error:
        words = f"this process may not become that user: {error.strerror}"
        raise RocekitError(f"--user {name}: {words}") from None


def _has_capabilities() -> bool:
    """Whether this process has, or may have, any capability."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
            return any(line.startswith("CapPrm:") and int(line[7:], 16) for line in status)
    except OSError:
        return False


def _homes(files: Files) -> list[Path]:
    """The folders of libraries in the user's home, which they make themselves where they are not there."""
    home = os.environ.get("HOME")
    found = [Path(home, folder) for folder in files.homes] if home else []
    for folder in found:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    return found


def _named(name: str, ctx: click.Context) -> User:
    from rocekit.machine.rights import named_user

    try:
        return named_user(name)
    except KeyError:
        raise click.BadParameter(f"there is no user {name!r}", ctx, param_hint="--user") from None


def _paths(ctx: click.Context, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = ctx.params.get(name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Path):
                yield str(one)


def _read(ctx: click.Context, files: Files) -> list[str]:
    """The files that are read, and what is found beside them: journals."""
    named = [path for path in _paths(ctx, files.reads) if path != "-"]
    found = []
    for path in [one for name in named for one in _meant(name)]:
        found.append(path)
        if "://" in path or not stat.S_ISREG(_mode(path)):
            continue
        folder, name = os.path.split(path)
        # A journal may also be named as all files of a rotation are.
        own = name.partition(".")[0].partition("_")[0]
        try:
            with os.scandir(folder or ".") as entries:
                journals = [e.path for e in entries if e.name.startswith(own) and ".jsonl" in e.name]
        except OSError:
            continue
        found += [folder or ".", *journals]
    return list(dict.fromkeys(found))


def _meant(name: str) -> list[str]:
    """The files that a name stands for: of a rotation several."""
    if not name.startswith(("rotated:", "part:")):
        return [name]
    load_numpy()  # what follows loads it
    from rocekit.errors import CaptureError
    from rocekit.files.joined import joined_files, whole_name

    try:
        return joined_files(whole_name(name))
    except CaptureError:
        return []  # the command says what is wrong


def _written(ctx: click.Context, files: Files) -> list[str]:
    """The files that are written. Where one list has both, the last is the output, if no other is named."""
    named = list(_paths(ctx, (name for name in files.writes if name != "files")))
    if "files" in files.writes and ctx.params.get("out") is None:
        both = list(_paths(ctx, ["files"]))
        if ctx.info_name == "export":  # named like the first capture, in the current folder
            named += [f"{os.path.split(path)[1]}-" for path in both[:1]]
        else:
            named += both[-1:]
    return [path for path in dict.fromkeys(named) if path != "-" and "://" not in path]


def _folder(path: str) -> str:
    return os.path.split(path)[0] or "."


def _made_in(paths: Iterable[str]) -> Iterator[str]:
    """What must be writable for files to be made and replaced: their folders, behind links too."""
    for path in paths:
        place = os.path.realpath(path)
        yield place
        kind = _mode(place)
        if kind and not stat.S_ISREG(kind):
            continue  # in a folder all is made in itself; beside a device nothing is made
        folder = _folder(place)
        while not _mode(folder):
            folder = _folder(folder)
        yield folder


def _program() -> list[str]:
    """Where Python and rocekit are: modules are loaded while a command runs."""
    import rocekit

    own = [_folder(path) for path in rocekit.__path__]
    interpreter = _folder(os.path.realpath(sys.executable))
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, interpreter, *own, *rocekit.__path__, *sys.path]
    return [path for path in dict.fromkeys(places) if path]


def _programs() -> list[str]:
    """Where programs and libraries may be that a command starts: tshark, tc, a pager."""
    every = [os.environ.get(name, "").split(os.pathsep) for name in ("PATH", "LD_LIBRARY_PATH")]
    return [path for paths in [*every, _pager()] for path in paths if path]


def _pager() -> list[str]:
    """The user's pager, which may be anywhere."""
    if not sys.stdout.isatty():
        return []
    import shutil

    from rocekit.commands.screen import pager

    found = shutil.which(words[0]) if (words := pager()) else None
    return [] if found is None else [found, os.path.realpath(found)]


def _spools(reads: Iterable[str]) -> bool:
    """Whether a capture may come through a pipe: what is needed twice then goes to a temporary file."""
    paths = list(reads)
    return not paths or any(stat.S_ISFIFO(_mode(path)) or stat.S_ISCHR(_mode(path)) for path in paths)


def _temporary() -> str:
    import tempfile

    return tempfile.gettempdir()


def _mode(path: str) -> int:
    """What a file is; 0: it is not there."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116  also where the folder may not be looked into
    except OSError:
        return 0
