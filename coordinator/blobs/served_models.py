"""The blobs of an open round that devices fetch by URL, presigned by a bucket or of a web server in front of a store.

Keys are `FLEET/DIGEST`: a URL cannot be guessed, since only clients that may read the fleet's messages have the digest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs, url_problem
from fedpatch.shared.config.listen_address import is_loopback
from fedpatch.shared.errors import FedpatchError, UsageError
from fedpatch.shared.mqtt.url import is_place, split_url
from fedpatch.shared.wire.messages import MAX_URL

_MARGIN_S = 3600.0
"""Seconds for which a presigned URL is valid after the deadline of a round, since pauses prolong a round."""
_PUBLIC_FILE, _PUBLIC_DIRECTORY = 0o644, 0o755
_RETRY_S = 10.0  # of a request; then chunks on the broker are used instead of the store

_DIGEST = re.compile(r"[0-9a-f]{64}")

_log = logging.getLogger("fedpatch.publisher")


class ServedModels:
    """Models and deltas of a fleet in a store, each by its digest.

    Args:
        store: The store, for this fleet only.
        url_of: Returns the URL of a key.
    """

    def __init__(self, store: BlobStore, url_of: Callable[[str], str]) -> None:
        self._store = store
        self._url_of = url_of
        self._stored: set[str] | None = None

    def check(self) -> None:
        """Raise StoreUnavailable or StateError if the store cannot be written."""
        self._store.check()
        self._url_of("0" * 64)

    def serve(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Store blobs by digest, delete all others, and return the URLs, without those of blobs that the store refuses.

        Example:
            >>> from fedpatch.coordinator.blobs.blob_store import FileBlobs
            >>> store = FileBlobs(getfixture("tmp_path") / "demo")
            >>> ServedModels(store, "https://cdn.example/demo/{}".format).serve({"ab" * 4: b"model"})
            {'abababab': 'https://cdn.example/demo/abababab'}
        """
        urls: dict[str, str] = {}
        try:
            if self._stored is None:  # an earlier process may have left some; other files stay
                self._stored = set(filter(_DIGEST.fullmatch, self._store.list()))
            for digest, data in contents.items():
                if digest not in self._stored:
                    self._store.put(digest, data)
                    self._stored.add(digest)
                urls[digest] = self._url_of(digest)
            self._store.delete(*self._stored - contents.keys())
            self._stored &= contents.keys()
        except FedpatchError as error:
            _log.warning("%s; models that are not stored are published as chunks", error)
            self._stored = None
        if any(len(url) > MAX_URL for url in urls.values()):
            _log.warning("URLs of models have more than %d characters; models are published as chunks", MAX_URL)
            return {}
        return urls

    def close(self) -> None:
        """Delete all blobs at the end of a run."""
        self.serve({})


def served_problem(store: str | None, url: str | None, *, blobs: str | None, insecure: bool) -> tuple[str, str] | None:
    """Return the first fault of the settings of served models: the setting and the reason with the remedy; None if they fit.

    Args:
        store: The setting `models_store`.
        url: The setting `models_url`.

    Example:
        >>> served_problem("file:///srv/models", None, blobs=None, insecure=False)
        ('models_url', 'file:///srv/models is reached by a web server only; set models_url to its address')
    """
    if store is None:
        return None if url is None else ("models_url", "set without models_store, which the server reads; set that too")
    if problem := url_problem(store):
        return "models_store", problem
    if url is None:
        if store.startswith("file:"):
            return "models_url", f"{store} is reached by a web server only; set models_url to its address"
        return None
    if blobs is not None and f"{store.rstrip('/')}/".startswith(f"{blobs.rstrip('/')}/"):
        return "models_store", f"{store} is in blobs, which holds updates too; give the web server a place of its own"
    if problem := _base_problem(url, insecure=insecure):
        return "models_url", problem
    return None


def _base_problem(url: str, *, insecure: bool) -> str | None:
    form = "write https://HOST/PATH"
    try:
        parts = split_url(url)
    except ValueError as error:
        return f"it is no URL ({error}); {form}"
    host = parts.hostname or ""
    if parts.query or parts.fragment or not is_place(url, parts):
        return f"it has more than a place; {form}, for it goes to all devices"
    if parts.scheme not in ("http", "https") or not host:
        return f"{url!r} is no URL of a web server; {form}"
    if parts.scheme == "http" and not insecure and not is_loopback(host):
        return f"{host} is another machine; write https://, or allow it with insecure"
    return None


def open_served(store: str | None, url: str | None, fleet: str, deadline_s: float = 0.0) -> ServedModels | None:
    """Return the served models of a fleet; None without a store.

    Args:
        store: The setting `models_store`.
        url: The setting `models_url`; None: presigned URLs of the bucket.
        deadline_s: Deadline of the rounds, in seconds; a presigned URL is valid for an hour more.

    Raises:
        UsageError: The store cannot be used, or the extra is not installed.
    """
    if store is None:
        return None
    blobs = open_blobs(
        store, Path(fleet), modes=(_PUBLIC_FILE, _PUBLIC_DIRECTORY), retry_s=_RETRY_S, setting="models_store"
    )
    if url is not None:
        base = f"{url.rstrip('/')}/{fleet}/"
        return ServedModels(blobs, lambda key: base + key)
    sign = getattr(blobs, "sign", None)
    if sign is None:
        raise UsageError(f"models_store: {store} has no presigned URLs; set models_url")
    return ServedModels(blobs, lambda key: str(sign(key, deadline_s + _MARGIN_S)))
