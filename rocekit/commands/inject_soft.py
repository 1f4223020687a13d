"""What ``rocekit inject`` has for soft devices only: their faults, and where their packets go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rocekit.soft.wires.faults import Fault

_SOFT_ONLY = ("capture", "fault", "faults", "seed")


def refuse_for_verbs(given: dict[str, Any]) -> None:
    """Refuse the options that a device of the kernel's has no use for."""
    for name in _SOFT_ONLY:
        if given[name] not in (None, ()):
            raise click.UsageError(f"--{name} is for --backend soft; other packets: rocekit trace.")


def check_place(given: dict[str, Any]) -> None:
    """See that -i, -x and -d name what soft devices have.

    Raises:
        VerbsError: they have one port and one GID, and two on one real interface do not reach each other.
    """
    from rocekit.errors import VerbsError
    from rocekit.soft.backend import check_gid

    check_gid(given["ib_port"], given["gid_index"])
    device = given["device"]
    if device is None and given["server_dev"] is not None:
        raise click.UsageError("--server-dev: the client's interface is missing, -d; or leave out both.")
    if given["both"] and device is not None and given["server_dev"] in (None, device):
        from rocekit.machine.iproute import leads_away

        if leads_away(device):
            raise VerbsError(
                f"what one side sends on {device} leaves this machine and never reaches the other: name the "
                "server's interface with --server-dev, as of a veth pair, or leave out -d"
            )


def faults_of(given: dict[str, Any]) -> list[Fault]:
    """Those of each --fault, then those of --faults.

    Raises:
        ScenarioError: one that is none, or a file that cannot be read.
    """
    from rocekit.soft.wires.fault_file import fault_from_words, read_faults

    faults = [fault_from_words(words) for words in given["fault"]]
    if given["faults"] is not None:
        faults += read_faults(given["faults"])
    return faults


def check_files(given: dict[str, Any]) -> None:
    """See that packets and journal have files of their own: standard output has what is told.

    Raises:
        RocekitError: they are the same.
    """
    from rocekit.files.outputs import check_apart

    for name in ("capture", "journal"):
        if str(given[name]) == "-":
            raise click.UsageError(f"--{name}: standard output has the result; name a file.")
    check_apart(given["capture"], given["journal"])
