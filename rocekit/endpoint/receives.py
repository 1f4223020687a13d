"""Posting receives, to a QP or to a shared receive queue, and writing them to the journal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from rocekit.endpoint.errors import RefusedPost, errno_text
from rocekit.endpoint.local_device import LocalDevice
from rocekit.endpoint.work import RecvWr


class SharedReceives(ABC):
    """A shared receive queue: several QPs take their receives from it.

    Attributes:
        number: its number in the journal.
    """

    def __init__(self, endpoint: LocalDevice, number: int) -> None:
        self.endpoint = endpoint
        self.number = number

    def post(self, *wrs: RecvWr) -> None:
        """Post receives, in one list.

        Raises:
            VerbsError: the device refused one; those before it were posted.
        """
        post_receives(self.endpoint, self._post, wrs, device=self.endpoint.device, srq=self.number)

    @abstractmethod
    def _post(self, wrs: Sequence[RecvWr]) -> tuple[int, int]:
        """Post; (index of the WR that was refused, errno), or (0, 0)."""


def post_receives(
    endpoint: LocalDevice,
    post: Callable[[Sequence[RecvWr]], tuple[int, int]],
    wrs: Sequence[RecvWr],
    *,
    qp: tuple[str, int] | None = None,
    device: str | None = None,
    srq: int | None = None,
) -> Sequence[RecvWr]:
    """Post and write to the journal; gives those that were posted."""
    now = endpoint.now()
    refused, code = post(wrs)
    for index, wr in enumerate(wrs[: refused + 1] if code else wrs):
        endpoint.log(
            "recv_posted",
            qp,
            time_ns=now,
            device=device,
            srq=srq,
            wr_id=wr.wr_id,
            sges=[sge.to_dict() for sge in wr.sges],
            length=wr.length,
            errno=code if code and index == refused else None,
        )
    if code:
        raise RefusedPost(
            refused, f"{endpoint.device} refused receive {wrs[refused].wr_id}: {errno_text(code)}", code
        )
    return wrs
