"""Blobs as objects of an S3 bucket, by obstore: the one module that imports it.

A PUT is one request, so an object exists whole or not at all; it is durable once the store has answered. Requests that fail for
a passing reason are repeated for RETRY_S seconds. obstore reads address and credentials from the AWS_* environment.

obstore does not return before a request is over, and handles no signal meanwhile. So each request is made in a thread of its
own. When the process shall end, the caller abandons that thread after ENDING_S. As after a kill, the object then exists whole
or not at all.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from obstore import sign
from obstore.exceptions import BaseError
from obstore.store import S3Store

from fedpatch.shared.app.store_waits import BLOBS, StoreWaits
from fedpatch.shared.errors import StoreUnavailable, UsageError

T = TypeVar("T")
RETRY_S = 90.0
_LOOK_S = 0.2
_FIRST_RETRY_S = 10.0  # of the check at the start, since an operator waits for it
_MAX_PAUSE_S = 5.0
_MAX_RETRIES = 10_000  # the time ends the retries
_TIMEOUT_S = 30.0  # of one request; shorter than RETRY_S, so that a request without an answer is repeated too
_CONCURRENCY = 8
_MOST_SIGNED_S = 7 * 24 * 3600.0  # AWS accepts no longer time
_PROBE = "write-check"

_CODE = re.compile(r"<Code>([\w.]+)</Code>")
_METHOD = re.compile(r"\b(?:GET|HEAD|PUT|POST|DELETE) https?://[^\s?]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # no header may have one; a tab is allowed
_UNKNOWN_REQUEST = re.compile(r"\b(?:405 Method Not Allowed|501 Not Implemented)\b")
_PASSING = ("InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout")
_RIGHTS = "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
_CREDENTIALS = "correct AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
_ROOM = "make room in the store, or raise its quota"
_SEE_LOG = "see the log of the object store"
_OTHER_ADDRESS = "correct AWS_ENDPOINT_URL: the address of the store's S3 requests, which is not that of its web pages"
_BUSY = "start the store behind this address, or wait until it is less busy"
_TOO_LARGE = (
    "raise the size of an object in the store, or of a request in the proxy before it (nginx: client_max_body_size)"
)
_OTHER_STORE = "this store lacks the request: use another store, with GET, PUT, DELETE and ListObjectsV2"
# Remedies for codes after which another request may succeed.
_REQUEST_REMEDIES = {
    "NotImplemented": _OTHER_STORE,
    "MethodNotAllowed": _OTHER_STORE,
    "EntityTooLarge": _TOO_LARGE,
    "SlowDown": _BUSY,
    "ServiceUnavailable": _BUSY,
}
_REMEDIES = {
    "NoSuchBucket": "make the bucket, or correct its name",
    "InvalidBucketName": "correct the name of the bucket",
    "XMinioStorageFull": _ROOM,
    "XMinioAdminBucketQuotaExceeded": _ROOM,
    "QuotaExceeded": _ROOM,
    "AccessDenied": f"{_RIGHTS} to this access key",
    "AllAccessDisabled": f"{_RIGHTS} to this access key",
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "RequestTimeTooSkewed": "set the clock of this machine or that of the store: they differ",
    "PermanentRedirect": "set AWS_REGION to the region of the bucket",
    "AuthorizationHeaderMalformed": "set AWS_REGION to the region of the bucket",
}
_STATUS = re.compile(r"status code: (([1-5]\d\d)[ A-Za-z]*)")
_STATUS_REMEDIES = {
    "400": f"write https:// in AWS_ENDPOINT_URL where the store has TLS, or {_SEE_LOG}",
    "401": _CREDENTIALS,
    "403": f"{_CREDENTIALS}, and {_RIGHTS} to this access key",
    "404": _OTHER_ADDRESS,
    "405": _OTHER_ADDRESS,
    "407": "give the proxy of the environment its password, or add the store to no_proxy",
    "502": "start the store behind this address",
    "413": _TOO_LARGE,
    "429": _BUSY,
    "503": _BUSY,
    "504": "start the store behind this address",
    "507": _ROOM,
}
_TRUST = "add its CA to those of the system (update-ca-certificates), or name it in SSL_CERT_FILE"
# What is wrong by the words of an error that has neither code nor status: a pattern, the problem, the remedy.
_FAULTS = (
    (r"InvalidCertificate\(\s*NotValidForName", "{} has a certificate for other names", "correct AWS_ENDPOINT_URL"),
    (
        r"InvalidCertificate\(\s*Expired",
        "the certificate of {} has expired",
        "renew it; if it is new, set the clock here",
    ),
    (
        r"InvalidCertificate\(\s*NotValidYet",
        "the certificate of {} is not yet valid",
        "set the clock of this machine; if it is right, make the certificate anew where the clock was ahead",
    ),
    (r"InvalidCertificate\(", "{} cannot be trusted: its certificate is of an unknown CA", _TRUST),
    (r"InvalidContentType|InvalidMessage", "{} speaks no TLS", "write http:// in AWS_ENDPOINT_URL"),
    (r"redirect without LOCATION", "{} points to another region", _REMEDIES["PermanentRedirect"]),
    (
        r"Missing ?Etag|Header missing|InvalidListResponse|TooManyRedirects",
        "{} answers, but not as an object store",
        _OTHER_ADDRESS,
    ),
    (
        r"dns error",
        "the name of {} cannot be resolved",
        "correct AWS_ENDPOINT_URL, or the name service of this machine",
    ),
)

_log = logging.getLogger("fedpatch.checkpoint")


class ObjectBlobs:
    """The blob store of a run below a prefix of a bucket.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of all keys of the run, without a slash at its ends.
        retry_s: Seconds for which a request is repeated.
        ending: The requests that wait; set when the process shall end.

    Raises:
        UsageError: A variable of the AWS_* environment cannot be used.
    """

    concurrency = _CONCURRENCY

    def __init__(self, bucket: str, prefix: str, retry_s: float = RETRY_S, ending: StoreWaits | None = None) -> None:
        self._waits = ending or StoreWaits()
        self._retry_s = retry_s
        self._bucket, self._prefix = bucket, prefix
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint and not re.match(r"https?://[^/]", endpoint):  # obstore would panic
            raise UsageError(
                f"blobs: {self.where()}: AWS_ENDPOINT_URL is no URL; write http://HOST:PORT or https://HOST"
            )
        for name, value in os.environ.items():
            if name.startswith("AWS_") and _CONTROL.search(value):  # obstore would panic
                raise UsageError(
                    f"blobs: {self.where()}: {name} has a line end, as of a file of Windows, or another control character; "
                    "take it out"
                )
        self._scheme, self._host = urlsplit(endpoint).scheme or "https", urlsplit(endpoint).hostname or "amazonaws.com"
        self._endpoint = urlsplit(endpoint).netloc.rpartition("@")[2] or "AWS"
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        pause = timedelta(seconds=min(_MAX_PAUSE_S, retry_s))
        self._deletes_many: bool | None = None  # whether the store has DeleteObjects; None: not known yet

        def made(most_retries: int = _MAX_RETRIES, *, singly: bool = False) -> S3Store:
            return S3Store(
                bucket,
                prefix=prefix,
                region=region,
                disable_bulk_delete=singly,
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=_TIMEOUT_S),
                    "connect_timeout": timedelta(seconds=_MAX_PAUSE_S),
                },
                retry_config={
                    "max_retries": most_retries,
                    "retry_timeout": timedelta(seconds=retry_s),
                    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": pause, "base": 2},
                },
            )

        try:
            self._store, self._impatient, self._singly = made(), made(0), made(singly=True)
        except (BaseError, ValueError) as error:
            # The error's text is left out: it may show a value of the environment.
            both = all(map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")))
            remedy = "correct it" if both else "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise UsageError(f"blobs: {self.where()}: the AWS_* environment cannot be used; {remedy}") from error

    def where(self, key: str = "") -> str:
        """Return the URL of an object, or of the run."""
        return "/".join(filter(None, ("s3:/", self._bucket, self._prefix, key)))

    def check(self) -> None:
        """Write and delete an object, to find a wrong name, missing rights or a wrong address before a run begins."""
        trial = ObjectBlobs(self._bucket, self._prefix, _FIRST_RETRY_S)
        trial.list()
        trial.put(_PROBE, b"")
        trial.delete(_PROBE)

    def put(self, key: str, *parts: bytes, durable: bool = True, durable_name: bool = True) -> None:
        """Put an object; it is durable with its name."""
        with self._refusals(key):
            content = b"".join(parts)
            self._request(lambda: self._store.put(key, content, use_multipart=False))

    def sync(self, folder: str) -> None:
        """Do nothing: names are durable."""

    def get(self, key: str) -> bytes | None:
        """Return an object's content."""
        with self._refusals(key):
            try:
                return self._request(lambda: self._store.get(key).bytes().to_bytes())
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
        return None

    def sign(self, key: str, valid_s: float) -> str:
        """Return a URL by which everybody can read an object for `valid_s` seconds, 7 days at most."""
        with self._refusals(key):
            return str(sign(self._store, "GET", key, timedelta(seconds=min(valid_s, _MOST_SIGNED_S))))

    def list(self, folder: str = "") -> list[str]:
        """Return the names below a prefix, to the next slash."""
        with self._refusals(folder):
            found = self._request(lambda: self._store.list_with_delimiter(folder or None))
        names = [f"{PurePosixPath(path).name}/" for path in found["common_prefixes"]]
        # Some stores hold an object for the folder itself.
        objects = [one["path"] for one in found["objects"] if one["path"] not in ("", folder)]
        return sorted([*names, *(PurePosixPath(path).name for path in objects)])

    def delete(self, *keys: str) -> None:
        """Delete objects and, by a key that ends with `/`, all below a prefix."""
        paths = [key for key in keys if not key.endswith("/")]
        with self._refusals(keys[0] if keys else ""):
            for folder in set(keys) - set(paths):
                paths += self._request(partial(self._names, folder.rstrip("/")))
            self._request(partial(self._delete, paths))

    def _delete(self, paths: Sequence[str]) -> None:
        """Delete objects by one request for all, or by one request each in a store without DeleteObjects.

        The first request for all is not repeated, since a store without it may answer as if it were out of order.
        """
        if self._deletes_many is None and len(paths) > 1:
            try:
                self._impatient.delete(paths)
                self._deletes_many = True
                return
            except (BaseError, OSError) as error:
                if _lacks_operation(error):
                    self._deletes_many = False
                    _log.info("%s: the store deletes one object at a time only", self.where())
        (self._store if self._deletes_many and len(paths) > 1 else self._singly).delete(paths)

    def _names(self, folder: str) -> Sequence[str]:
        return [one["path"] for page in self._store.list(folder) for one in page]

    def _request(self, request: Callable[[], T]) -> T:
        """Return the result of a request; raise TimeoutError if the process shall end before it is over."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                found = request()
            except BaseException as error:
                _fail(done, error)
            else:
                with suppress(InvalidStateError):  # it was abandoned
                    done.set_result(found)

        threading.Thread(target=run, name="fedpatch-object", daemon=True).start()
        place = f"s3://{self._bucket} at {self._endpoint}"
        with self._waits.request(BLOBS, place, self._retry_s + _TIMEOUT_S, lambda: _fail(done)):
            while True:
                try:
                    return done.result(_LOOK_S)
                except TimeoutError:
                    if done.done():  # it ended just after the wait, or raised a TimeoutError of its own
                        return done.result()
                self._waits.look()

    @contextmanager
    def _refusals(self, key: str) -> Iterator[None]:
        """Raise StoreUnavailable with place, code and remedy. A store's own text is left out: it may name the access key."""
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            problem, remedy = self._explained(error)
            raise StoreUnavailable(f"{self.where(key)}: {problem}; {remedy}") from error

    def _explained(self, error: Exception) -> tuple[str, str]:
        """Return the problem of a failed request and its remedy."""
        code, text = _code(error), str(error)
        if code in _REMEDIES:
            return code, _REMEDIES[code]
        if code:
            operation = _METHOD.search(text)
            request = f" in answer to {operation[0]}" if operation else ""
            return code + request, _REQUEST_REMEDIES.get(code, _SEE_LOG)
        if "/latest/api/token" in text:  # from which a machine in AWS gets the credentials of its role
            return "no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        proxy = _proxy_hint(self._scheme, self._host)
        if status := _STATUS.search(text):
            remedy = _STATUS_REMEDIES.get(status[2], _SEE_LOG)
            return f"{self._endpoint} answers {status[1].strip()}", f"{remedy}{proxy}"
        for pattern, problem, remedy in _FAULTS:
            if re.search(pattern, text):
                return problem.format(self._endpoint), f"{remedy}{proxy}"
        problem = f"{self._endpoint} does not answer"
        tls = ", write https:// if it has TLS" if "ConnectionReset" in text and self._scheme == "http" else ""
        return problem, f"start the object store{tls}, or correct AWS_ENDPOINT_URL{proxy}"


def _fail(done: Future[Any], error: BaseException | None = None) -> None:
    """End the wait for a request; without an error it is abandoned."""
    with suppress(InvalidStateError):
        done.set_exception(error or TimeoutError("abandoned"))


def _proxy_hint(scheme: str, host: str) -> str:
    """Return the remedy for a proxy of the environment (http_proxy, https_proxy, all_proxy) that requests go through; or ""."""
    proxies = getproxies()
    if proxy_bypass(host) or not (proxies.get(scheme) or proxies.get("all")):
        return ""
    return f", or its proxy: requests go through {scheme}_proxy of the environment unless no_proxy has {host}"


def _lacks_operation(error: Exception) -> bool:
    """Return whether a store has refused a request as unknown, and not for a reason that every request would have."""
    code = _code(error)
    return (code != "" and code not in _REMEDIES and code not in _PASSING) or bool(_UNKNOWN_REQUEST.search(str(error)))


def _code(error: Exception) -> str:
    found = _CODE.search(str(error))
    return found[1] if found else ""
