"""Loading pyverbs, which Debian builds for the distribution's Python.

Only this module imports pyverbs. A virtual environment of the same minor version can load it from the
distribution's folder, without the distribution's other packages.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

from rocekit.errors import VerbsError

DISTRIBUTION = Path("/usr/lib/python3/dist-packages")
_MODULES = ("addr", "cq", "device", "enums", "mr", "pd", "pyverbs_error", "qp", "srq", "wr")


def load(folder: Path = DISTRIBUTION) -> SimpleNamespace:
    """pyverbs' modules, as attributes.

    Raises:
        VerbsError: it is not installed, or is built for another Python.
    """
    if "pyverbs" not in sys.modules and importlib.util.find_spec("pyverbs") is None:
        _load_from(folder)
    try:
        return SimpleNamespace(**{name: importlib.import_module(f"pyverbs.{name}") for name in _MODULES})
    except ImportError as error:
        raise VerbsError(
            f"pyverbs does not load ({error}): apt-get install --reinstall python3-pyverbs"
        ) from None


def _load_from(folder: Path) -> None:
    package = folder / "pyverbs"
    start = package / "__init__.py"
    if not start.exists():
        raise VerbsError("pyverbs is missing: apt-get install python3-pyverbs")
    built = {path.name.split(".", 1)[1] for path in package.glob("device.*.so")}
    ours = importlib.machinery.EXTENSION_SUFFIXES[0].lstrip(".")
    if ours not in built:
        raise VerbsError(
            f"pyverbs is built for another Python ({', '.join(sorted(built))}; this one needs {ours}): "
            "make the virtual environment with /usr/bin/python3"
        )
    spec = importlib.util.spec_from_file_location("pyverbs", start, submodule_search_locations=[str(package)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pyverbs"] = module
    spec.loader.exec_module(module)
