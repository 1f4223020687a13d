"""tshark: where it is, its name for each field, and its values for each frame.

pyshark finds tshark (its configuration may name one). tshark itself is then run, for all fields in one pass
over the file: pyshark gives one packet object at a time, some thousand a second at most; ``tshark -T fields``
is ten times as fast and gives the same values.

Dissectors that guess at payloads are off: they would take a small SEND for a damaged message of a storage
protocol. So is the reassembly of IP fragments: here each frame counts.
"""

from __future__ import annotations

import functools
import io
import ipaddress
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from rocekit.errors import CaptureError
from rocekit.packets.field_words import TSHARK

_DISABLED: Final = ("rpcordma", "nvme-rdma", "smb_direct", "iser", "tftp")
_PREFERENCES: Final = ("ip.defragment:FALSE", "ipv6.defragment:FALSE")
HOW_TO_GET: Final = "install it with: apt-get install tshark"

Value = int | str | bytes | None
Answers = Callable[[str], str]


def number(text: str) -> Value:
    if text in ("True", "False"):  # booleans since Wireshark 4.2
        return int(text == "True")
    return int(text, 0)


def _hexadecimal(text: str) -> Value:
    return int(text.replace(":", ""), 16)


def _bytes(text: str) -> Value:
    return bytes.fromhex(text.replace(":", ""))


def _address(text: str) -> Value:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _time(text: str) -> Value:
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9])


def _little_endian(text: str) -> Value:
    """tshark reads the ICRC, which is sent least significant byte first, as a big-endian number."""
    return int.from_bytes(int(text, 0).to_bytes(4, "big"), "little")


def _fecn(text: str) -> Value:
    return int(text[:2], 16) >> 7


def _becn(text: str) -> Value:
    return int(text[:2], 16) >> 6 & 1


@dataclass(frozen=True, slots=True)
class Question:
    """A value to compare: rocekit's name, tshark's field, and how its text is read.

    ``last`` takes the last of several occurrences (the innermost tag or header), else the first.
    """

    name: str
    field: str
    read: Callable[[str], Value] = number
    last: bool = False

    def value_of(self, text: str) -> Value:
        """The value in tshark's text, which has all occurrences with commas between; None if it is empty."""
        if not text:
            return None
        occurrences = text.split(",")
        try:
            return self.read(occurrences[-1] if self.last else occurrences[0])
        except ValueError:
            return text


def _questions(
    prefix: str, pairs: str, read: Callable[[str], Value] = number, *, last: bool = False
) -> tuple[Question, ...]:
    """Questions from ``"our_name:their_name …"``."""
    return tuple(
        Question(ours, f"{prefix}{theirs}", read, last)
        for ours, theirs in (pair.split(":") for pair in pairs.split())
    )


def _known(
    header: str, names: str, read: Callable[[str], Value] = number, *, last: bool = False
) -> tuple[Question, ...]:
    """Questions for these columns of a header, by the names that filters take too."""
    return tuple(Question(ours, TSHARK[header][ours], read, last) for ours in names.split())


