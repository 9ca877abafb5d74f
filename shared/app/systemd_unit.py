"""The systemd units of this installation, of agent and coordinator: templates in their packages with the gaps filled in."""

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
# ProtectHome= makes these empty.
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
# What systemd, or its parsing of a command line, would take for something else than a character of a path.
_PLAIN_PATH = re.compile(r"/[\w./+,:=~-]*")
_FIRST_WITH_BACKOFF = 254


@dataclass(frozen=True)
class UnitService:
    """Which unit: `package` holds its template, `module` and `program` are its command, `name` is the service's."""

    package: str
    module: str
    program: str
    name: str


AGENT = UnitService(
    package="fedpatch.device_agent", module="fedpatch.device_agent", program="fedpatch-agent", name="fedpatch-agent"
)
COORDINATOR = UnitService(
    package="fedpatch.coordinator", module="fedpatch", program="fedpatch", name="fedpatch-coordinator"
)


@dataclass(frozen=True)
class Unit:
    """What the unit depends on. `program` is the command line's beginning; `needed` the directories that it is read from.

    `systemd` is the version that the unit is for. All paths are absolute.
    """

    service: UnitService
    user: str
    config: Path
    state_dir: Path
    program: tuple[str, ...]
    needed: tuple[Path, ...]
    systemd: int

    def text(self) -> str:
        """The unit file. UsageError for names that it cannot hold."""
        self._check()
        filled = {
            "EXEC": " ".join(self.program),
            "CONFIG": str(self.config),
            "ENV_FILE": str(self.config.with_suffix(".env")),
            "STATE_DIR": str(self.state_dir),
            "USER": self.user,
            "DIRECTORIES": "\n".join(self._directories()),
            "BACKOFF": "\n".join(self._backoff()),
            "HOME": "\n".join(self._home()),
        }
        template = (files(self.service.package) / f"systemd/{self.service.name}.service").read_text("utf-8")
        return re.sub(r"@([A-Z_]+)@", lambda gap: filled[gap[1]], template)

    def _check(self) -> None:
        if not _USER.fullmatch(self.user):
            raise UsageError(
                f"--user {self.user!r}: is no name for a system user; use a-z, 0-9, _ and -, beginning with a letter"
            )
        for path in (self.config, self.state_dir, *self.needed, *map(Path, self.program[:1])):
            if not _PLAIN_PATH.fullmatch(str(path)) or ".." in path.parts:
                raise UsageError(f"{str(path)!r}: a unit cannot hold this path; use letters, digits and ./+,:=~_- only")

    def _directories(self) -> list[str]:
        """Made by systemd where they are absent, and the user's own."""
        cache = f"CacheDirectory={self.service.name}"
        if self.state_dir.is_relative_to(_STATE_ROOT) and self.state_dir != _STATE_ROOT:
            name = self.state_dir.relative_to(_STATE_ROOT)
            return [f"StateDirectory={name}", "StateDirectoryMode=0750", cache]
        return [f"ReadWritePaths={self.state_dir}", cache]

    def _backoff(self) -> list[str]:
        if self.systemd < _FIRST_WITH_BACKOFF:
            return []
        return ["RestartSteps=6", "RestartMaxDelaySec=15min"]

    def _home(self) -> list[str]:
        """Homes are hidden, but for what the agent itself is made of."""
        within = sorted({path for path in (*self.needed, self.config, self.state_dir) if _in_a_home(path)})
        if not within:
            return ["ProtectHome=yes"]
        bound = [f"{'BindPaths' if path == self.state_dir else 'BindReadOnlyPaths'}={path}" for path in within]
        return [
            "# fedpatch is installed in a home: of all homes, no more than this is seen.",
            "ProtectHome=tmpfs",
            *bound,
        ]


def this_installation(service: UnitService) -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """`program` and `needed` of the Python that runs this."""
    script = Path(sys.executable).with_name(service.program)
    program = (str(script),) if script.exists() else (sys.executable, "-P", "-m", service.module)
    needed = {Path(sys.prefix), Path(sys.base_prefix), import_root(), Path(__file__).resolve().parents[2]}
    return program, tuple(sorted(needed))


def unit_of_this_installation(service: UnitService, *, user: str, config: Path, state_dir: Path) -> str:
    """The unit file for this machine's systemd. UsageError for names that it cannot hold."""
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
    """Of this machine, 0 where there is none."""
    program = shutil.which("systemctl")
    if program is None:
        return 0
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10.0, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.match(r"systemd (\d+)", told)
    return int(found[1]) if found else 0


def _in_a_home(path: Path) -> bool:
    return any(path.is_relative_to(home) for home in _HOMES)
