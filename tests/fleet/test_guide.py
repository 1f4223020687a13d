"""The guide's ten questions are answered, its tables are those in the files, and sources are watched."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from click.testing import CliRunner
from fleet_lake import FLEET
from places import PCAPS, ROOT

from rocekit.cli import rocekit as cli
from rocekit.fleet.lake import Lake
from rocekit.fleet.query import ask, connect
from rocekit.fleet.schema import TABLES
from rocekit.fleet.watching import Watcher

GUIDE = (ROOT / "docs" / "guide" / "fleet.md").read_text()
QUESTIONS = re.findall(r"^(\d+)\. ([^\n]*\?)\n\n    ```sql\n(.*?)    ```", GUIDE, re.MULTILINE | re.DOTALL)


DEPLOYMENTS = ("ssh", "kubernetes", "slurm")


def test_there_are_ten_questions() -> None:
    assert [int(number) for number, _, _ in QUESTIONS] == list(range(1, 11))


@pytest.mark.parametrize(("number", "sql"), [(int(n), sql) for n, _, sql in QUESTIONS])
def test_a_question_of_the_guide_is_answered(number: int, sql: str, lake: Path) -> None:
    answer = ask(connect(Lake(lake)), sql)
    assert answer.rows
    faulty = FLEET.addresses[7]
    if number == 1:
        assert [row[:2] for row in answer.rows] == [(faulty, "to")]
    elif number in (2, 6):
        assert {row[1] for row in answer.rows} == {faulty}
    elif number == 3:
        result = CliRunner().invoke(cli, answer.rows[0][-1].split()[1:])
        assert result.exit_code == 0
        assert "did not arrive" in result.output
    elif number == 8:
        assert answer.rows[0][0] == "broken"


def test_files_of_a_lake_have_the_columns_and_types_of_the_guide(lake: Path) -> None:
    seen = set()
    for path in lake.rglob("*.parquet"):
        found = {name: str(kind) for name, kind in pl.read_parquet_schema(path).items()}
        assert found == {name: kind for name, (kind, _) in TABLES[path.stem].items()}, path
        seen.add(path.stem)
        for name, (kind, meaning) in TABLES[path.stem].items():
            assert f"| `{name}` | {kind} | {meaning} |" in GUIDE
    # Of these the fleet has nothing: generated traffic has no CM messages, and no journals.
    assert seen == set(TABLES) - {"cm", "counters", "links"} | ({"links"} & seen)


def test_the_compose_file_starts_a_scheduler_and_workers_of_dask() -> None:
    services = yaml.safe_load((ROOT / "contrib" / "fleet-compose.yaml").read_text())["services"]
    assert services["scheduler"]["command"].startswith("dask scheduler ")
    assert services["worker"]["command"].startswith("dask worker tcp://scheduler:8786 ")
    assert all(port.startswith("127.0.0.1:") for port in services["scheduler"]["ports"])


PAGES = {name: (ROOT / "docs" / "guide" / f"fleet-{name}.md").read_text() for name in DEPLOYMENTS}


def blocks(name: str, language: str) -> list[str]:
    """The blocks of a deployment's page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGES[name], re.DOTALL)


def test_pages_of_deployments_use_options_that_dask_has() -> None:
    from distributed.cli import dask_scheduler, dask_ssh, dask_worker

    programs = {"scheduler": dask_scheduler, "worker": dask_worker, "ssh": dask_ssh}
    seen = set()
    for text in (*PAGES.values(), GUIDE, (ROOT / "contrib" / "fleet-compose.yaml").read_text()):
        for program, words in re.findall(r"\bdask,? (scheduler|worker|ssh)\b([^`\n]*)", text):
            has = {opt for p in programs[program].main.params for opt in (*p.opts, *p.secondary_opts)}
            assert set(re.findall(r"--[a-z][a-z-]+", words)) <= has, words
            seen.add(program)
    assert seen == set(programs)


def test_pages_of_deployments_run_commands_that_rocekit_has() -> None:
    for name in PAGES:
        (line,) = [own for own in blocks(name, "bash") if "rocekit fleet analyze" in own]
        (command,) = re.findall(r"rocekit (fleet analyze .*)", line)
        result = CliRunner().invoke(cli, [*command.split(), "--help"])
        assert result.exit_code == 0
        assert {"--scheduler", "-o"} <= set(command.split())


def test_the_job_of_slurm_is_a_program_of_the_shell() -> None:
    (job,) = blocks("slurm", "bash")
    done = subprocess.run(["bash", "-n"], input=job, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for python in blocks("slurm", "python"):
        compile(python, "fleet-slurm.md", "exec")


def test_the_manifest_of_kubernetes_has_what_dask_s_operator_reads() -> None:
    (manifest,) = map(yaml.safe_load, blocks("kubernetes", "yaml"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("kubernetes.dask.org/v1", "DaskCluster")
    spec = manifest["spec"]
    (worker,) = spec["worker"]["spec"]["containers"]
    mounted = {mount["name"] for mount in worker["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["worker"]["spec"]["volumes"]}
    (scheduler,) = spec["scheduler"]["spec"]["containers"]
    ports = {port["name"] for port in scheduler["ports"]}
    assert {port["targetPort"] for port in spec["scheduler"]["service"]["ports"]} == ports
    assert spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == manifest["metadata"]["name"]


def test_the_manifest_of_kubernetes_has_only_what_dask_s_operator_knows() -> None:
    found = importlib.util.find_spec("dask_kubernetes")
    if found is None or found.origin is None:
        pytest.skip("no dask-kubernetes (pip install dask-kubernetes)")
    chart = Path(found.origin).parent / "operator" / "deployment" / "helm" / "dask-kubernetes-operator"
    crd = yaml.safe_load((chart / "crds" / "daskcluster.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    (manifest,) = map(yaml.safe_load, blocks("kubernetes", "yaml"))
    assert manifest["apiVersion"] == f"{crd['spec']['group']}/{crd['spec']['versions'][0]['name']}"
    assert manifest["kind"] == crd["spec"]["names"]["kind"]
    assert _unknown(manifest["spec"], schema["properties"]["spec"], "spec") == []


def _unknown(value: object, schema: dict[str, Any], where: str) -> list[str]:
    """The places of a manifest that its definition does not have, or has with another type."""
    if isinstance(value, list):
        return [one for item in value for one in _unknown(item, schema["items"], where)]
    if not isinstance(value, dict):
        types = {"string": str, "integer": int, "boolean": bool}
        return [] if isinstance(value, types.get(schema.get("type", ""), object)) else [where]
    if "properties" not in schema:  # names of the user's own, such as labels
        return []
    known = schema["properties"]
    wrong = [f"{where}.{name}" for name in value if name not in known]
    return wrong + [
        one
        for name in value
        if name in known
        for one in _unknown(value[name], known[name], f"{where}.{name}")
    ]


def test_what_is_new_or_has_grown_is_due_once_it_rests(tmp_path: Path) -> None:
    watcher = Watcher([str(tmp_path)])
    assert watcher.due() == []
    one = tmp_path / "x.pcap"
    data = (PCAPS / "rping-clean.pcap").read_bytes()
    one.write_bytes(data[:500])
    assert watcher.due() == []  # it may still be written to
    assert [s.point for s in watcher.due()] == ["x"]
    assert watcher.due() == []
    one.write_bytes(data)
    assert watcher.due() == []
    assert [s.point for s in watcher.due()] == ["x"]
    shutil.copy(PCAPS / "rping-clean.pcap", tmp_path / "x.pcap1")  # the rotation goes on
    assert watcher.due() == []
    assert [len(s.files) for s in watcher.due()] == [2]
