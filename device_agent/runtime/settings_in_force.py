"""The settings that a running agent follows: their description for status.json, and their second reading.

SIGHUP (`systemctl reload`) reads the preferences again. Other settings change at the next start: they are in other processes,
in the connection or in the state directory already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.config.load import Source, public_values
from fedpatch.shared.errors import ConfigError

_log = logging.getLogger("fedpatch.agent")

PREFERENCES = frozenset(one.name for one in settings_of(PreferenceSettings))
"""Settings that SIGHUP reads again."""


class SettingsInForce:
    """The settings of one agent.

    Args:
        settings: The settings that the agent began with.
        source: Their places; None where they cannot be read again.
    """

    def __init__(self, settings: AgentSettings, source: Source[AgentSettings] | None = None) -> None:
        self._settings = settings
        self._source = source

    def status(self) -> dict[str, Any]:
        """Return the file, the settings in force, and the names of those that an option or a variable has set."""
        source = self._source
        if source is None or source.file is None:
            return {"file": "", "values": public_values(self._settings), "overridden": []}
        return {
            "file": str(source.file.absolute()),
            "values": public_values(self._settings),
            "overridden": overridden(source),
        }

    def reload(self, use: Callable[[AgentSettings], None]) -> None:
        """Read the settings again, and give the agent its new preferences; with a problem the former ones stay.

        Args:
            use: Takes settings of which only the preferences may differ.
        """
        if self._source is None:
            _log.warning("settings: they cannot be read again; restart the agent")
            return
        try:
            read = self._source.load().settings
        except ConfigError as error:
            for problem in error.problems:
                _log.error("settings: %s", problem)
            _log.error("settings: the former preferences stay in force; correct the file, then reload again")
            return
        changed = changes(public_values(self._settings), public_values(read))
        now = {name: getattr(read, name) for name in changed if name in PREFERENCES}
        later = sorted(changed.keys() - PREFERENCES)
        if now:
            self._settings = replace(self._settings, **now)
            use(self._settings)
        _log.info("settings: read again; changed preferences: %s", ", ".join(sorted(now)) or "none")
        if later:
            _log.warning("settings: restart the agent to use the changed %s", ", ".join(later))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of the settings that differ; a setting that one side does not have is left out."""
    return {name: (value, after[name]) for name, value in before.items() if name in after and after[name] != value}


def overridden(source: Source[AgentSettings]) -> list[str]:
    """Return the names of settings that an option or a variable has set, so that the file does not count."""
    prefix = source.cls.env_prefix
    known = [one.name for one in settings_of(source.cls)]
    return [name for name in known if source.flags.get(name) is not None or source.environ.get(prefix + name.upper())]
