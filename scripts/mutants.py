"""Change the code of one pure room, a little at a time, and find the changes that no test notices.

    make mutants ROOM=coordinator/cohort               a seeded sample of 500 changes
    python -m scripts.mutants coordinator/rounds --list
                                                       print what the last run found, test nothing

mutmut makes the changes ("mutants") in a copy of the checkout under build/mutants, and plays the tests that reach the changed
function. A run that was interrupted goes on where it stopped. A second run tests again only the mutants that survived, and
those of functions that have changed since. A change of nothing but a sentence for people is left out: tests compare facts,
not sentences. A change that mypy rejects is killed without a test. A change that needs more memory than MAX_DATA_BYTES, or many
times the processor time of its tests, is killed by that.

A survivor is either killed by a better test, or explained in tests/explained_mutants.toml. The exit code is 1 while there is
one that is neither.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.support.covered import pure_rooms
from tests.support.paths import ROOT

EXPLAINED = ROOT / "tests" / "explained_mutants.toml"
# Folders and files with the tests of a room; a room that is not named here has tests in the folder of its own name only.
TESTS = {
    "coordinator/aggregation": (
        *("coordinator/aggregation", "coordinator/strategies"),
        "coordinator/setting_conflicts/test_differential_privacy.py",
    ),
    "coordinator/buffered": ("coordinator/buffered", "coordinator/rounds"),
    "coordinator/cohort": ("coordinator/cohort", "coordinator/guard", "coordinator/rounds"),
    "coordinator/rounds": (
        *("coordinator/rounds", "coordinator/cohort"),
        *("coordinator/api/test_client.py", "coordinator/cli/test_other_metrics.py"),
        "coordinator/runtime/test_masked_rounds.py",
        "coordinator/runtime/test_signed_groups.py",
    ),
    "shared/tensors": (
        *("shared/tensors", "coordinator/aggregation", "relay/test_site_round.py"),
        *("test_honest_updates.py", "device_agent/training/test_local_update.py"),
    ),
    "shared/wire": ("shared/wire", "coordinator/test_plan_settings.py", "shared/task_checks/test_check_task.py"),
    "shared/masking": (
        *("shared/masking", "coordinator/masking", "device_agent/masking"),
        "coordinator/aggregation/test_masked_mean.py",
        "device_agent/runtime/test_revocations.py",
    ),
}
SETTINGS = """
[tool.mutmut]
source_paths = ["src/fedpatch"]
only_mutate = ["src/fedpatch/{room}/*"]
pytest_add_cli_args_test_selection = {tests}
also_copy = {others}
process_isolation = "forkserver"
timeout_multiplier = 5
"""
# Appended to tests/conftest.py. The first failure kills a mutant: quick tests run before properties, and Hypothesis does not
# search for a simpler example.
QUICK_TESTS = b"""
from hypothesis import Phase

settings.register_profile(
    "mutants", settings.get_profile("house"), phases=[Phase.explicit, Phase.generate], max_examples=25
)
settings.load_profile("mutants")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))
"""
# mutmut's exit codes for a mutant: its tests passed, it has no tests, the type checker rejects it.
SURVIVED, NO_TESTS, WRONG_TYPE = 0, 33, 37
# The private memory that each process may have: an endless loop over a growing list would stop the machine. RLIMIT_AS would
# also count the address space that torch reserves and never uses.
MAX_DATA_BYTES = 4 * 2**30
MUTMUT = (sys.executable, "-m", "mutmut", "run")
# Ignored errors of mypy: about copies of a function, mutmut's decorator, and conditions, which a test should check.
NO_ERRORS = {
    *("has-type", "ignore-without-code", "no-any-return", "no-redef", "unused-ignore", "var-annotated"),
    *("comparison-overlap", "redundant-expr", "truthy-bool"),
}


@dataclass(frozen=True)
class Mutant:
    """One change of one function.

    `name` is mutmut's. `function` and `change` name the mutant in tests/explained_mutants.toml: they stay the same when
    other lines of the file change.
    """

    name: str
    function: str
    change: str
    only_wording: bool
    exit_code: int | None


def copy_checkout(tree: Path, room: str) -> None:
    """Bring the copy under build/mutants up to date with the checkout.

    Only files with other content are written: from modification times, mutmut derives which results are still valid.

    Args:
        tree: The copy's folder; it is made if absent.
        room: The room to change, e.g. "coordinator/cohort".
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wanted: dict[Path, bytes] = {}
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file() and not source.is_symlink():
            top, *_ = Path(name).parts
            # src/fedpatch holds links to the five folders of packages; mutmut needs real files there.
            inside = (ROOT / "src" / "fedpatch" / top).is_symlink()
            wanted[Path("src", "fedpatch", name) if inside else Path(name)] = source.read_bytes()
    tests = [f"tests/{folder}" for folder in TESTS.get(room, (room,))]
    others = sorted({path.parts[0] for path in wanted} - {"src", "tests"})
    wanted[Path("tests", "conftest.py")] += QUICK_TESTS
    wanted[Path("pyproject.toml")] += SETTINGS.format(room=room, tests=tests, others=others).encode()
    for path in [
        path.relative_to(tree) for path in tree.rglob("*.py") if "mutants" not in path.relative_to(tree).parts
    ]:
        if path not in wanted:
            (tree / path).unlink()
    for path, content in wanted.items():
        copy = tree / path
        if not copy.exists() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    # mutmut copies a test only once, so it would not run a changed test.
    for name in ("tests", "docs"):
        shutil.rmtree(tree / "mutants" / name, ignore_errors=True)


