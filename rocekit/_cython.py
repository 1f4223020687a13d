"""What compiled modules ask of Cython, for where they run as plain Python and Cython is not installed."""

from __future__ import annotations

from contextlib import nullcontext

nogil = nullcontext()
