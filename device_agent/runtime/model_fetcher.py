"""Fetches models by URL in a thread of its own: by ranges of the missing chunks, one chunk after the other.

The thread puts ChunkFetched events into the agent's queue, and one FetchEnded at the end; if a URL fails, the missing chunks
come from the broker. A server is not trusted: the SHA-256 of the manifest decides whether the bytes are accepted.
"""

from __future__ import annotations

import http.client
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

from fedpatch.shared import __version__
from fedpatch.shared.config.listen_address import is_loopback
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.mqtt.url import is_place, parse_broker_url, split_url
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Manifest

# A server or a network that sends no byte for this time counts as a lost connection.
SILENT_S = 15.0
# A URL that takes longer for a chunk is not used any more.
SLOW_S = 60.0
# Requests in a row without a chunk after which a URL is not used any more, and the pause before each retry.
ATTEMPTS = 3
PAUSE_S = 1.0
# Most chunks that may wait for the agent.
WAITING = 4
MOST_REDIRECTS = 3
_PIECE_BYTES = 64 * 1024

_RANGE = re.compile(r"bytes (\d{1,12})-(\d{1,12})/(\d{1,12})")
_REDIRECTS = (301, 302, 303, 307, 308)
_HINTS = {403: " (a presigned URL may have expired)", 404: " (the models' server does not have it)"}

_OTHER_NAME = "the URL of models needs a name of the server's certificate (fedpatch run --models-url)"
# By the numbers of OpenSSL (X509_V_ERR_*).
_TLS_REMEDIES = {
    9: "set the clock (timedatectl), here or where the certificate was made",
    10: "renew the server's certificate; where it is not old, set the clock (timedatectl)",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}

_log = logging.getLogger("fedpatch.agent")


@dataclass(frozen=True)
class ChunkFetched:
    """A chunk arrived; call `fetch.taken()` when it is handled."""

    fetch: ModelFetch
    chunk: Chunk


@dataclass(frozen=True)
class FetchEnded:
    """A fetch is over.

    Attributes:
        fetch: The fetch.
        problem: Why chunks are missing; "" if none is, or it was stopped.
        wasted_bytes: Bytes that arrived and are in no chunk.
    """

    fetch: ModelFetch
    problem: str = ""
    wasted_bytes: int = 0


FetchEvent = ChunkFetched | FetchEnded


class _Refused(Exception):
    """A URL that must not be used, or an answer that another attempt would not change."""


def shown(url: str) -> str:
    """Return a URL for messages: without its query, which may hold a signature.

    Example:
        >>> shown("https://cdn.example:8443/demo/ab?X-Amz-Signature=secret")
        'https://cdn.example:8443/demo/ab'
    """
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].partition('#')[0].rpartition('@')[2]}"


