"""A state directory that begins anew although the device has worked before, as below a disk that is not mounted.

The broker retains the last state of each device, with the nonce of that start of its agent. The directory has the nonces of its
own starts. A device whose last start is not among them was last started with another directory, or with what was in this one
before it was emptied or replaced by an older copy.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from fedpatch.device_agent.policy.usage import USAGE_NAME
from fedpatch.device_agent.state.machine import MACHINE_NAME
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME
from fedpatch.device_agent.state.storage_check import PATCHES
from fedpatch.shared.wire.messages import DeviceState


def is_foreign(last: DeviceState | None, boots: Collection[str]) -> bool:
    """Return whether the last start of a device has ended and is not one of these starts.

    Args:
        last: The last state of the device that the broker retains; None for none.
        boots: Nonces of the starts in a state directory.
    """
    return last is not None and not last.online and last.boot not in boots


def may_be_lost(directory: Path, boots: Collection[str]) -> bool:
    """Return whether a directory may have lost state: it has starts, or nothing that an agent or a restored backup leaves.

    A power cut may take the starts alone, and a backup has none: such a directory has its state. Of a directory that cannot be
    read nothing is known.
    """
    try:
        names = set(os.listdir(directory))
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return bool(boots) or names.isdisjoint((PATCHES, USAGE_NAME, ACCOUNT_NAME, MACHINE_NAME))


def loss_in_words(device: str, directory: Path) -> tuple[str, str]:
    """Return the problem of a directory without the last start of its device, and the remedy."""
    problem = (
        f"{device} was last started with another state directory than {directory}, or what was there is lost or old, with "
        "the daily limits, the patch and the privacy account"
    )
    remedy = (
        "name that directory (--state-dir), mount its disk, or restore a backup (fedpatch-agent restore); nothing, if the "
        "device is new or shall begin anew"
    )
    return problem, remedy
