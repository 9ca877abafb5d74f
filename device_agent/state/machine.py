"""The machine on which a state directory was begun: a card that is copied into a second device brings its state along.

The serial number of the board names a machine, else the address of its first network card; a card on USB counts only if there
is no other. `/etc/machine-id` is on the card, so that each copy has it. The file has a digest only. A machine without both,
such as a container, is not checked.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.shared.app.files import read_state, refusals_of, write_atomic

MACHINE_NAME = "machine"
_SERIALS = ("/sys/firmware/devicetree/base/serial-number", "/proc/device-tree/serial-number")
_NETWORK = "/sys/class/net"


def machine_digest(root: Path = Path("/")) -> str:
    """Return the digest of this machine's name; "" if it has none.

    Args:
        root: Root of the file system to read in.
    """
    system = SysFs(root)
    for path in _SERIALS:
        if serial := (system.text(path) or "").strip("\0 "):
            return _digest(f"serial {serial}")
    for name in sorted(system.names(_NETWORK), key=lambda name: _is_plugged_in(system, name)):
        # Only a card of the machine itself has a device; type 1 is Ethernet and Wi-Fi, and 3 is a random address.
        card = f"{_NETWORK}/{name}"
        address = system.text(f"{card}/address")
        if address and system.exists(f"{card}/device") and system.text(f"{card}/addr_assign_type") in (None, "0"):
            return _digest(f"address {address}")
    return ""


def _is_plugged_in(system: SysFs, name: str) -> bool:
    """Return whether a network card is on USB, such as that of a dock, which comes and goes."""
    return system.target_name(f"{_NETWORK}/{name}/device/subsystem") == "usb"


def clone_problem(directory: Path, root: Path = Path("/")) -> tuple[str, str] | None:
    """Return problem and remedy for a state directory that another machine began; None without a problem.

    Args:
        directory: The state directory; it may be absent.
        root: Root of the file system to read in.

    Raises:
        StateUnreadable: The file cannot be read now.
    """
    path = directory / MACHINE_NAME
    here, stored = machine_digest(root), _stored(path)
    if not here or not stored or stored == here:
        return None
    problem = (
        f"{directory} was begun on another machine: was its card cloned? Patch, daily limits and privacy account are of that "
        "device"
    )
    remedy = (
        "give a clone its own --device-id (and certificate) and an empty --state-dir; if the card was moved, or the board "
        f"replaced, delete {path}"
    )
    return problem, remedy


def note_machine(directory: Path, root: Path = Path("/")) -> None:
    """Store this machine's digest in a state directory that has none, or a damaged one.

    Args:
        directory: The state directory, which the caller has locked.
        root: Root of the file system to read in.

    Raises:
        StateError: The disk refuses.
    """
    path = directory / MACHINE_NAME
    digest = machine_digest(root)
    if not digest:
        return
    with refusals_of(path):
        if not _stored(path):
            write_atomic(path, f"{digest}\n".encode())


def _stored(path: Path) -> str:
    """Return the digest in a file; "" if there is none, or something else."""
    try:
        text = read_state(path).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    return text if re.fullmatch("[0-9a-f]{64}", text) else ""


def _digest(text: str) -> str:
    return hashlib.sha256(f"fedpatch machine: {text}".encode()).hexdigest()
