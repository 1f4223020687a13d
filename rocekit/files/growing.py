"""Files that grow while something happens that does not come again: live packets, events of programs."""

from __future__ import annotations

import os
from contextlib import suppress

from rocekit.errors import CaptureError, RocekitError
from rocekit.files.new_file import NewFile, not_written

TYPE_CHECKING = False  # `rocekit record` of a short program would take longer to load pathlib than to write
if TYPE_CHECKING:
    from pathlib import Path


class GrowingFile:
    """A file with the packets or events of now, for as long as they come.

    A new file is written under its own name, for those who read it while it grows. A file that exists is
    replaced at the end; until then what is written is in ``x.partial-….pcapng`` beside it, and stays there if
    the disk is full or the process is killed. A file to which nothing could be written is removed.

    Args:
        opened: the file, if it was made before.

    Attributes:
        file: open for writing bytes.

    Raises:
        CaptureError: it cannot be made, and from :meth:`close`, written.
    """

    def __init__(self, out: str | Path, opened: NewFile | None = None) -> None:
        self._name = str(out)
        try:
            self._new = opened or NewFile(out, growing=True)
        except OSError as error:
            raise not_written(error, out) from None
        self.file = self._new.file
        self._error: Exception | None = None

    def failed(self, error: OSError) -> Exception:
        """The error to raise after a write has failed: the old file then stays."""
        named: Exception = not_written(error, self._name)
        with suppress(OSError, ValueError):
            self.file.flush()
        kept = None if self._new.is_empty else self._new.kept_in
        if kept is not None and isinstance(named, RocekitError):
            where = os.path.join(os.path.dirname(self._name), kept.name)  # noqa: PTH118, PTH120
            named = CaptureError(f"{named.args[0]}; what was written is in {where}")
        self._error = named
        return named

    def close(self) -> None:
        """Close the file, which takes its place if all could be written."""
        if self._error is None:
            try:
                self._new.close()
                self._new.take_place()
                return
            except OSError as error:
                self.failed(error)
        self._new.abandon()
        if self._new.is_empty:
            self._new.remove()
        assert self._error is not None
        raise self._error from None