def run_mutmut(tree: Path, *names: str, jobs: int) -> None:
    """Run mutmut on the named mutants, `jobs` at a time; its output goes to mutmut.log in `tree`.

    No process of it gets more private memory than MAX_DATA_BYTES.
    """

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))

    # With CI=true Hypothesis draws the same examples each time. A process forks for each mutant, and a fork loses threads.
    environment = {**os.environ, "CI": "true", "FEDPATCH_EXAMPLES": "100", "OMP_NUM_THREADS": "1"}
    with (tree / "mutmut.log").open("wb") as log:
        command = [*MUTMUT, "--max-children", str(jobs), *names]
        subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=log, check=False, preexec_fn=limit_memory)


def mark_wrong_types(tree: Path, room: str) -> None:
    """Give mutants that mypy rejects the result WRONG_TYPE: they need no test, since `make types` reports them."""
    folder = tree / "mutants"
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--output=json", f"src/fedpatch/{room}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    errors: dict[Path, set[tuple[int, str]]] = {}
    for error in map(json.loads, filter(str.strip, checked.stdout.splitlines())):
        if error["code"] not in NO_ERRORS:
            errors.setdefault(folder / error["file"], set()).add((error["line"], error["message"]))
    for meta in (folder / "src" / "fedpatch" / room).rglob("*.meta"):
        functions = dict(_functions(meta.with_suffix("")))
        texts = {
            name: {
                text
                for line, text in errors.get(meta.with_suffix(""), ())
                if node.lineno <= line <= (node.end_lineno or 0)
            }
            for name, node in functions.items()
        }
        data = json.loads(meta.read_bytes())
        exit_codes: dict[str, int | None] = data["exit_code_by_key"]
        for name, exit_code in exit_codes.items():
            short = name.rpartition(".")[2]
            original = short.rpartition("__mutmut_")[0] + "__mutmut_orig"
            if exit_code in (None, SURVIVED, NO_TESTS) and texts[short] - texts[original]:
                exit_codes[name] = WRONG_TYPE
        meta.write_text(json.dumps(data, indent=4), "utf-8")


