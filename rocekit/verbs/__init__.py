"""The verbs backend: scenarios on the kernel's devices, through pyverbs and librdmacm."""

from __future__ import annotations

from rocekit.verbs.endpoint import VerbsEndpoint
from rocekit.verbs.limits import devices
from rocekit.verbs.loading import load

__all__ = ["VerbsEndpoint", "devices", "load"]
