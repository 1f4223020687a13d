"""Compiles the loops over packets where Cython and a C compiler are at hand; without, the same modules run as
they are. The types stand beside the modules, in their .pxd files; everything else is in pyproject.toml.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
MODULES = runpy.run_path(str(ROOT / "rocekit" / "_compiled.py"))["MODULES"]


def extensions() -> list[Any]:
    """The modules in C, or nothing where that cannot be made: it never stands in an installation's way."""
    try:
        from Cython.Build import cythonize

        return cythonize(  # type: ignore[no-any-return]
            [Extension(f"rocekit.{name}", [f"rocekit/{name}.py"], optional=True) for name in MODULES],
            language_level=3,
            build_dir="build/cython",
            compiler_directives={
                # Annotations are for readers and mypy; C types are in the .pxd files.
                "annotation_typing": False,
            },
        )
    except Exception as error:
        print(f"rocekit will run as plain Python: {error}", file=sys.stderr)
        return []


setup(ext_modules=extensions())
