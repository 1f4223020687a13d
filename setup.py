"""Builds the compiled parts, where the tools for them are installed.

The loops over packets need Cython and a C compiler; without them, the same modules run as plain Python. Their
types are in .pxd files beside them. The library that `rocekit record` puts into programs needs a C compiler
and rdma-core's headers; without them, it is built when it is first used. The rest is in pyproject.toml.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
INTERPOSER = runpy.run_path(str(ROOT / "rocekit" / "record" / "interposer_sources.py"))
COMPILED = runpy.run_path(str(ROOT / "rocekit" / "_compiled.py"))
SHARED = f"rocekit.{COMPILED['SHARED']}"

#: What GCC 14 refuses, older ones only warn of: a wheel is to be built by all, or by none.
REFUSED = [
    f"-Werror={mistake}"
    for mistake in ("incompatible-pointer-types", "int-conversion", "implicit-function-declaration")
]

#: Parts that run for each packet. The rest, most of it the state machine, is as fast with -O1, which takes
#: the compiler half the time; with neither, loops take three times as long.
EACH_PACKET = tuple(f"rocekit.{part}." for part in ("files", "packets", "flows", "track.lane"))

#: The compiler's levels for these and for the rest; for tests of small captures the one that takes it half
#: of the time.
LEVELS = ("-Og", "-Og") if os.environ.get("ROCEKIT_QUICK_BUILD") else ("-O2", "-O1")


def extensions() -> list[Any]:
    """The modules in C; none if Cython fails, so that the installation never does."""
    # What Cython reads of a module stays until that is written: to look for garbage took it half its time.
    gc.set_threshold(1_000_000)
    try:
        from Cython.Build import cythonize

        made: list[Any] = cythonize(
            [
                Extension(
                    name,
                    [f"{name.replace('.', '/')}.{kind}"],
                    # The interpreter's own flags ask for debug information: a third of the time, and three
                    # quarters of a wheel. CFLAGS in the environment replaces them.
                    extra_compile_args=[LEVELS[not name.startswith(EACH_PACKET)], "-g0", *REFUSED],
                )
                for name, kind in [
                    (SHARED, "c"),
                    *((f"rocekit.{module}", "py") for module in COMPILED["MODULES"]),
                ]
            ],
            shared_utility_qualified_name=SHARED,
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
    # Not an argument of Extension above: cythonize makes others of them, and forgets this.
    for extension in made:
        extension.optional = True
    return made


def interposer() -> Extension:
    """The library that is put into recorded programs: not a Python module, but built like one."""
    folder = Path("rocekit", "record", "interposer")
    here = sorted((ROOT / folder).iterdir())
    return Extension(
        "rocekit.record._interposer",
        [str(folder / path.name) for path in here if path.suffix == ".c"],
        depends=[str(folder / path.name) for path in here if path.suffix in (".h", ".map")],
        define_macros=[(INTERPOSER["MACRO"], f'"{INTERPOSER["sources_digest"]()}"')],
        extra_compile_args=["-std=gnu11", "-O2", "-g0", *REFUSED, "-fexceptions", "-fvisibility=hidden"],
        extra_link_args=[
            "-Wl,-z,now,-z,relro",
            "-Wl,-z,nodelete",
            f"-Wl,--version-script={folder / 'exports.map'}",
        ],
        libraries=["dl", "pthread"],
        optional=True,
    )


def icrcs() -> Extension:
    """The loop over packets whose ICRCs are verified."""
    return Extension(
        "rocekit.packets._icrcs",
        ["rocekit/packets/_icrcs.c"],
        extra_compile_args=["-O2", "-g0", *REFUSED],
        libraries=["dl"],
        optional=True,
    )


def arenas() -> Extension | None:
    """Memory for Python's objects, as Linux has it."""
    if not sys.platform.startswith("linux"):
        return None
    return Extension(
        "rocekit.machine._arenas",
        ["rocekit/machine/_arenas.c"],
        extra_compile_args=["-std=gnu11", "-O2", "-g0", *REFUSED],
        optional=True,
    )


def direct_lines() -> Extension:
    """The lines of the commonest records of a recorded program."""
    return Extension(
        "rocekit.record.lines._direct",
        ["rocekit/record/lines/_direct.c"],
        depends=["rocekit/record/interposer/record.h"],
        extra_compile_args=["-std=gnu11", "-O2", "-g0", *REFUSED],
        optional=True,
    )


def compiled() -> list[Extension]:
    """What is compiled; nothing where scripts/setup.sh does that beside pip's downloads."""
    if os.environ.get("ROCEKIT_COMPILED_ELSEWHERE"):
        return []
    made = [icrcs(), direct_lines(), arenas(), interposer()]
    return [*extensions(), *(extension for extension in made if extension is not None)]


class BuildTwice(build_ext):
    """Tries what failed to compile once more: without one loop, all of them run as plain Python.

    One was missing from an image once, of 27 that were compiled at the same time, and compiled alone.
    """

    def build_extension(self, ext: Any) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            print(f"{ext.name}: {error}; once more", file=sys.stderr)
            super().build_extension(ext)


setup(
    cmdclass={"build_ext": BuildTwice},
    ext_modules=compiled(),
    options={"build_ext": {"parallel": os.cpu_count()}},  # each takes the compiler 15 seconds
)
