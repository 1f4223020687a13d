"""Claims about recording what production programs do: nothing of it changes, and the journal is right.

The programs are those of ``stub/hard.c`` and ``stub/loader.c``; each exits with another status than 0 if a
call gave it what it would not have given without the recorder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from recorded import LIBRARY, STUB, build_library, compiled, record, recorder, sends

from rocekit.journal import read_journal
from rocekit.record.build import compiler


@pytest.fixture(scope="module")
def hard(program: Path) -> Path:
    library = program.parent / LIBRARY
    return compiled(program.parent / "hard", "hard.c", str(library), f"-Wl,-rpath,{library.parent}")


@pytest.fixture(scope="module")
def loader(program: Path) -> Path:
    """A program that loads libibverbs; beside it another copy of it, and a plugin linked with the first."""
    folder = program.parent
    (folder / "other").mkdir()
    build_library(folder / "other")
    compiled(
        folder / "plugin.so", "plugin.c", "-fPIC", "-shared", str(folder / LIBRARY), f"-Wl,-rpath,{folder}"
    )
    return compiled(folder / "loader", "loader.c")


def test_what_could_not_be_destroyed_goes_on_and_is_recorded(hard: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(hard), "destroys_in_vain"])
    assert ran.returncode == 0
    assert ran.journal.problems == []
    # Once each, and after what was done with them.
    names = [e.event for e in ran.journal]
    for gone, used in (
        ("qp_destroyed", "wr_posted"),
        ("mr_deregistered", "recv_posted"),
        ("mw_deallocated", "wr_posted"),
    ):
        assert names.count(gone) == 1
        assert names.index(gone) > names.index(used)
    assert ran.one("recv_posted")["srq"] == ran.one("srq_created")["srq"]
    assert sends(ran) == [1]
    assert [c["opcode"] for c in ran.of("wc_polled")] == ["SEND", "RECV"]


def test_a_device_may_be_opened_as_often_as_one_likes(hard: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(hard), "opens_often"])
    assert ran.returncode == 0
    assert not ran.of("not_recorded", "records_lost")
    assert sends(ran) == list(range(600))
    assert len(ran.of("device_opened")) == 600
    assert len(ran.of("wc_polled")) == 600


def test_threads_that_share_a_qp_get_no_psn_that_is_another_s(hard: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(hard), "shares_a_qp"])
    assert ran.returncode == 0
    # The QP's own order is the truth: it starts at PSN 100, and each work request takes one.
    truth = {int(wr_id): 100 + place for place, wr_id in enumerate(ran.stdout.split())}
    posted = [e for e in ran.of("wr_posted") if not e.get("errno")]
    assert {e["wr_id"] for e in posted} == set(truth)
    assert len(truth) == 802
    for event in posted:
        assert event.get("psn") == (None if event.get("overlapped") else truth[event["wr_id"]])
    # Before they begin and after they have ended, PSNs are certain, refused work requests or not.
    assert not posted[0].get("overlapped")
    assert posted[-1]["psn"] == truth[0x9000]
    assert all(e.get("psn") is None for e in ran.of("wr_posted") if e.get("errno"))


def test_a_thread_that_is_cancelled_in_a_post_holds_nobody_up(hard: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(hard), "cancels"], "--ring-size", "1024")
    assert ran.returncode == 0
    assert not ran.of("records_lost")
    (left,) = [e for e in ran.of("wr_posted") if e.get("unfinished")]
    assert left["wr_id"] == 0xB10C
    assert len(ran.of("wr_posted")) == 1 + 8 * 600


def test_children_of_a_parent_with_threads_run_as_ever(hard: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(hard), "forks_with_threads"], "--ring-size", "1024")
    assert ran.returncode == 0
    assert sorted(sends(ran)) == list(range(60))


def test_set_up_is_recorded_though_work_requests_find_no_room(hard: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(hard), "sets_up_in_a_burst"], "--ring-size", "256")
    assert ran.returncode == 0
    assert sum(e.get("sends", 0) for e in ran.of("records_lost")) > 0
    assert len(ran.of("qp_created")) == 51
    assert len(ran.of("mr_registered")) == 50


def test_an_atomic_on_a_datagram_qp_harms_nothing(hard: Path, tmp_path: Path) -> None:
    """The device refuses it, or not; the recorder must have room for the address and the operands."""
    ran = record(tmp_path / "x", [str(hard), "atomics_on_datagrams"])
    assert ran.returncode == 0
    assert ran.journal.problems == []
    assert not ran.of("records_lost")
    one, two = ran.of("wr_posted")
    assert (one["wr_id"], one["compare"], one["swap_add"]) == (1, 5, 6)
    assert [s["length"] for s in one["sges"]] == [8, 0]
    assert (two["wr_id"], two["length"]) == (2, 0)


@pytest.mark.parametrize(("kib", "fits"), [(1000, True), (4, False)])
def test_a_limit_of_the_size_of_files_ends_no_program(
    hard: Path, tmp_path: Path, kib: int, fits: bool
) -> None:
    ran = record(tmp_path / "x", [str(hard), "limits_files", str(kib)])
    assert ran.returncode == 0  # not by SIGXFSZ
    assert sends(ran) == ([1] if fits else [])
    if not fits:
        assert "no room for its rings" in ran.one("not_recorded")["what"]


def test_a_library_that_is_not_there_stays_so(hard: Path, tmp_path: Path) -> None:
    """By a weak reference, by dlsym and by dlvsym: the wrapper is not found in its place."""
    ran = record(tmp_path / "x", [str(hard), "asks_for_a_library"])
    assert (ran.returncode, ran.stdout) == (0, "")
    assert sends(ran) == [1]


def test_a_library_that_is_loaded_again_elsewhere_is_recorded(loader: Path, tmp_path: Path) -> None:
    ran = record(
        tmp_path / "x",
        [str(loader), "loads_again", str(loader.parent / LIBRARY), str(loader.parent / "other" / LIBRARY)],
    )
    assert ran.returncode == 0
    assert sends(ran) == [0, 1, 2, 3]
    assert len(ran.of("qp_destroyed")) == 4


def test_of_two_copies_of_a_library_each_keeps_its_own_calls(loader: Path, tmp_path: Path) -> None:
    other = loader.parent / "other" / LIBRARY
    ran = record(tmp_path / "x", [str(loader), "loads_both", str(loader.parent / LIBRARY), str(other)])
    assert ran.returncode == 0
    assert sends(ran) == [0, 2, 4]
    # What is not recorded is said.
    assert str(other) in ran.of("not_recorded")[0]["what"]
    assert str(other) in ran.stderr


def test_a_plugin_that_is_linked_with_the_library_is_recorded(loader: Path, tmp_path: Path) -> None:
    ran = record(tmp_path / "x", [str(loader), "plugs_in", str(loader.parent / "plugin.so")])
    assert ran.returncode == 0
    assert sends(ran) == [7]


def test_what_binds_past_the_recorder_is_named(loader: Path, tmp_path: Path) -> None:
    plugin = loader.parent / "plugin.so"
    ran = record(tmp_path / "x", [str(loader), "plugs_in_deep", str(plugin)])
    assert ran.returncode == 0
    assert sends(ran) == []
    assert "RTLD_DEEPBIND" in ran.one("not_recorded")["what"]
    assert str(plugin) in ran.stderr


def test_another_preloaded_library_is_not_passed_over(hard: Path, tmp_path: Path) -> None:
    other = compiled(tmp_path / "other.so", "plugin.c", "-DOTHER", "-fPIC", "-shared")
    ran = record(tmp_path / "x", [str(hard), "atomics_on_datagrams"], env={"LD_PRELOAD": str(other)})
    assert (ran.returncode, ran.stdout) == (0, "the other one saw it\n")
    assert sends(ran) == [1, 2]


@pytest.mark.parametrize("checked", ["address", "thread"])
def test_a_program_with_a_sanitizer_runs_and_is_recorded(program: Path, tmp_path: Path, checked: str) -> None:
    built = subprocess.run(
        [
            *(str(compiler()), "-g", f"-fsanitize={checked}", "-o", str(tmp_path / "checked")),
            *(str(STUB / "program.c"), str(program.parent / LIBRARY), f"-Wl,-rpath,{program.parent}", "-ldl"),
        ],
        capture_output=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"this compiler has no -fsanitize={checked}")
    # The program leaves what it made; that is not what is looked for.
    environment = {"ASAN_OPTIONS": "detect_leaks=0"}
    plain = subprocess.run(
        [str(tmp_path / "checked"), "bad_in_the_middle"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if plain.returncode:
        pytest.skip(f"-fsanitize={checked} does not run here: {plain.stderr[:200]}")
    # Within a shell, which has no sanitizer.
    ran = record(
        tmp_path / "x", ["sh", "-c", f"{tmp_path / 'checked'} bad_in_the_middle"], "--quiet", env=environment
    )
    assert (ran.returncode, ran.stderr) == (0, plain.stderr)
    assert sends(ran) == [0, 1, 0xBAD, 3, 4, 5]


def test_a_small_memory_for_rings_is_enough(hard: Path, tmp_path: Path, root: None) -> None:
    """As in a container: /dev/shm has no room for four processes; their rings go beside the journal."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare (apt-get install util-linux)")
    programs = " & ".join([f"{hard} stays"] * 4)
    words = " ".join(recorder(tmp_path / "x", "--quiet")) + f" sh -c '{programs} & wait'"
    script = f"mount -t tmpfs -o size=24m tmpfs /dev/shm && {words}"
    done = subprocess.run(
        [unshare, "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "mount" in done.stderr:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
    journal = read_journal(tmp_path / "x")
    assert not journal.of("not_recorded", "records_lost")
    assert sorted(e["wr_id"] for e in journal.of("wr_posted")) == sorted([*range(20)] * 4)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_process_that_stays_behind_is_named_though_it_opened_nothing(tmp_path: Path) -> None:
    ran = record(tmp_path / "x", ["sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $!"])
    pid = int(ran.stdout)
    os.kill(pid, 9)
    assert ran.returncode == 0
    assert re.search(rf"continue without being recorded: {pid}\b", ran.stderr)
    assert [e.pid for e in ran.of("not_recorded")] == [pid]


def test_queues_that_efa_hands_to_the_program_are_named(program: Path, tmp_path: Path) -> None:
    (tmp_path / "efa.map").write_text("EFA_1.4 { global: efadv_query_qp_wqs; local: *; };\n")
    library = compiled(
        tmp_path / "libefa.so.1",
        "efa.c",
        *("-fPIC", "-shared", "-Wl,-soname,libefa.so.1", f"-Wl,--version-script={tmp_path / 'efa.map'}"),
    )
    verbs = program.parent / LIBRARY
    paths = f"-Wl,-rpath,{tmp_path}:{verbs.parent}"
    direct = compiled(tmp_path / "efa_direct", "efa_direct.c", str(library), str(verbs), paths)
    assert subprocess.run([str(direct)], check=False).returncode == 0
    ran = record(tmp_path / "x", [str(direct)])
    assert ran.returncode == 0
    assert "efadv_query_qp_wqs" in ran.one("not_recorded")["what"]
    # What the program posts by itself takes PSNs, too: those behind it are not certain.
    assert [event.get("psn") for event in ran.of("wr_posted")] == [100, None]
