"""fedpatch as users install it: from a wheel, without its source, beside another project's package `shared`."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedpatch.shared import __version__
from tests.support.paths import ROOT

PACKAGES = ("coordinator", "device_agent", "relay", "shared", "simulator")
PARTS = (*PACKAGES, "src", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
EXTRAS = ("", "torch", "onnx", "agent", "console", "coordinator", "demo", "simulator", "notebook", "otel", "postgresql")
COMMANDS = ("fedpatch", "fedpatch-agent")


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and another project's package `shared`, and an empty working folder."""

    environment: Path
    folder: Path

    def run(self, *words: object, code: int = 0) -> str:
        """Run a program, which must end with `code`; return its output."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("FEDPATCH_", "PYTHON"))}
        ours |= {"PATH": f"{self.environment / 'bin'}:{os.environ['PATH']}", "TERM": "dumb"}
        done = subprocess.run(
            [self.environment / "bin" / str(words[0]), *map(str, words[1:])],
            cwd=self.folder,
            env=ours,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


def _copy_source(to: Path) -> None:
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, to / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy(ROOT / part, to / part)


def _build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the source, which is deleted afterwards."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    _copy_source(source)
    (source / "tests").mkdir()
    (source / "tests/test_of_checkout.py").touch()
    built = _build(source, out)
    assert built.returncode == 0, built.stdout + built.stderr
    shutil.rmtree(source)
    assert [path.name for path in out.glob("*.tar.gz")] == [f"fedpatch-{__version__}.tar.gz"]
    (path,) = out.glob("*.whl")
    return path


@pytest.mark.slow
def test_a_wheelhouse_has_the_same_wheel(wheel: Path, tmp_path: Path):
    """Hosts get the same files as users."""
    program = ROOT / "ansible" / "wheelhouse.py"
    build = f"import pathlib, runpy, sys\nrunpy.run_path({str(program)!r})['_own_wheel'](pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], check=True)
    (made,) = tmp_path.glob("*.whl")
    assert zipfile.ZipFile(made).namelist() == zipfile.ZipFile(wheel).namelist()


def test_wheelhouse_pins_a_task_that_depends_on_fedpatch_without_fedpatch(tmp_path: Path):
    """The wheel of fedpatch is the host's program, not one of its libraries; no index has it."""
    for name, needs in (("fedpatch", ""), ("room_task", "Requires-Dist: fedpatch\n")):
        with zipfile.ZipFile(tmp_path / f"{name}-0.1.0-py3-none-any.whl", "w") as made:
            info = f"{name}-0.1.0.dist-info"
            made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n{needs}")
            made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            made.writestr(f"{info}/RECORD", "")
    project = '[project]\nname = "fedpatch"\nversion = "0.1.0"\n[project.optional-dependencies]\nagent = []\ncoordinator = []\n'
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "constraints.txt").touch()
    program = runpy.run_path(str(ROOT / "ansible" / "wheelhouse.py"))
    program["_resolve"].__globals__["ROOT"] = tmp_path
    host = program["Host"]("aarch64", "3.11", ("room-task",), ("--no-index",))
    assert program["_resolve"](host, tmp_path) == "room-task==0.1.0\n"


def _environment(place: Path, *install: object) -> Installed:
    venv.create(place / "environment", with_pip=False)
    python = place / "environment" / "bin" / "python"
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-warn-script-location",
        *install,
    ]
    # With PYTHONPATH, pip would treat the source there as installed.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(word) for word in command], env=ours, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = place / "folder"
    folder.mkdir()
    return Installed(place / "environment", folder)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel alone; its dependencies come from the environment of the tests, whose own fedpatch comes after it."""
    made = _environment(tmp_path_factory.mktemp("installed"), "--no-index", "--no-deps", wheel)
    (site,) = made.environment.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (site / "shared.py").write_text("OWNER = 'another project'\n")
    return made


def _product_files() -> set[str]:
    """Paths of all files of the product, as they are named below site-packages."""
    own = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "fedpatch").glob("*") if path.is_file()}
    rooms = {
        Path("fedpatch") / path.relative_to(ROOT)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return {path.as_posix() for path in own | rooms}


@pytest.mark.medium
def test_the_wheel_holds_the_package_fedpatch_and_nothing_else(wheel: Path):
    """All modules, templates and units, and py.typed, which marks them as typed."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"fedpatch", f"fedpatch-{__version__}.dist-info"}
    assert "fedpatch/py.typed" in names
    assert {name for name in names if ".dist-info/" not in name} == _product_files()


def test_the_source_distribution_holds_the_package_fedpatch_and_nothing_else(wheel: Path):
    """It has real files in place of the links of a checkout, and nothing of other folders."""
    with tarfile.open(wheel.with_name(f"fedpatch-{__version__}.tar.gz")) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert not [member.name for member in members if member.issym() or member.islnk()]
    made = {"PKG-INFO", "setup.cfg"}
    product = {f"src/{name}" for name in _product_files()}
    assert {name for name in names if ".egg-info/" not in name} - made == product | set(PARTS) - {*PACKAGES, "src"}


