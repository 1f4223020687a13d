"""What building the package leaves in it, with a C compiler and rdma-core's headers and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

from rocekit._compiled import SHARED
from rocekit.record.build import compiler, look

#: As pip runs setup.py, but without Cython, whose modules take minutes and are tried in test_compiled.py.
WITHOUT_CYTHON = (
    "import runpy, sys; sys.modules['Cython'] = None; runpy.run_path('setup.py', run_name='__main__')"
)
#: As pip runs setup.py, but with what the modules share and the first of them only.
WITH_ONE_LOOP = (
    "import runpy, Cython.Build; make = Cython.Build.cythonize; "
    "Cython.Build.cythonize = lambda modules, **how: make(modules[:2], **how); "
    "runpy.run_path('setup.py', run_name='__main__')"
)


def build(folder: Path, cc: str, how: str = WITHOUT_CYTHON) -> list[str]:
    """The libraries that a build puts beside the package's modules."""
    source = folder / "source"
    shutil.copytree(
        ROOT / "rocekit", source / "rocekit", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for name in ("setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    # This environment's setuptools may be older than what pip would get, and read licenses in another way.
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("license")]
    (source / "pyproject.toml").write_text("\n".join(kept))
    done = subprocess.run(
        [sys.executable, "-c", how, "-q", "build", "--build-lib", str(folder / "built")],
        cwd=source,
        env=os.environ | {"CC": cc},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "built/rocekit/record/interposer/ring.c").exists(), "the sources go along"
    return [path.name for path in (folder / "built/rocekit").rglob("*.so")]


def test_without_a_compiler_the_package_is_built_without_its_libraries(tmp_path: Path) -> None:
    assert build(tmp_path, "/no/such/compiler") == []


@pytest.fixture(scope="module")
def one_loop(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """What a build without a compiler leaves of one of Cython's loops: libraries, and the folder of its C."""
    pytest.importorskip("Cython")
    folder = tmp_path_factory.mktemp("one")
    return build(folder, "/no/such/compiler", WITH_ONE_LOOP), folder / "source/build/cython/rocekit"


def test_without_a_compiler_cythons_loops_are_left_out_too(one_loop: tuple[list[str], Path]) -> None:
    assert one_loop[0] == []


def test_cythons_memory_views_are_compiled_once_and_not_in_each_loop(
    one_loop: tuple[list[str], Path],
) -> None:
    """They take the compiler longer than the loop itself."""
    having = [
        path.stem for path in one_loop[1].rglob("*.c") if "memoryview_copy_contents(" in path.read_text()
    ]
    assert having == [SHARED]


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """What a build leaves whose compiler fails once, at _icrcs.c: the libraries, and the build's folder."""
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler (apt-get install gcc)")
    folder = tmp_path_factory.mktemp("complete")
    fake, failed = folder / "cc", folder / "failed"
    fails = f'case "$*" in *packets/_icrcs.c*) [ -e {failed} ] || {{ touch {failed}; exit 1; }} ;; esac'
    # The last level counts: what the libraries do is not looked at here.
    fake.write_text(f'#!/bin/sh\n{fails}\nexec {cc} "$@" -O0\n')
    fake.chmod(0o755)
    return build(folder, str(fake)), folder


def test_what_failed_to_compile_is_tried_once_more(complete: tuple[list[str], Path]) -> None:
    libraries, folder = complete
    assert (folder / "failed").exists()
    assert [name for name in libraries if name.startswith("_icrcs")]


def test_without_rdma_cores_headers_the_interposer_is_left_out(tmp_path: Path) -> None:
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler (apt-get install gcc)")
    fake = tmp_path / "cc"
    fake.write_text(f'#!/bin/sh\nexec {cc} "$@" -nostdinc\n')
    fake.chmod(0o755)
    assert build(tmp_path, str(fake)) == []


def test_with_both_the_libraries_are_in_the_package(complete: tuple[list[str], Path]) -> None:
    found = look()
    if found.path is None and not found.can_build:
        pytest.skip(f"{found.obstacle} (apt-get install {' '.join(found.packages)})")
    arenas, lines, loop, library = sorted(complete[0])
    assert arenas.startswith("_arenas")
    assert lines.startswith("_direct")
    assert loop.startswith("_icrcs")
    assert library.startswith("_interposer")
    names = subprocess.run(
        ["nm", "-D", "--defined-only", str(complete[1] / "built/rocekit/record" / library)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # Of one version, and not the default one: only who asks for it finds it.
    assert " ibv_open_device@IBVERBS_1.1" in names


def test_an_installed_library_is_found_whatever_its_files_times_are(
    complete: tuple[list[str], Path], tmp_path: Path
) -> None:
    found = look()
    if found.path is None and not found.can_build:
        pytest.skip(f"{found.obstacle} (apt-get install {' '.join(found.packages)})")
    library = next(name for name in complete[0] if name.startswith("_interposer"))
    shutil.copytree(complete[1] / "built", tmp_path / "built")
    for source in (tmp_path / "built/rocekit/record/interposer").iterdir():
        os.utime(source, (4e9, 4e9))

    def packaged() -> str:
        return subprocess.run(
            [sys.executable, "-c", "from rocekit.record.build import packaged; print(packaged())"],
            cwd="/",
            env=os.environ | {"PYTHONPATH": str(tmp_path / "built")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert packaged() == str(tmp_path / "built/rocekit/record" / library)
    (tmp_path / "built/rocekit/record/interposer/ring.c").write_text("/* not what it was */")
    assert packaged() == "None"


@pytest.mark.parametrize(
    ("files", "without"),
    [
        ((), True),
        (("etc/kernel/postinst.d/initramfs-tools",), True),
        (("etc/kernel/postinst.d/initramfs-tools", "etc/kernel/postinst.d/zz-update-grub"), False),
        (("boot/vmlinuz-6.1.0-56-amd64",), False),
    ],
)
def test_a_kernel_lacks_an_initial_ram_disk_only_where_none_boots(
    tmp_path: Path, files: tuple[str, ...], without: bool
) -> None:
    """A machine that boots what scripts/setup.sh installs for the lab's VM would not start without."""
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    script = f". scripts/setup.sh; boots_no_kernel {tmp_path}"
    done = subprocess.run(["bash", "-uc", script], cwd=ROOT, timeout=240, check=False)
    assert (done.returncode == 0) == without


@pytest.mark.parametrize(
    ("told", "with_uv"),
    [("global.extra-index-url='file:///x'", True), ("", True), (":env:.index-url='https://x'", False)],
)
def test_uv_installs_unless_pip_is_told_of_another_index(tmp_path: Path, told: str, with_uv: bool) -> None:
    """uv does not read pip's configuration: it would ask PyPI, or fail after it has waited."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, does in (("python", f'echo "{told}"'), ("uv", f"echo $* >{tmp_path}/installed")):
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    script = f". scripts/setup.sh; VENV={tmp_path}; install_with_uv -e .[dev]"
    done = subprocess.run(["bash", "-uc", script], cwd=ROOT, timeout=240, check=False)
    assert (done.returncode == 0) == (tmp_path / "installed").exists() == with_uv


def test_compiling_waits_for_the_first_packages_and_not_for_the_others(tmp_path: Path) -> None:
    """scripts/setup.sh installs packages in the background; apt-get itself would change this machine."""
    script = f"""
        . scripts/setup.sh
        install_packages() {{
            [ "$1" != last ] || until [ -e {tmp_path}/waited ]; do sleep 0.05; done
            echo "$1" >>{tmp_path}/installed
            [ "$1" != last ] || leave_out "what needs last"
        }}
        await_first  # nothing is being installed
        install_packages_meanwhile last
        await_first
        cat {tmp_path}/installed
        touch {tmp_path}/waited
        end_installing
        await_first
        cat {tmp_path}/installed
        tell_left_out
    """
    done = subprocess.run(
        ["bash", "-uc", script], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    first = "python3-venv\n"
    assert (done.stdout, done.stderr) == (f"{first}{first}last\nleft out:\n  - what needs last\n", "")
