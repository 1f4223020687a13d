"""``rocekit extcap``: what Wireshark asks an external capture program, and its installation."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from rocekit.commands import load_numpy

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocekit.commands.extcap_words import Asked


def _of_wireshark(*names: str, **about: Any) -> Callable[[Any], Any]:
    return click.option(*names, hidden=True, **about)


@click.command()
@click.option("--install", is_flag=True, help="Put a launcher into Wireshark's personal extcap folder.")
@click.option("--uninstall", is_flag=True, help="Take the launcher away again.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="The extcap folder, if it is another one (Wireshark: Help, About, Folders).",
)
@_of_wireshark("--extcap-interfaces", "interfaces", is_flag=True)
@_of_wireshark("--extcap-version", "wireshark")
@_of_wireshark("--extcap-interface", "interface")
@_of_wireshark("--extcap-dlts", "dlts", is_flag=True)
@_of_wireshark("--extcap-config", "config", is_flag=True)
@_of_wireshark("--extcap-reload-option", "reload")
@_of_wireshark("--extcap-capture-filter", "capture_filter")
@_of_wireshark("--extcap-control-in")
@_of_wireshark("--extcap-control-out")
@_of_wireshark("--capture", is_flag=True)
@_of_wireshark("--fifo", type=click.Path(path_type=Path))
@_of_wireshark("--promiscuous", is_flag=True)
@_of_wireshark("--tunnels", is_flag=True)
@_of_wireshark("--no-story", is_flag=True)
@_of_wireshark("--snaplen", type=click.IntRange(64, 262144), default=65535)
@_of_wireshark("--remote-host")
@_of_wireshark("--remote-port", type=click.IntRange(1, 65535))
@_of_wireshark("--remote-username")
@_of_wireshark("--remote-interface")
@_of_wireshark("--remote-filter")
@_of_wireshark("--remote-sudo", is_flag=True)
@_of_wireshark("--sshkey", type=click.Path(path_type=Path))
@_of_wireshark("--ssh", "ssh", default="ssh")
def command(
    install: bool,
    uninstall: bool,
    folder: Path | None,
    interfaces: bool,
    dlts: bool,
    config: bool,
    capture: bool,
    **asked: Any,
) -> None:
    """Show live RoCE with its story in Wireshark: `--install`, then choose "RoCE with its story".

    Wireshark then lists each interface of this machine once more, and "RoCE over SSH" for those of others,
    where tcpdump captures. Each packet has comments: its transfer, place in its message, why it was sent
    again, and how transfers end, as far as is known when it comes.

    Wireshark calls this command with options of its own (extcap). tshark and dumpcap know the interfaces too.

    \b
    Example:
      rocekit extcap --install
      tshark -i rocekit-eth0 -T fields -e frame.number -e frame.comment
      rocekit extcap --uninstall
    """
    from rocekit.commands import extcap_words
    from rocekit.errors import RocekitError

    about = extcap_words.Asked(**{name: value for name, value in asked.items() if name in extcap_words.NAMES})
    if install or uninstall:
        place = extcap_words.launcher(folder)
        click.echo(extcap_words.install(place) if install else extcap_words.uninstall(place))
    elif interfaces:
        click.echo("\n".join(extcap_words.interfaces()))
    elif about.interface is None:
        raise click.UsageError("--install puts rocekit's interfaces into Wireshark; the rest is Wireshark's")
    elif dlts:
        click.echo("\n".join(extcap_words.dlts(about.interface)))
    elif config:
        click.echo("\n".join(extcap_words.config(about.interface)))
    elif capture:
        if about.fifo is None:
            raise click.UsageError("--capture needs --fifo")
        _capture(about)
    elif about.capture_filter is not None:
        # What is printed is what is wrong with the filter: Wireshark shows its field in red.
        from rocekit.machine.libpcap import compiled

        try:
            compiled(about.capture_filter)
        except RocekitError as error:
            click.echo(str(error))
            sys.exit(1)


def _capture(asked: Asked) -> None:
    """Capture until Wireshark closes the FIFO or ends this program."""
    load_numpy()
    from rocekit.commands.sandbox import give_up_root
    from rocekit.files.interface import LiveCapture
    from rocekit.live.commented import write_commented

    assert asked.fifo is not None
    name = asked.local_name
    if name is None:
        from rocekit.live.ssh_capture import captured_over_ssh

        remote = asked.remote()
        with captured_over_ssh(remote) as batches, _quietly(None), asked.fifo.open("wb") as fifo:
            named = f"{remote.host} {remote.interface}"
            write_commented(batches, fifo, interface_name=named, stories=not asked.no_story)
        return
    with LiveCapture(
        name,
        promiscuous=asked.promiscuous,
        tunnels=asked.tunnels,
        snaplen=asked.snaplen,
        capture_filter=asked.capture_filter,
    ) as source:
        give_up_root()
        with _quietly(source.stop), asked.fifo.open("wb") as fifo:
            write_commented(
                source, fifo, linktype=source.linktype, interface_name=name, stories=not asked.no_story
            )


@contextmanager
def _quietly(stop: Callable[[], None] | None) -> Iterator[None]:
    """Wireshark ends a capture by a signal, or closes the FIFO: neither is an error, nor a line."""

    class Ended(BaseException):
        pass

    def end(_number: int, _frame: FrameType | None) -> None:
        if stop is None:
            raise Ended
        stop()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (BrokenPipeError, Ended):
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
