"""URLs of PostgreSQL databases: which are permitted, without a password."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from fedpatch.shared.config.listen_address import is_loopback

_WITH_TLS = {"require", "verify-ca", "verify-full"}
_EXAMPLE = "postgresql://fedpatch@db.local/fedpatch"


def database_problem(url: str, *, insecure: bool) -> str | None:
    """Return the problem of a database's URL, or None. The text never contains a possible password.

    Args:
        url: The URL.
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
        terms = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        return f"is no URL such as {_EXAMPLE}"
    if "password" in terms or parts.password is not None:
        return "a password must not stand in the URL; write it into ~/.pgpass (chmod 600) or PGPASSWORD"
    if parts.scheme not in ("postgresql", "postgres") or not parts.path.strip("/"):
        return f"is no URL such as {_EXAMPLE}"
    hosts = {host, terms.get("host", "")}
    if insecure or all(map(_is_local, hosts)) or terms.get("sslmode") in _WITH_TLS:
        return None
    return f"{terms.get('host', host)} is another machine; add ?sslmode=verify-full, or allow it with insecure"


def _is_local(host: str) -> bool:
    """Return whether a host of libpq is this machine; a path is the directory of a socket."""
    return not host or host.startswith("/") or is_loopback(host)
