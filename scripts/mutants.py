"""Change modules in one place at a time, and print the changes that no test notices.

Cosmic Ray makes the changes: another number, < for <=, `and` for `or`, a loop that is not entered. The tests
run in copies of the files that git knows, without compiled modules; the work tree is left alone. Annotations
and docstrings are not changed. A change that nobody can notice (a faster way to the same result) is printed
too: read each one, and write a test for those that matter.

Example, with the tests in tests/wire:

    scripts/mutate rocekit/wire/psn.py

a hundred changes out of all, with tests named:

    scripts/mutate --most 100 rocekit/correlate/matching.py -- tests/correlate tests/journal

Cost: each change runs the tests until the first one fails.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parents[1]
CHANGES = re.compile(
    r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_Add|RShift_LShift|LShift_RShift"
    r"|BitOr_BitAnd|BitAnd_BitOr|BitXor_BitAnd)"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_Delete_\w+|AddNot|Replace(True|False|And|Or|Break|Continue)With\w+"
    r"|NumberReplacer|ZeroIterationForLoop)"
)
"""One change of each kind: the same tests notice Cosmic Ray's others, which cost as much again."""
PATIENCE = 4.0
"""A change is noticed, too, if it makes the tests take so many times as long."""
LEAST_S = 20.0


class _Meaning(ast.NodeTransformer):
    """Removes what does not change what a module does."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        # What is imported for the types only.
        if any(isinstance(part, ast.Name) and part.id == "TYPE_CHECKING" for part in ast.walk(node.test)):
            return ast.Pass()
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def meaning(code: str) -> str:
    """What a module does, for comparison."""
    return ast.dump(_Meaning().visit(ast.parse(code)))


def changes(modules: Sequence[Path], folder: Path) -> Iterator[MutationSpec]:
    """Each change, in the order of the lines."""
    with use_db(str(folder / "changes.sqlite")) as database:
        init(modules, database, {})
        found = [spec for item in database.work_items for spec in item.mutations]
    sources = {module: module.read_text() for module in modules}
    meanings = {module: meaning(source) for module, source in sources.items()}
    for spec in sorted(found, key=lambda spec: (str(spec.module_path), spec.start_pos, spec.operator_name)):
        if not CHANGES.fullmatch(spec.operator_name):
            continue
        code = mutate_code(
            sources[spec.module_path], get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence
        )
        with contextlib.suppress(SyntaxError):
            if code is not None and meaning(code) != meanings[spec.module_path]:
                yield spec


def copy_to(folder: Path) -> None:
    """The files that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


class Tests:
    """The tests, in a copy of the project."""

    def __init__(self, copy: Path, tests: Sequence[str]) -> None:
        self.copy = copy
        self._command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        self._environment = {
            **os.environ,
            "ROCEKIT_COMPILED": "0",
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CI": "true",
        }

    def fail(self, limit_s: float | None) -> bool:
        """Whether one fails, or they take too long."""
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                self._command,
                cwd=self.copy,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                return process.wait(limit_s) != 0
            except subprocess.TimeoutExpired:
                return True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()

    def notice(self, spec: MutationSpec, limit_s: float) -> str | None:
        """Make a change and undo it. None where the tests fail; else what was changed."""
        path = self.copy / spec.module_path
        before = path.read_text()
        after = mutate_code(before, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
        path.write_text(after)
        try:
            return None if self.fail(limit_s) else difference(str(spec.module_path), before, after)
        finally:
            path.write_text(before)


def difference(name: str, before: str, after: str) -> str:
    import difflib

    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "\n".join(list(lines)[2:])


def arguments(words: Sequence[str]) -> argparse.Namespace:
    head, _, example = (__doc__ or "").partition("Example")
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description=head,
        epilog=f"Example{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own, _, tests = shlex.join(words).partition(" -- ")
    parser.add_argument("modules", nargs="+", type=Path, metavar="MODULE", help="a file in rocekit/")
    parser.add_argument("--most", type=int, metavar="N", help="try N changes, spread over all there are")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="copies to work in at a time (%(default)s)",
    )
    parser.add_argument(
        "--list",
        action="store_true",
        help="say which tests would run and how many changes there are, and end",
    )
    given = parser.parse_args(shlex.split(own))
    given.modules = [module.resolve().relative_to(ROOT) for module in given.modules]
    mirrored = [f"tests/{module.parts[1]}" for module in given.modules if len(module.parts) > 2]
    given.tests = (
        shlex.split(tests) or list(dict.fromkeys(mirrored)) or parser.error("name the tests behind --")
    )
    return given


def main(words: Sequence[str]) -> int:
    given = arguments(words)
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="rocekit-mutants-") as name:
        folder = Path(name)
        every = list(changes(given.modules, folder))
        step = max(1, -(-len(every) // given.most)) if given.most else 1
        chosen = every[::step]
        print(f"{len(chosen)} of {len(every)} changes, tried with {' '.join(given.tests)}", flush=True)
        if given.list:
            return 0
        free: SimpleQueue[Tests] = SimpleQueue()
        for number in range(given.jobs):
            copy = folder / str(number)
            copy.mkdir()
            copy_to(copy)
            free.put(Tests(copy, given.tests))
        first, began = free.get(), time.monotonic()
        if first.fail(None):
            print("the tests fail without any change", file=sys.stderr)
            return 2
        limit_s = max(LEAST_S, PATIENCE * (time.monotonic() - began))
        free.put(first)

        def attempt(spec: MutationSpec) -> str | None:
            tests = free.get()
            try:
                return tests.notice(spec, limit_s)
            finally:
                free.put(tests)

        survived = 0
        with ThreadPoolExecutor(given.jobs) as pool:
            for spec, unnoticed in zip(chosen, pool.map(attempt, chosen), strict=True):
                if unnoticed is not None:
                    survived += 1
                    print(f"\n{spec.module_path}:{spec.start_pos[0]}: not noticed\n{unnoticed}", flush=True)
    print(f"\n{survived} of {len(chosen)} changes were not noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