def read_mutants(tree: Path, room: str) -> list[Mutant]:
    """Return the mutants that mutmut has made of `room`, in the order of their names, with their results so far."""
    found: list[Mutant] = []
    for meta in sorted((tree / "mutants" / "src" / "fedpatch" / room).rglob("*.meta")):
        exit_codes: dict[str, int | None] = json.loads(meta.read_bytes())["exit_code_by_key"]
        functions = dict(_functions(meta.with_suffix("")))
        for name, exit_code in exit_codes.items():
            short = name.rpartition(".")[2]
            original, changed = functions[short.rpartition("__mutmut_")[0] + "__mutmut_orig"], functions[short]
            lines = list(difflib.ndiff(ast.unparse(original).splitlines()[1:], ast.unparse(changed).splitlines()[1:]))
            change = " -> ".join(" ".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
            path = name.rpartition(".")[0].removeprefix("fedpatch.")
            function = (
                f"{path}.{short.rpartition('__mutmut_')[0].removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"
            )
            found.append(
                Mutant(name, function, change, _without_sentences(original) == _without_sentences(changed), exit_code)
            )
    return found


def _functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name:
            yield node.name, node


class _Sentences(ast.NodeTransformer):
    """Empties the strings that are sentences: text with a space in it."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value.strip() else node


def _without_sentences(function: ast.FunctionDef) -> str:
    return ast.dump(ast.Module([_Sentences().visit(ast.parse(ast.unparse(one)).body[0]) for one in function.body], []))


def draw_sample(mutants: list[Mutant], *, size: int, seed: int) -> list[Mutant]:
    """Draw `size` mutants that change more than the wording of a sentence.

    The sample follows from the seed and the changes, so it stays the same when other functions change.
    """

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.function} {mutant.change}".encode()).digest()

    return sorted((mutant for mutant in mutants if not mutant.only_wording), key=rank)[:size]


def is_explained(mutant: Mutant, entries: list[dict[str, str]]) -> bool:
    """Return whether an entry of tests/explained_mutants.toml names the mutant: by its function, its change, or both."""
    before, _, after = mutant.change.partition(" -> ")
    for entry in entries:
        if entry.get("function", mutant.function) != mutant.function:
            continue
        old, _, new = entry.get("change", mutant.change).partition(" -> ")
        parts = before.split(old)
        if any(old.join(parts[:at]) + new + old.join(parts[at:]) == after for at in range(1, len(parts))):
            return True
    return False


def report(sample: list[Mutant]) -> tuple[str, bool]:
    """Return a text with unexplained survivors and totals, and whether all survivors are explained."""
    entries = tomllib.loads(EXPLAINED.read_text("utf-8"))["mutant"]
    alive = [mutant for mutant in sample if mutant.exit_code in (SURVIVED, NO_TESTS)]
    unexplained = [mutant for mutant in alive if not is_explained(mutant, entries)]
    untested = sum(mutant.exit_code is None for mutant in sample)
    text = "".join(
        f"{mutant.function}{' (no test reaches it)' if mutant.exit_code == NO_TESTS else ''}\n    {mutant.change}\n"
        for mutant in unexplained
    )
    sums = (
        f"{len(sample)} mutants: {len(sample) - len(alive) - untested} killed, {len(alive) - len(unexplained)} explained, "
        f"{len(unexplained)} survived, {untested} not tested\n"
    )
    return text + sums, not unexplained and not untested


def main() -> int:
    """Run the command; return 0 if each mutant of the sample is killed or explained."""
    rooms = [room.relative_to(ROOT).as_posix() for room in pure_rooms() if room.is_dir()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", choices=rooms, help="a pure room")
    parser.add_argument("--sample", type=int, default=500, metavar="N", help="mutants to test (500)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sample (0)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), metavar="N", help="processes at a time (one for each processor)"
    )
    parser.add_argument("--list", action="store_true", help="print the results that are there, test nothing")
    options = parser.parse_args()
    tree = ROOT / "build" / "mutants" / options.room.replace("/", "-")
    if not options.list:
        if find_spec("mutmut") is None:
            sys.stderr.write("mutmut is not installed; `make mutants ROOM=...` installs it\n")
            return 2
        copy_checkout(tree, options.room)
        # No mutant has this name: mutmut only makes the mutants and measures the tests.
        run_mutmut(tree, "none", jobs=options.jobs)
        mark_wrong_types(tree, options.room)
    sample = draw_sample(read_mutants(tree, options.room), size=options.sample, seed=options.seed)
    if not sample:
        sys.stderr.write(f"mutmut made no mutants; {tree / 'mutmut.log'} has its output\n")
        return 2
    if not options.list:
        to_test = [mutant.name for mutant in sample if mutant.exit_code in (None, SURVIVED, NO_TESTS)]
        run_mutmut(tree, *to_test, jobs=options.jobs)
        results = {mutant.name: mutant for mutant in read_mutants(tree, options.room)}
        sample = [results[mutant.name] for mutant in sample]
    text, done = report(sample)
    sys.stdout.write(text)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
