"""What is installed elsewhere: one version everywhere, a wheel without a compiler, a Debian package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from amount import needs_more
from places import ROOT

from rocekit._version import VERSION
from rocekit.errors import installing

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(*command: object, cwd: Path = ROOT, **env: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_version_is_the_same_in_every_place_that_says_it() -> None:
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rocekit._version.VERSION"}
    version = VERSION
    assert version == "0.2.0"
    assert f"rocekit ({version})" in (ROOT / "debian" / "changelog").read_text()


def test_wheels_are_built_for_every_python_that_is_said_to_work() -> None:
    wheels = PROJECT["tool"]["cibuildwheel"]
    said = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert wheels["build"] == [f"cp{version.replace('.', '')}-*" for version in said]
    assert wheels["linux"]["archs"] == ["x86_64", "aarch64"]


def test_cibuildwheel_takes_the_configuration() -> None:
    program = shutil.which("cibuildwheel")
    if program is None:
        pytest.skip("no cibuildwheel (pip install cibuildwheel)")
    made = run(program, "--platform", "linux", "--print-build-identifiers").split()
    assert sorted(made) == sorted(
        f"cp3{minor}-manylinux_{machine}" for minor in (11, 12, 13, 14) for machine in ("x86_64", "aarch64")
    )


def test_a_missing_extra_is_installed_where_rocekit_is() -> None:
    """Tried by hand, too: pip installs into a wheel's environment, and into the Debian package's folder."""
    pip = f"{sys.executable} -m pip install"
    assert installing("plot") == f"{pip} 'rocekit[plot]'"
    debian = Path("/usr/lib/rocekit")
    assert str(debian) in (ROOT / "debian" / "control").read_text()
    assert installing("metrics", folder=debian) == f"sudo {pip} --target {debian} 'prometheus-client>=0.20'"
    both = installing("metrics", "plot", folder=debian)
    assert both.endswith("'matplotlib>=3.8'")
    assert "'prometheus-client>=0.20'" in both


def test_each_line_of_the_containerfile_is_an_instruction() -> None:
    text = re.sub(r"\\\n", " ", (ROOT / "Containerfile").read_text())
    words = [line.split()[0] for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert words[0] == "FROM"
    assert set(words) <= {"FROM", "RUN", "COPY", "WORKDIR", "ENTRYPOINT", "CMD"}
    for copied in re.findall(r"COPY --from=(\w+)", text):
        assert f"AS {copied}" in text


def test_shell_and_make_accept_the_scripts() -> None:
    run("bash", "-n", "scripts/wheel")
    if shutil.which("make"):
        run("make", "-n", "-f", "debian/rules", "binary")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that scripts/wheel has built and tried in a clean environment."""
    needs_more()
    return Path(run("scripts/wheel", tmp_path_factory.mktemp("dist")).splitlines()[-1])


def test_a_wheel_from_the_sdist_runs_compiled_without_a_compiler(wheel: Path) -> None:
    assert re.fullmatch(r"rocekit-0\.2\.0-cp\d+-cp\d+-linux_\w+\.whl", wheel.name)
    assert wheel.with_name("rocekit-0.2.0.tar.gz").exists()


def test_the_debian_package_is_built_installed_and_runs(wheel: Path, tmp_path: Path) -> None:
    if shutil.which("dpkg-buildpackage") is None:
        pytest.skip("no dpkg-buildpackage (apt-get install dpkg-dev)")
    source = tmp_path / "rocekit"
    source.mkdir()
    for name in ("debian", "docs"):
        shutil.copytree(ROOT / name, source / name)
    run("dpkg-buildpackage", "-b", "-us", "-uc", "-d", cwd=source, ROCEKIT_WHEEL=str(wheel))
    (package,) = tmp_path.glob("rocekit_0.2.0_*.deb")
    assert re.search(r"Depends: python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\)", run("dpkg", "-I", package))
    target = tmp_path / "root"
    (target / "var" / "lib" / "dpkg").mkdir(parents=True)
    (target / "var" / "lib" / "dpkg" / "status").touch()
    # The package's scripts run as they are: the folder is no system with a shell of its own.
    dpkg = ("dpkg", f"--root={target}", "--force-depends", "--force-not-root", "--force-script-chrootless")
    run(*dpkg, "--install", package)
    program, inside = target / "usr/bin/rocekit", target / "usr/lib/rocekit"
    compiled = next((inside / "rocekit/__pycache__").glob("cli.*.pyc"))
    assert b"/usr/lib/rocekit/rocekit/cli.py" in compiled.read_bytes()
    assert "0.2.0" in run(program, "--version", cwd=tmp_path)
    said = run(program, "analyze", ROOT / "pcaps" / "rping-clean.pcap", cwd=tmp_path)
    assert "No findings" in said
    extra = inside / "an_extra/__init__.py"
    extra.parent.mkdir()
    extra.touch()
    run(*dpkg, "--remove", "rocekit")
    assert [path for path in inside.rglob("*") if path.is_file()] == [extra]
    assert not program.exists()
    run(*dpkg, "--purge", "rocekit")
    assert not inside.exists()
