"""What tests of several modules share: where captures are, what a machine may lack, and how hypothesis runs.

A test that needs what this machine has not is skipped with the name of the missing thing, never silently.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amount import EVERYTHING, examples
from hypothesis import HealthCheck, settings
from lab_boot import Boot, Part
from places import ROOT
from together import by_groups, load_share

# No deadlines: the machines that run this are slow at times. A failure prints the blob that repeats it.
settings.register_profile(
    "rocekit", deadline=None, print_blob=True, max_examples=2000 if EVERYTHING else examples(100)
)
# The same examples in every run: what fails there is the change's doing. Elsewhere they are new each time.
settings.register_profile(
    "ci",
    parent=settings.get_profile("rocekit"),
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "rocekit"))


# Nothing of the ten thousand tests that are collected is garbage: to look for it while they are made, and in
# each full collection later, takes a large part of the time.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which process runs which tests."""
    return by_groups(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_collection(session: pytest.Session) -> None:
    """Compile the tests' modules, each in one process."""
    load_share(session.config)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: from now on only what tests make is looked through."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session")
def pcaps() -> Path:
    """The folder of captures that the project made itself."""
    return ROOT / "pcaps"


@pytest.fixture(scope="session")
def others() -> Path:
    """The folder of captures that others made; they are not ours to hand on, so it may not be there."""
    folder = ROOT.parent / "shared" / "captures"
    if not folder.is_dir():
        pytest.skip("no ../shared/captures: captures that others made")
    return folder


@pytest.fixture(scope="session")
def tshark() -> str:
    """The path of tshark."""
    path = shutil.which("tshark")
    if path is None:
        pytest.skip("no tshark (apt-get install tshark)")
    return path


@pytest.fixture(scope="session")
def root() -> None:
    """The test changes interfaces or opens raw sockets."""
    if os.geteuid() != 0:
        pytest.skip("not root: interfaces and raw sockets")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``stub/program.c`` on the stub device, for the recorder; with the interposer built."""
    from recorded import build_stub

    from rocekit.record.build import interposer, look

    found = look()
    if found.path is None and not found.can_build:
        pytest.skip(f"{found.obstacle} (apt-get install {' '.join(found.packages)})")
    interposer()
    return build_stub(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="session")
def boot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Boot]:
    """The lab, booted once for all the tests that this run has selected."""
    parts: dict[str, Part] = {}
    for item in request.session.items:
        for marker in item.iter_markers("lab"):
            parts.setdefault(marker.args[0].name, marker.args[0])
    made = Boot(list(parts.values()), tmp_path_factory.mktemp("lab"))
    yield made
    made.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell scripts/test, which asks for it by naming a file, what was skipped and why."""
    wanted = os.environ.get("ROCEKIT_SKIPPED")
    if not wanted:
        return
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    lines = [f"{n} test{'s' if n > 1 else ''}: {reason}\n" for reason, n in sorted(reasons.items())]
    Path(wanted).write_text("".join(lines))


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the captures of a fleet, one a host, and one file that is no capture."""
    from fleet_lake import FLEET

    folder = tmp_path_factory.mktemp("fleet") / "captures"
    folder.mkdir()
    FLEET.write(folder)
    (folder / "broken.pcap").write_bytes(b"no capture at all")
    return folder


@pytest.fixture(scope="session")
def lake(captures: Path) -> Path:
    """The LAKE of the fleet's captures."""
    from fleet_lake import made

    return made(captures.parent / "lake", captures)
