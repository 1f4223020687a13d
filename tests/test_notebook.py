"""docs/notebook.ipynb runs, and what rocekit shows in it is true.

``PYTHONPATH=tests/tools python tests/test_notebook.py`` writes its outputs anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
pytest.importorskip("nbmake")
pytest.importorskip("ipykernel")


def executed(folder: Path) -> dict[str, Any]:
    """The notebook, run by nbmake, with its new outputs."""
    (folder / "docs").mkdir()
    (folder / "pcaps").symlink_to(ROOT / "pcaps")
    shutil.copy(NOTEBOOK, folder / "docs")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake", "--overwrite",
         "--nbmake-timeout=300", f"docs/{NOTEBOOK.name}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads((folder / "docs" / NOTEBOOK.name).read_text())
    return document


def texts(notebook: dict[str, Any]) -> list[str]:
    """What rocekit shows in each cell, without pictures; data frames are shown by other packages."""
    told = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = "".join(output.get("data", {}).get("text/html", ""))
            if 'class="rocekit"' in text:
                told.append(re.sub(r'src="[^"]*"', "", text))
    return told


def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    kept, now = json.loads(NOTEBOOK.read_text()), executed(tmp_path)
    assert texts(now) == texts(kept)
    assert len(texts(now)) == 5
    shown = json.dumps(now)
    assert shown.count("data:image/svg+xml") >= 3
    assert "Traceback" not in shown


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        document = executed(Path(name))
    for cell in document["cells"]:
        cell["metadata"] = {}
    document["metadata"]["language_info"] = {"name": "python"}
    NOTEBOOK.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
