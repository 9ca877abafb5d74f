"""Rounds of Flower's deployment engine: `python -m benchmarks.peers.flower_deployment CLIENTS SHAPES`.

One SuperLink, CLIENTS SuperNodes and the app of flower_app, all with Flower's defaults except the ports and no TLS.
SHAPES is JSON: the shapes of the model's tensors. After the first round it prints the numbers of the processes that
coordinate (SuperLink and ServerApp); then it runs a round for each line on stdin.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.device.clocks import family

BIN = Path(sys.executable).parent
HOST = "127.0.0.1"

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "exchange"
version = "1.0.0"
description = "An exchange without training"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "benchmark"

[tool.flwr.app.components]
serverapp = "exchange.app:server"
clientapp = "exchange.app:client"

[tool.flwr.app.config]
terms = ""
"""


def main() -> None:
    """Run until stdin ends."""
    clients, shapes = int(sys.argv[1]), json.loads(sys.argv[2])
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flower-")))
        os.environ["FLWR_HOME"] = str(folder / "home")
        os.environ["PATH"] = f"{BIN}:{os.environ.get('PATH', '')}"
        gate = stack.enter_context(socket.socket(socket.AF_UNIX))
        gate.bind(str(folder / "gate"))
        gate.listen()
        link, port = _start_superlink(stack, folder)
        for client in range(clients):
            line = ["flower-supernode", "--insecure", "--superlink", f"{HOST}:{port}", "--port", str(_free_port())]
            line += ["--node-config", f"partition-id={client} num-partitions={clients}"]
            stack.enter_context(_running(folder / f"node-{client}.log", line, folder / f"node-{client}"))
        _submit(folder, port, {"gate": str(folder / "gate"), "clients": clients, "shapes": shapes})
        gate.settimeout(300.0)
        try:
            connection, _ = gate.accept()
        except TimeoutError:
            sys.stderr.write((folder / "link.log").read_text("utf-8", "replace")[-2000:])
            raise
        lines = stack.enter_context(connection.makefile("rw"))
        lines.readline()
        _say({"pids": family(link)})
        while sys.stdin.readline():
            lines.write("\n")
            lines.flush()
            _say({"round": int(lines.readline())})


def _start_superlink(stack: ExitStack, folder: Path) -> tuple[int, int]:
    port = _free_port()
    line = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
    link = stack.enter_context(_running(folder / "link.log", line, folder / "link"))
    give_up_at = time.monotonic() + 60.0
    while time.monotonic() < give_up_at and link.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return link.pid, port
        time.sleep(0.1)
    sys.exit(f"the SuperLink did not start: {(folder / 'link.log').read_text('utf-8', 'replace')[-500:]}")


def _submit(folder: Path, port: int, terms: dict[str, object]) -> None:
    app, home = folder / "exchange", folder / "home"
    (app / "exchange").mkdir(parents=True)
    home.mkdir(exist_ok=True)
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "exchange" / "__init__.py").write_text("")
    shutil.copyfile(Path(__file__).with_name("flower_app.py"), app / "exchange" / "app.py")
    (folder / "terms.json").write_text(json.dumps(terms))
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HOST}:{port}"\ninsecure = true\n'
    )
    line = ["flwr", "run", str(app), "here", "--run-config", f'terms="{folder / "terms.json"}"']
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"flwr run: {' '.join((done.stdout + done.stderr).split())[-800:]}")


@contextmanager
def _running(log: Path, line: Sequence[str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir(exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(line, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=directory)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
