"""The options of ``rocekit inject`` for soft devices: faults, and where packets go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rocekit.soft.wires.faults import Fault

_SOFT_ONLY = ("capture", "fault", "faults", "seed")


def reject_for_verbs(given: dict[str, Any]) -> None:
    """Reject options that are for soft devices only."""
    for name in _SOFT_ONLY:
        if given[name] not in (None, ()):
            raise click.UsageError(
                f"--{name} is for --backend soft; to see packets of a device: rocekit trace."
            )


def check_place(given: dict[str, Any]) -> None:
    """Check -i, -x and -d for soft devices.

    Raises:
        VerbsError: soft devices have one port and one GID, and two on one real interface cannot reach each
            other.
    """
    from rocekit.errors import VerbsError
    from rocekit.soft.backend import check_gid

    check_gid(given["ib_port"], given["gid_index"])
    device = given["device"]
    if device is None and given["server_dev"] is not None:
        raise click.UsageError("--server-dev needs -d, the interface of the client; or leave out both.")
    if given["both"] and device is not None and given["server_dev"] in (None, device):
        from rocekit.machine.iproute import leads_away

        if leads_away(device):
            raise VerbsError(
                f"packets sent on {device} leave this machine and never reach the other side: give the "
                "server's interface with --server-dev (such as the other end of a veth pair), or leave out -d"
            )


def faults_of(given: dict[str, Any]) -> list[Fault]:
    """The faults of each --fault, then those of --faults.

    Raises:
        ScenarioError: not a fault, or a file that cannot be read.
    """
    from rocekit.soft.wires.fault_file import fault_from_words, read_faults

    faults = [fault_from_words(words) for words in given["fault"]]
    if given["faults"] is not None:
        faults += read_faults(given["faults"])
    return faults


def check_files(given: dict[str, Any]) -> None:
    """Check that packets and journal go to different files, and not to standard output.

    Raises:
        RocekitError: they are the same.
    """
    from rocekit.files.outputs import check_apart, check_output

    for name in ("capture", "journal"):
        if str(given[name]) == "-":
            raise click.UsageError(f"--{name}: standard output has the result; name a file.")
    check_apart(given["capture"], given["journal"])
    read = [] if given["faults"] is None else [given["faults"]]
    for name in ("capture", "journal"):
        if given[name] is not None:
            check_output(given[name], read)