class ModelFetcher:
    """Begins fetches.

    Args:
        events: Takes the events of the fetches, in their threads.
        ca_files: PEM files of CAs that are trusted.
        system_cas: Whether the system's CAs are trusted too.
        plain_loopback: Whether http:// to this machine is allowed.
        plain: Whether http:// to other machines is allowed.
        ca_setting: Name of the setting of a CA, for messages.
    """

    def __init__(
        self,
        events: Callable[[FetchEvent], None],
        *,
        ca_files: Sequence[Path] = (),
        system_cas: bool = True,
        plain_loopback: bool = False,
        plain: bool = False,
        ca_setting: str = "models_ca_file",
    ) -> None:
        self._events = events
        self._ca_files = ca_files
        self._system_cas = system_cas
        self._plain_loopback = plain_loopback
        self._plain = plain
        self._ca_setting = ca_setting

    @classmethod
    def of(
        cls, settings: BrokerSettings, own_ca: Path | None, events: Callable[[FetchEvent], None], *, prefix: str = ""
    ) -> ModelFetcher:
        """Return the fetcher beside a connection to a broker.

        Args:
            settings: The connection, whose CA is trusted unless `own_ca` is given.
            own_ca: PEM file of the only CA that is trusted; None for the CAs of the system and of the broker.
            events: Takes the events of the fetches, in their threads.
            prefix: Before the names of settings in messages: `up_` of a relay.

        Raises:
            UsageError: `own_ca` is not a file of CA certificates that can be read.
        """
        fetcher = cls(
            events,
            ca_files=[path for path in (own_ca or settings.ca_file,) if path is not None],
            system_cas=own_ca is None,
            # Else a coordinator could make this device send requests to services of the device itself.
            plain_loopback=parse_broker_url(settings.broker).loopback,
            plain=settings.insecure,
            ca_setting=f"{prefix}models_ca_file",
        )
        if own_ca is not None:
            try:
                fetcher._context()
            except _Refused as error:
                raise UsageError(f"{prefix}models_ca_file: {error}; name a PEM file that this user may read") from None
        return fetcher

    def begin(self, blobs: Sequence[Manifest], have: Mapping[str, Collection[int]]) -> ModelFetch | None:
        """Begin to fetch the missing chunks of blobs; None if a blob has no URL or one that must not be used.

        Args:
            have: Chunks that are there, by the digest of their blob.
        """
        if not all(blob.url for blob in blobs) or all(len(have[blob.digest]) == blob.chunk_count for blob in blobs):
            return None
        try:
            places = [(blob, self._checked(blob.url or "")) for blob in blobs]
            context = self._context()
        except _Refused as error:
            _log.warning("%s; downloading by MQTT", error)
            return None
        fetch = ModelFetch(places, have, context, self._events, self._ca_setting)
        threading.Thread(target=fetch.run, name="model fetch", daemon=True).start()
        return fetch

    def _checked(self, url: str) -> SplitResult:
        try:
            parts = split_url(url)
        except ValueError:
            raise _Refused("the URL of a model is none") from None
        host = parts.hostname or ""
        if not host or not is_place(url, parts):
            raise _Refused(f"the URL of a model cannot be used: {shown(url)!r}")
        if parts.scheme == "https" or (parts.scheme == "http" and (self._plain or self._may_be_plain(host))):
            return parts
        raise _Refused(f"{shown(url)}: models are fetched by https:// only, or by http:// with insecure")

    def _may_be_plain(self, host: str) -> bool:
        return self._plain_loopback and is_loopback(host)

    def _context(self) -> ssl.SSLContext:
        """Return a context for TLS 1.2 or later. Each fetch makes a new one: files may have been renewed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._system_cas:
            context.load_default_certs()
        for path in self._ca_files:
            try:
                context.load_verify_locations(path)
            except OSError as error:
                raise _Refused(f"{path}: not a file of CA certificates ({error.strerror or error})") from None
        return context


class ModelFetch:
    """One fetch of blobs.

    Args:
        places: The blobs, each with its URL.
        have: Chunks that are there, by the digest of their blob.
        context: TLS of the connections.
        events: Takes the events.
        ca_setting: Name of the setting of a CA, for messages.
    """

    def __init__(
        self,
        places: Sequence[tuple[Manifest, SplitResult]],
        have: Mapping[str, Collection[int]],
        context: ssl.SSLContext,
        events: Callable[[FetchEvent], None],
        ca_setting: str,
    ) -> None:
        self._places = places
        self._ca_setting = ca_setting
        self._have = {blob.digest: set(have[blob.digest]) for blob, _ in places}
        self._context = context
        self._events = events
        self._stopped = threading.Event()
        self._room = threading.Semaphore(WAITING)
        self._connection: http.client.HTTPConnection | None = None
        self._last_chunk_at = 0.0
        self._wasted = 0

    def stop(self) -> None:
        """End the fetch soon, without waiting for its end."""
        self._stopped.set()
        self._room.release()

    def taken(self) -> None:
        """Note that an event of a chunk was handled."""
        self._room.release()

    @property
    def places(self) -> str:
        """The URLs, for messages."""
        return ", ".join(shown(url.geturl()) for _, url in self._places)

    def run(self) -> None:
        """Fetch all blobs, in the thread of the fetch."""
        problem = ""
        try:
            for blob, url in self._places:
                self._fetch(blob, url)
        except Exception as error:  # a thread that ends without its event would leave the download waiting
            problem = f"{self._words(error)}"
            if not isinstance(error, _Refused | OSError | http.client.HTTPException):
                _log.exception("fetch of a model")
        finally:
            self._disconnect()
        self._events(FetchEnded(self, "" if self._stopped.is_set() else problem, self._wasted))

    def _fetch(self, blob: Manifest, url: SplitResult) -> None:
        have, failures = self._have[blob.digest], 0
        self._last_chunk_at = time.monotonic()
        while len(have) < blob.chunk_count and not self._stopped.is_set():
            before = len(have)
            try:
                self._get(blob, url)
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                failures = 1 if len(have) > before else failures + 1
                if isinstance(error, ssl.SSLCertVerificationError) or failures == ATTEMPTS:
                    raise _Refused(f"{shown(url.geturl())}: {self._words(error)}") from error
                self._stopped.wait(PAUSE_S)

    def _get(self, blob: Manifest, url: SplitResult) -> None:
        """Get the first range of missing chunks."""
        have = self._have[blob.digest]
        first = next(index for index in range(blob.chunk_count) if index not in have)
        end = next((index for index in range(first, blob.chunk_count) if index in have), blob.chunk_count)
        start, stop = first * blob.chunk_bytes, min(end * blob.chunk_bytes, blob.size_bytes)
        response = self._response(url, start, stop)
        _check_answer(response, shown(url.geturl()), start, stop, blob.size_bytes)
        if response.status == 200:  # a server without ranges sends all
            first, stop = 0, blob.size_bytes
        for index, data in self._chunks(response, blob, first, stop):
            if index in have:
                self._wasted += len(data)
                continue
            self._room.acquire()
            if self._stopped.is_set():
                self._wasted += len(data)
                break
            have.add(index)
            self._last_chunk_at = time.monotonic()
            self._events(ChunkFetched(self, Chunk(blob.digest, index, blob.chunk_count, data)))
        if response.length == 0:  # read1 does not close it after the last byte
            response.close()
        else:
            self._disconnect()

    def _chunks(
        self, response: http.client.HTTPResponse, blob: Manifest, first: int, stop: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the chunks from `first` to the byte `stop`, each with its index."""
        for index in range(first, -(-stop // blob.chunk_bytes)):
            data = bytearray()
            wanted = min(blob.chunk_bytes, blob.size_bytes - index * blob.chunk_bytes)
            try:
                while len(data) < wanted:
                    piece = response.read1(min(_PIECE_BYTES, wanted - len(data)))
                    if not piece:
                        raise ConnectionError("the connection was lost")
                    data += piece
                    if time.monotonic() > self._last_chunk_at + SLOW_S:
                        raise _too_slow()
            except BaseException:
                self._wasted += len(data)
                raise
            yield index, bytes(data)

    def _response(self, url: SplitResult, start: int, stop: int) -> http.client.HTTPResponse:
        """Send the request for a range; follow redirects on the same server."""
        headers = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        headers["User-Agent"] = f"fedpatch/{__version__}"
        at = url
        for _ in range(MOST_REDIRECTS + 1):
            connection = self._connected(url)
            connection.request("GET", f"{at.path or '/'}{'?' if at.query else ''}{at.query}", headers=headers)
            response = self._head(connection)
            if response.status not in _REDIRECTS:
                return response
            self._disconnect()  # its body is of no use
            at = urlsplit(urljoin(at.geturl(), response.getheader("Location", "")))
            if (at.scheme, at.netloc) != (url.scheme, url.netloc):
                raise _Refused(f"{shown(url.geturl())}: it leads to another server, {at.scheme}://{at.hostname}")
        raise _Refused(f"{shown(url.geturl())}: more than {MOST_REDIRECTS} redirects")

    def _head(self, connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
        """Return the answer once its head is there; a server may send that byte by byte, each within SILENT_S."""
        give_up_at = self._last_chunk_at + SLOW_S
        alarm = threading.Timer(max(0.0, give_up_at - time.monotonic()), _shut, [connection])
        alarm.daemon = True
        alarm.start()
        try:
            response = connection.getresponse()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if time.monotonic() < give_up_at:
                raise
            raise _too_slow() from error
        finally:
            alarm.cancel()
        # http.client takes a head that is cut off for a whole one.
        if time.monotonic() >= give_up_at:
            raise _too_slow()
        return response

    def _connected(self, url: SplitResult) -> http.client.HTTPConnection:
        """Return the connection to the server of a URL; it is kept from request to request."""
        known = self._connection
        if known is not None and (known.host, known.port) == (url.hostname, url.port or known.default_port):
            return known
        self._disconnect()
        host = url.hostname or ""
        if url.scheme == "https":
            self._connection = http.client.HTTPSConnection(host, url.port, timeout=SILENT_S, context=self._context)
        else:
            self._connection = http.client.HTTPConnection(host, url.port, timeout=SILENT_S)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _words(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            remedy = _TLS_REMEDIES.get(error.verify_code, f"set {self._ca_setting} to its CA")
            return f"TLS: {error.verify_message}; {remedy}"
        if isinstance(error, TimeoutError):
            return f"no answer within {SILENT_S:g} s"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return str(error) or type(error).__name__


def _too_slow() -> _Refused:
    return _Refused(f"no chunk within {SLOW_S:g} s")


def _shut(connection: http.client.HTTPConnection) -> None:
    """End the wait of another thread for the server."""
    with suppress(OSError):
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)


def _check_answer(response: http.client.HTTPResponse, place: str, start: int, stop: int, size_bytes: int) -> None:
    """Raise _Refused unless an answer is the range `start` to `stop` of a blob of `size_bytes`, or the whole of it.

    ConnectionError if a retry may succeed.
    """
    if response.status >= 500 or response.status == 429:
        raise ConnectionError(f"the server answers {response.status}")
    if response.status == 206:
        found = _RANGE.fullmatch(response.getheader("Content-Range", ""))
        fits = found is not None and [int(one) for one in found.groups()] == [start, stop - 1, size_bytes]
    elif response.status == 200:
        fits = response.getheader("Content-Length", "") in ("", str(size_bytes))
    else:
        raise _Refused(f"{place}: the server answers {response.status}{_HINTS.get(response.status, '')}")
    if not fits:
        raise _Refused(
            f"{place}: the server has another size than the {size_bytes} bytes of the manifest, or other ranges"
        )
    if response.getheader("Content-Encoding", "identity") != "identity":
        raise _Refused(f"{place}: the server has compressed it")
