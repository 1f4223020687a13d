"""Stands in for Cython where it is not installed and compiled modules run as plain Python."""

from __future__ import annotations

from contextlib import nullcontext

nogil = gil = nullcontext()
compiled = False
compiled = False