FRAME: Final = (
    Question("time_ns", "frame.time_epoch", _time),
    *_known("vlan", "vlan", last=True),
)
UDP: Final = _known("udp", "udp_sport", last=True)
IPV4: Final = (
    *_known("ip", "src dst", _address, last=True),
    *_known("ip", "dscp ecn hop_limit ip_id", last=True),
)
IPV6: Final = (
    *_known("ipv6", "src dst", _address, last=True),
    *_known("ipv6", "dscp ecn hop_limit flow_label", last=True),
)
GRH: Final = (
    *_known("GRH", "src dst", _address),
    *_known("GRH", "tclass hop_limit flow_label"),
)
BTH: Final = (
    *_known("BTH", "opcode solicited migreq padcount version pkey dest_qpn ackreq psn"),
    Question("fecn", "infiniband.reserved", _fecn),
    Question("becn", "infiniband.reserved", _becn),
)
EXTENDED: Final = (
    *_known("RETH", "remote_va rkey dma_length"),
    *_known("AtomicETH", "swap_add compare"),
    *_known("AETH", "syndrome"),
    Question("syndrome_kind", "infiniband.aeth.syndrome.opcode"),
    *_known("AETH", "msn"),
    *_questions(
        "infiniband.aeth.syndrome.",
        "syndrome_credits:credit_count syndrome_timer:timer syndrome_code:error_code",
    ),
    *_known("DETH", "qkey src_qpn"),
    *_known("AtomicAckETH", "original"),
    *_known("ImmDt", "immediate", _hexadecimal),
    *_known("IETH", "invalidate_rkey", _hexadecimal),
)
ICRC: Final = (Question("icrc", "infiniband.invariant.crc", _little_endian),)
MAD: Final = _questions(
    "infiniband.mad.",
    "base_version:baseversion mgmt_class:mgmtclass class_version:classversion method:method status:status "
    "transaction_id:transactionid attribute_id:attributeid attribute_modifier:attributemodifier",
)
_REQ: Final = (
    *_questions(
        "infiniband.cm.req",
        "local_comm_id: service_id:.serviceid local_ca_guid:.localcaguid local_qkey:.localqkey "
        "local_qpn:.localqpn responder_resources:.responderres initiator_depth:.initdepth "
        "starting_psn:.startpsn retry_count:.retrcount rnr_retry_count:.rnrretrcount "
        "path_mtu_code:.pppmtu partition_key:.pkey "
        "transport_service_type:.transpsvctype srq:.srq max_cm_retries:.maxcmretr "
        "end_to_end_flow_control:.e2eflowctrl remote_cm_response_timeout:.remoteresptout "
        "local_cm_response_timeout:.localresptout primary_local_ack_timeout:.prim_localacktout "
        "primary_hop_limit:.prim_hoplim primary_traffic_class:.prim_tfcclass "
        "destination_port:.serviceid.dport source_port:.ip_cm.sport",
    ),
    *_questions(
        "infiniband.cm.req.ip_cm.",
        "source_ipv4:sip4 destination_ipv4:dip4 source_ipv6:sip6 destination_ipv6:dip6",
        _address,
    ),
    *_questions("infiniband.cm.req.", "ip_cm_private_data:ip_cm.private", _bytes),
)
CM: Final[Mapping[str, tuple[Question, ...]]] = MappingProxyType(
    {
        "REQ": _REQ,
        "REP": (
            *_questions(
                "infiniband.cm.rep",
                "local_comm_id: remote_comm_id:.remotecommid local_qkey:.localqkey local_qpn:.localqpn "
                "starting_psn:.startpsn responder_resources:.respres initiator_depth:.initdepth "
                "target_ack_delay:.tgtackdelay rnr_retry_count:.rnrretrcount local_ca_guid:.localcaguid "
                "end_to_end_flow_control:.e2eflowctrl srq:.srq",
            ),
            *_questions("infiniband.cm.rep.", "private_data:private", _bytes),
        ),
        "RTU": _questions("infiniband.cm.rtu.", "local_comm_id:localcommid remote_comm_id:remotecommid"),
        "DREQ": _questions("infiniband.cm.dreq.", "local_comm_id:localcommid remote_comm_id:remotecommid"),
        "DREP": _questions("infiniband.cm.drsp.", "local_comm_id:localcommid remote_comm_id:remotecommid"),
        "REJ": (
            *_questions(
                "infiniband.cm.rej.",
                "local_comm_id:localcommid remote_comm_id:remotecommid message_rejected:msgrej "
                "rejected_info_length:rejinfolen reason:reason",
            ),
            *_questions("infiniband.cm.rej.", "private_data:private", _bytes),
        ),
    }
)
_ALL: Final = (
    *(FRAME + UDP + IPV4 + IPV6 + GRH + BTH + EXTENDED + ICRC + MAD),
    *(question for questions in CM.values() for question in questions),
)
_FIELDS: Final = (
    "frame.number",
    *dict.fromkeys(question.field for question in _ALL),
    "udp.dstport",
    "_ws.malformed",
)


