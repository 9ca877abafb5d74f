"""Access control of the console: token, sessions, CSRF token, and the origin of a request.

A session is a random number in a cookie that scripts cannot read and that other sites do not send. Actions need, besides, the
CSRF token of the session in a header, and an `Origin` that is the console itself.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

SESSION_S = 12 * 3600.0
"""Time after which a session ends; a login begins another."""
MAX_SESSIONS = 50
"""Sessions at a time; with one more, the oldest ends."""
MAX_FAILURES = 10
"""Wrong tokens within `FAILURES_S` after which no token is accepted until that time is over."""
FAILURES_S = 60.0
LEAST_TOKEN = 16
"""Characters of a token, at least."""


@dataclass(frozen=True)
class Login:
    """A login.

    Attributes:
        csrf: The token that each action repeats in a header.
        ends_at: Monotonic time at which the session ends, in seconds.
    """

    csrf: str
    ends_at: float


class Access:
    """The sessions of a console.

    Args:
        token: The token of the operator; None if login is off.
        read_needs_login: Whether even reading needs a session.
        actions: Whether the operator can act.
        secure: Whether the console is served over TLS.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        token: str | None,
        read_needs_login: bool,
        actions: bool,
        secure: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._token = None if token is None else _digest(token)
        self.read_needs_login, self.actions, self.secure = read_needs_login, actions, secure
        self._clock = clock
        self._sessions: OrderedDict[bytes, Login] = OrderedDict()
        self._failures: list[float] = []

    @property
    def cookie_name(self) -> str:
        """Name of the cookie. With the prefix `__Host-` a browser accepts it over TLS only, for this host and path /."""
        return "__Host-fedpatch" if self.secure else "fedpatch-console"

    def login(self, token: str) -> str | None:
        """Return the id of a new session; None for a wrong token."""
        if self._token is None or not hmac.compare_digest(_digest(token), self._token):
            self._failures.append(self._clock())
            return None
        name = secrets.token_urlsafe(32)
        self._sessions[_digest(name)] = Login(secrets.token_urlsafe(32), self._clock() + SESSION_S)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def barred_s(self) -> float:
        """Return the seconds for which logins are refused, after too many wrong tokens; 0 if they are not."""
        now = self._clock()
        self._failures = [at for at in self._failures if at > now - FAILURES_S][-MAX_FAILURES:]
        return 0.0 if len(self._failures) < MAX_FAILURES else self._failures[0] + FAILURES_S - now

    def logout(self, name: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(name), None)

    def session(self, name: str | None) -> Login | None:
        """Return the session of that id, if it has not ended."""
        key = _digest(name or "")
        found = self._sessions.get(key)
        if found is not None and found.ends_at <= self._clock():
            del self._sessions[key]
            return None
        return found

    def may_read(self, name: str | None) -> bool:
        """Return whether the holder of a cookie may read."""
        return not self.read_needs_login or self.session(name) is not None

    def may_act(self, name: str | None, csrf: str | None) -> bool:
        """Return whether the holder of a cookie may act, with the CSRF token of the session."""
        session = self.session(name)
        return self.actions and session is not None and hmac.compare_digest(_digest(session.csrf), _digest(csrf or ""))


def known_host(header: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header names this console: another site's name for this address is refused (DNS rebinding).

    Any port counts, since a tunnel has another one. `names` are lower-case hosts without port and brackets.
    """
    host, _, port = header.rpartition(":")
    if not host or "]" in port:
        host, port = header, ""
    if port and not (port.isascii() and port.isdecimal()):
        return False
    return host.removeprefix("[").removesuffix("]").lower() in names


def own_origin(origin: str | None, host: str, *, secure: bool) -> bool:
    """Return whether an `Origin` header is the console that the `Host` header names. A request without it is foreign."""
    return origin is not None and origin.lower() == f"{'https' if secure else 'http'}://{host.lower()}"


def _digest(text: str) -> bytes:
    """The SHA-256: comparisons take the same time for any length, and no session id is in memory."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
