"""Coverage-guided fuzzing of the decoders with atheris: `make fuzz`, or python -m tests.fuzz.guided --help.

Each decoder is a target of its own, in a process of its own: libFuzzer ends a process at the first crash.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_INSTRUMENTED = ["fedpatch"]
_RSS_LIMIT_MIB = 1024
_SLOWEST_S = 20
_FIGURES = re.compile(r"stat::(number_of_executed_units|average_exec_per_sec|peak_rss_mb):\s+(\d+)")
_COVERAGE = re.compile(r"DONE\s+cov: (\d+)")

log = logging.getLogger("fedpatch.fuzz")


def decoders() -> dict[str, Any]:
    """Return all targets by their names on a command line; imported only here, after instrumentation has begun."""
    from tests.fuzz.decoders import WIRE_DECODERS
    from tests.fuzz.file_decoders import FILE_DECODERS

    return {re.sub(r"[^a-zA-Z]+", "-", one.name): one for one in (*WIRE_DECODERS, *FILE_DECODERS)}


def fuzz_one(name: str, seconds: int, out: Path) -> None:
    """Fuzz one target in this process, and end the process; a crash is written to `out`/crashes."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=_INSTRUMENTED):
        target = decoders()[name]
    from tests.fuzz.decoders import attempt

    corpus = out / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in (*target.seeds, *target.found):
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    limits = [f"-max_total_time={seconds}", f"-rss_limit_mb={_RSS_LIMIT_MIB}", f"-timeout={_SLOWEST_S}"]
    options = [str(corpus), *limits, f"-artifact_prefix={out}/crashes/{name}-", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options], lambda data: attempt(target, data))
    atheris.Fuzz()


def fuzz(names: Sequence[str], seconds: int, out: Path) -> int:
    """Fuzz all targets in turn; return the number of targets that crashed or that no coverage guided.

    The command to replay a crash is printed and saved.
    """
    crashes = out / "crashes"
    crashes.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        before = set(crashes.iterdir())
        command = [sys.executable, "-m", __spec__.name, "--here", "--seconds", str(seconds), "--out", str(out), name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output = done.stdout.decode("utf-8", "replace")
        figures = dict(_FIGURES.findall(output))
        covered = _COVERAGE.search(output)
        log.info(
            "%-24s %5s branches covered, %9s executions, %6s per second, %5s MiB%s",
            name,
            covered[1] if covered else "no",
            figures.get("number_of_executed_units", "?"),
            figures.get("average_exec_per_sec", "?"),
            figures.get("peak_rss_mb", "?"),
            ": FAILED" if done.returncode else "",
        )
        if not covered and not done.returncode:
            log.error("  no module of the target is instrumented, so its inputs are random")
        failed += bool(done.returncode) or not covered
        for crash in sorted(set(crashes.iterdir()) - before):
            replay = shlex.join([sys.executable, "-m", __spec__.name, "--replay", str(crash), name])
            crash.with_name(crash.name + ".txt").write_text(f"{replay}\n\n{output}", encoding="utf-8")
            log.error("  %s\n  %s", crash, replay)
        if done.returncode and not set(crashes.iterdir()) - before:
            log.error("%s", output[-2000:])
    return failed


def main() -> int:
    """Run the command, and return the exit code: 1 if a target crashed, or was not instrumented."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="which decoders (default: all)")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target (default: 60)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="corpus and crashes (default: build/fuzz)")
    parser.add_argument("--list", action="store_true", help="list the targets")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="decode this file once, without atheris")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if chosen.here:
        logging.disable()  # each damaged file would log a warning, thousands in all
        fuzz_one(chosen.targets[0], chosen.seconds, chosen.out.absolute())
        return 0
    known = decoders()
    if unknown := sorted(set(chosen.targets) - known.keys()):
        parser.error(f"unknown target {', '.join(unknown)} (known: {', '.join(known)})")
    if chosen.list:
        log.info("\n".join(known))
        return 0
    if chosen.replay:
        from tests.fuzz.decoders import attempt

        log.info("%r", attempt(known[chosen.targets[0]], chosen.replay.read_bytes()))
        return 0
    return 1 if fuzz(chosen.targets or list(known), chosen.seconds, chosen.out.absolute()) else 0


if __name__ == "__main__":
    sys.exit(main())
