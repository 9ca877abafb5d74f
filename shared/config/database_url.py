"""URLs of PostgreSQL databases: which are permitted, without a password."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qs, urlsplit

from fedpatch.shared.config.listen_address import is_loopback

_WITH_TLS = {"require", "verify-ca", "verify-full"}
_EXAMPLE = "postgresql://fedpatch@db.local/fedpatch"


def database_problem(url: str, *, insecure: bool) -> str | None:
    """Return the problem of a database's URL, or None. The text never contains a possible password.

    Args:
        insecure: Permit another machine without TLS.

    Returns:
        The problem with its remedy, for "state: ...".

    Example:
        >>> database_problem("postgresql://fedpatch:secret@localhost/fedpatch", insecure=False)
        'a password must not stand in the URL; write it into ~/.pgpass (chmod 600) or PGPASSWORD'
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        terms = parse_qs(parts.query)
    except ValueError:
        return f"is no URL such as {_EXAMPLE}"
    if "password" in terms or parts.password is not None:
        return "a password must not stand in the URL; write it into ~/.pgpass (chmod 600) or PGPASSWORD"
    if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/"):
        return f"is no URL such as {_EXAMPLE}"
    modes = set(terms.get("sslmode", ()))
    other = next((one for one in _hosts(host, terms) if not _is_local(one)), None)
    if insecure or other is None or (modes and modes <= _WITH_TLS):
        return None
    return f"{other} is another machine; add ?sslmode=verify-full, or allow it with insecure"


def _hosts(host: str, terms: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield all hosts and addresses that libpq may connect to; a service of pg_service.conf may name any host."""
    for given in (host, *terms.get("host", ()), *terms.get("hostaddr", ())):
        yield from given.split(",")
    yield from (f"service {name}" for name in terms.get("service", ()))


def _is_local(host: str) -> bool:
    """Return whether a host of libpq is this machine; a path is the directory of a socket."""
    return not host or host.startswith("/") or is_loopback(host)