def test_a_checkout_without_symbolic_links_builds_no_wheel_and_one_sentence_has_the_remedy(tmp_path: Path):
    """`git clone -c core.symlinks=false` writes the target of a link into a plain file."""
    source = tmp_path / "source"
    source.mkdir()
    _copy_source(source)
    link = source / "src/fedpatch/relay"
    link.unlink()
    link.write_text("../../relay")
    built = _build(source, tmp_path / "out")
    assert built.returncode != 0
    [sentence] = [line for line in (built.stdout + built.stderr).splitlines() if line.startswith("fedpatch: ")]
    assert "src/fedpatch/relay must be a symbolic link" in sentence and "git config core.symlinks true" in sentence
    assert not list(tmp_path.glob("out/*.whl"))


@pytest.mark.medium
def test_fedpatch_lives_beside_a_package_shared_of_another_project(installed: Installed):
    """Both are imported from one environment."""
    ask = "import shared, fedpatch; print(shared.OWNER, fedpatch.Task.__name__)"
    assert installed.run("python", "-c", ask) == "another project Task\n"


@pytest.mark.medium
def test_the_version_is_written_in_one_place(installed: Installed):
    for command in COMMANDS:
        assert installed.run(command, "--version") == f"{command} {__version__}\n"
    ask = "import importlib.metadata as known; print(known.version('fedpatch'))"
    assert installed.run("python", "-c", ask) == f"{__version__}\n"


def test_the_code_that_runs_is_the_wheels(installed: Installed):
    modules = [f"fedpatch.{package}" for package in PACKAGES]
    ask = f"import {', '.join(modules)}; print(*(one.__file__ for one in ({', '.join(modules)})))"
    for path in installed.run("python", "-c", ask).split():
        assert Path(path).is_relative_to(installed.environment)


@pytest.mark.parametrize(
    ("module", "name"), [("fedpatch", "fedpatch"), ("fedpatch.device_agent", "fedpatch-agent")], ids=COMMANDS
)
def test_python_m_does_what_the_command_does(installed: Installed, module, name):
    assert installed.run("python", "-m", module, "--version") == f"{name} {__version__}\n"


@pytest.mark.slow
@pytest.mark.system
def test_a_whole_fleet_is_played_from_the_wheel(installed: Installed):
    """Coordinator, broker, agents and their training processes."""
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    options = ("--devices", 2, "--rounds", 1, "--target-ua", "none", "--out", "demo", "--metrics", "none")
    played = json.loads(installed.run("fedpatch", "demo", "--json", *options))
    assert [one["outcome"] for one in played["rounds"]] == ["aggregated"]
    simulated = installed.run("fedpatch", "simulate", "--task", "digits", "--clients", 4, "--rounds", 1, "--json")
    assert len(json.loads(simulated.splitlines()[-1])["curve"]) == 2


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(installed: Installed, command, shell):
    """The script that `--show-completion` prints runs the command itself, which then lists its commands."""
    variable = f"_{command.replace('-', '_').upper()}_COMPLETE"
    script = _completion(installed, command, shell)
    assert command in script and variable in script


def _completion(installed: Installed, command: str, shell: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"_{command.replace('-', '_').upper()}_COMPLETE", f"source_{shell}")
        return installed.run(command)


def test_bash_completes_a_command(installed: Installed):
    """The script completes `fedpatch-agent stat` and a tab, as after `--install-completion`."""
    script = _completion(installed, "fedpatch-agent", "bash")
    press = 'COMP_WORDS=(fedpatch-agent stat) COMP_CWORD=1; _fedpatch_agent_completion fedpatch-agent; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{press}"],
        env={"PATH": f"{installed.environment / 'bin'}:{os.environ['PATH']}", "HOME": str(installed.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["status"], done.stderr


@pytest.mark.packages
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra or "none")
def test_every_extra_can_be_installed_in_an_empty_environment(wheel: Path, tmp_path: Path, extra: str):
    """The versions pinned in constraints.txt come from the package index; the modules of the extra can be imported."""
    wanted = f"fedpatch[{extra}] @ {wheel.as_uri()}" if extra else f"fedpatch @ {wheel.as_uri()}"
    made = _environment(tmp_path, "-c", ROOT / "constraints.txt", wanted)
    for command in COMMANDS:
        assert made.run(command, "--version") == f"{command} {__version__}\n"
    modules = {"torch": ("torch",), "onnx": ("onnx", "onnxruntime"), "agent": ("torch", "onnx", "jeepney")}
    modules |= {
        "coordinator": ("torch", "cryptography", "prometheus_client", "fedpatch.coordinator.report.load"),
        "console": ("fedpatch.coordinator.console.server",),
        "demo": ("amqtt", "sklearn"),
        "postgresql": ("psycopg", "fedpatch.coordinator.storage.database.postgresql"),
    }
    modules |= {
        "notebook": ("ipywidgets", "pandas"),
        "otel": ("opentelemetry.sdk",),
        "simulator": ("matplotlib", "fedpatch.simulator.cli", "sklearn"),
    }
    for module in modules.get(extra, ()):
        made.run("python", "-c", f"import {module}")


@pytest.mark.packages
@pytest.mark.timeout(1800)
def test_the_source_distribution_can_be_installed_too(wheel: Path, tmp_path: Path):
    """Without a wheel pip builds one, and fetches the build requirements."""
    made = _environment(tmp_path, "-c", ROOT / "constraints.txt", wheel.with_name(f"fedpatch-{__version__}.tar.gz"))
    for command in COMMANDS:
        assert made.run(command, "--version") == f"{command} {__version__}\n"