def find_tshark(purpose: str = "verify") -> tuple[str, str]:
    """The path of tshark and its version.

    Args:
        purpose: what needs it, for the error.

    Raises:
        CaptureError: there is none.
    """
    path = None
    try:
        from pyshark.tshark import tshark as finder

        path = finder.get_process_path()
    except ImportError:
        path = shutil.which("tshark")
    except Exception:  # pyshark raises various errors if it finds none
        path = None
    if path is None:
        raise CaptureError(f"{purpose} needs tshark, which is not installed; {HOW_TO_GET}")
    return path, _version(path)


def frame_by_frame(*, guess: bool = False) -> list[str]:
    """tshark's options for reading each frame by itself.

    Args:
        guess: whether dissectors that guess at payloads stay on.
    """
    words = [] if guess else [word for name in _DISABLED for word in ("--disable-protocol", name)]
    return words + [word for preference in _PREFERENCES for word in ("-o", preference)]


@functools.cache
def _version(path: str) -> str:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CaptureError(f"{path} does not run: {error}") from None
    words = said.stdout.split("(Git")[0].split()
    return next((word.rstrip(".") for word in words if word[:1].isdigit()), "of unknown version")


class TsharkFrames:
    """tshark's values for a capture, a frame at a time, in order; a context manager that ends tshark.

    Args:
        path: of tshark.
        file: the capture.

    Attributes:
        frames: how many frames it has given so far.
        left_out: fields that this tshark does not know.
        problem: its error message, if it ended with one.
    """

    def __init__(self, path: str, file: str) -> None:
        self.frames = 0
        self.left_out: frozenset[str] = frozenset()
        self.problem: str | None = None
        self._complaints = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 closed in __exit__
        self._command = [path, "-n", "-r", file, *frame_by_frame()]
        self._command += ["-T", "fields", "-E", "occurrence=a", "-E", "aggregator=,"]
        self._start()
        if not self._cells[0] and self._process.wait() != 0:
            # Another version has other names for some fields: it lists those it does not know and ends.
            self._complaints.seek(0)
            self.left_out = frozenset(line.strip() for line in self._complaints).intersection(_FIELDS)
            if self.left_out:
                self._complaints.truncate(0)
                self._stdout.close()
                self._start()

    def _start(self) -> None:
        fields = [name for name in _FIELDS if name not in self.left_out]
        self._place = {name: i for i, name in enumerate(fields)}
        command = self._command + [word for name in fields for word in ("-e", name)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._complaints
        )
        assert self._process.stdout is not None
        self._stdout = io.TextIOWrapper(self._process.stdout, errors="replace")
        self._read()

    def _read(self) -> None:
        self._cells = self._stdout.readline().rstrip("\n").split("\t")
        self.frames += self._cells[0].isdigit()

    def of(self, frame: int) -> Answers | None:
        """The values of a frame, as a function from a field to its text; None if tshark has none."""
        while self._cells[0].isdigit() and int(self._cells[0]) < frame:
            self._read()
        if not self._cells[0].isdigit() or int(self._cells[0]) != frame:
            return None
        cells, place = self._cells, self._place

        def answer(name: str) -> str:
            i = place.get(name)
            return cells[i] if i is not None and i < len(cells) else ""

        return answer

    def finish(self) -> None:
        """Read the rest, and keep tshark's error message."""
        while self._cells[0]:
            self._read()
        if self._process.wait() != 0:
            self._complaints.seek(0)
            said = [line.strip() for line in self._complaints if line.strip() and "dangerous" not in line]
            self.problem = said[-1] if said else f"tshark ended with status {self._process.returncode}"

    def __enter__(self) -> TsharkFrames:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._stdout.close()
        self._process.wait()
        self._complaints.close()
