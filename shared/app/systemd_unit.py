"""systemd units of agent, coordinator and relay, filled in for this installation from templates in their packages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from fedpatch.shared.app.files import import_root
from fedpatch.shared.errors import UsageError

_STATE_ROOT = Path("/var/lib")
# ProtectHome= hides these.
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
# Paths without characters that have a meaning to systemd or to its parser of command lines.
_PLAIN_PATH = re.compile(r"/[\w./+,:=~-]*")
_FIRST_WITH_BACKOFF = 254
# Lines of every service's unit.
_CONFINEMENT = Path(__file__).with_name("confinement.conf")


@dataclass(frozen=True)
class UnitService:
    """A service: `package` holds its template, `module` and `program` are its command, `name` is its name.

    `state_mode` is the mode of its state directory.
    """

    package: str
    module: str
    program: str
    name: str
    state_mode: str = "0750"


AGENT = UnitService(
    package="fedpatch.device_agent",
    module="fedpatch.device_agent",
    program="fedpatch-agent",
    name="fedpatch-agent",
    # Private patches: the group passes through to the personal models, and lists nothing (shared.diagnostics.host).
    state_mode="0710",
)
COORDINATOR = UnitService(
    package="fedpatch.coordinator", module="fedpatch", program="fedpatch", name="fedpatch-coordinator"
)
RELAY = UnitService(package="fedpatch.relay", module="fedpatch.relay", program="fedpatch-relay", name="fedpatch-relay")
BUS = UnitService(
    package="fedpatch.device_agent", module="fedpatch.device_agent", program="fedpatch-agent", name="fedpatch-bus"
)
SERVICES = {"agent": AGENT, "bus": BUS, "coordinator": COORDINATOR, "relay": RELAY}


@dataclass(frozen=True)
class Unit:
    """Values of a unit file. All paths are absolute.

    Attributes:
        service: The service.
        user: System user that it runs as.
        config: Configuration file.
        state_dir: State directory.
        program: Beginning of the command line.
        needed: Directories from which the program is read.
        systemd: Version of systemd that the unit is for.
    """

    service: UnitService
    user: str
    config: Path
    state_dir: Path
    program: tuple[str, ...]
    needed: tuple[Path, ...]
    systemd: int

    def text(self) -> str:
        """Return the unit file. Raises UsageError for a user or path that a unit file cannot hold."""
        self._check()
        filled = {
            "EXEC": " ".join(self.program),
            "CONFIG": str(self.config),
            "ENV_FILE": str(self.config.with_suffix(".env")),
            "STATE_DIR": str(self.state_dir),
            "USER": self.user,
            "DIRECTORIES": "\n".join(self._directories()),
            "BACKOFF": "\n".join(self._backoff()),
            "CONFINEMENT": "\n".join([_CONFINEMENT.read_text("utf-8").rstrip(), *self._home()]),
        }
        template = (files(self.service.package) / f"systemd/{self.service.name}.service").read_text("utf-8")
        return re.sub(r"@([A-Z_]+)@", lambda gap: filled[gap[1]], template)

    def _check(self) -> None:
        if not _USER.fullmatch(self.user):
            raise UsageError(
                f"--user {self.user!r}: is not a system user's name; use a-z, 0-9, _ and -, beginning with a letter"
            )
        for path in (self.config, self.state_dir, *self.needed, *map(Path, self.program[:1])):
            if not _PLAIN_PATH.fullmatch(str(path)) or ".." in path.parts:
                raise UsageError(f"{str(path)!r}: a unit cannot hold this path; use letters, digits and ./+,:=~_- only")

    def _directories(self) -> list[str]:
        """Return the lines of directories that systemd makes for the user, or lets the service write to."""
        cache = f"CacheDirectory={self.service.name}"
        if self.state_dir.is_relative_to(_STATE_ROOT) and self.state_dir != _STATE_ROOT:
            name = self.state_dir.relative_to(_STATE_ROOT)
            return [f"StateDirectory={name}", f"StateDirectoryMode={self.service.state_mode}", cache]
        return [f"ReadWritePaths={self.state_dir}", cache]

    def _backoff(self) -> list[str]:
        if self.systemd < _FIRST_WITH_BACKOFF:
            return []
        return ["RestartSteps=6", "RestartMaxDelaySec=15min"]

    def _home(self) -> list[str]:
        """Return the lines that hide all homes, except directories that the program itself needs."""
        within = sorted({path for path in (*self.needed, self.config, self.state_dir) if _in_a_home(path)})
        bound = [f"{'BindPaths' if path == self.state_dir else 'BindReadOnlyPaths'}={path}" for path in within]
        # With ProtectHome=yes a further BindReadOnlyPaths of the owner would have no effect.
        return [
            "# Of all homes, only the paths of BindPaths and BindReadOnlyPaths are visible.",
            "ProtectHome=tmpfs",
            *bound,
        ]


def this_installation(service: UnitService) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return `program` and `needed` (see `Unit`) of the running Python."""
    script = Path(sys.executable).with_name(service.program)
    program = (str(script),) if script.exists() else (sys.executable, "-P", "-m", service.module)
    needed = {Path(sys.prefix), Path(sys.base_prefix), import_root(), Path(__file__).resolve().parents[2]}
    return program, tuple(sorted(needed))


def unit_of_this_installation(service: UnitService, *, user: str, config: Path, state_dir: Path) -> str:
    """Return the unit file for this installation and this machine's systemd.

    Args:
        service: One of SERVICES.
        user: System user that the service runs as.

    Returns:
        Text of the unit file.

    Raises:
        UsageError: The unit file cannot hold the user or a path.
    """
    program, needed = this_installation(service)
    return Unit(
        service=service,
        user=user,
        config=config.expanduser().absolute(),
        state_dir=state_dir.expanduser().absolute(),
        program=program,
        needed=needed,
        systemd=systemd_version(),
    ).text()


def systemd_version() -> int:
    """Return the version of this machine's systemd; 0 if there is none."""
    program = shutil.which("systemctl")
    if program is None:
        return 0
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10.0, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.match(r"systemd (\d+)", output)
    return int(match[1]) if match else 0


def _in_a_home(path: Path) -> bool:
    return any(path.is_relative_to(home) for home in _HOMES)
