"""The web application: the page, its data and its actions, behind the rules of `access`.

Every response has a content security policy that allows the console's own files only: no inline script, no inline style, no
`eval`, no other host. The page makes no HTML from data: it sets texts, and trusted types forbid the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedpatch.coordinator.console.actions import DEVICE_ACTIONS, act_on_device, stop_run
from fedpatch.coordinator.console.documents import (
    device_history,
    metric_of,
    round_row,
    run_row,
    settings_rows,
)
from fedpatch.coordinator.console.event_streams import EventStreams
from fedpatch.coordinator.console.logins import Access, known_host, own_origin
from fedpatch.coordinator.console.run_starter import RunStarter
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared import __version__
from fedpatch.shared.errors import FedpatchError, UsageError

MAX_BODY = 4096
"""Bytes of a request, at most."""
BODY_S = 10.0
"""Time in which a request must arrive whole."""
CSRF_HEADER = "x-csrf-token"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY_HEADERS: Mapping[bytes, bytes] = {
    b"content-security-policy": CONTENT_SECURITY_POLICY.encode("ascii"),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
}

_HERE = Path(__file__).parent
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_MAX_AGE = "public, max-age=31536000, immutable"
_READERS = 2
"""Requests that read the registry at a time."""


@dataclass(frozen=True)
class StaticFile:
    """A file of the page, read once at the start: a request chooses among names and never names a path."""

    content: bytes
    media_type: str
    digest: str


class Console:
    """The application of one console. `app` is the ASGI application.

    Args:
        state_dir: The state directory; None without one.
        streams: The event streams.
        access: Who may read and act.
        names: Lower-case hosts under which the console is reached.
        starter: Begins runs; None if no page may begin one.
    """

    def __init__(
        self,
        state_dir: Path | None,
        streams: EventStreams,
        access: Access,
        names: Collection[str],
        starter: RunStarter | None = None,
    ) -> None:
        self._state_dir, self._starter = state_dir, starter
        self._streams, self._access = streams, access
        self._files = _static_files()
        self._page = _page(self._files)
        self._reading = asyncio.Semaphore(_READERS)
        routes = [
            Route("/", self._index),
            Route("/static/{name}", self._static),
            Route("/api/session", self._session),
            Route("/api/login", self._login, methods=["POST"]),
            Route("/api/logout", self._logout, methods=["POST"]),
            Route("/api/runs/{run}", self._run),
            Route("/api/runs/{run}/stop", self._stop, methods=["POST"]),
            Route("/api/begin/{name}", self._begin, methods=["POST"]),
            Route("/api/devices/{fleet}/{device}", self._device),
            Route("/api/devices/{fleet}/{device}/{action}", self._act, methods=["POST"]),
        ]
        handlers = {FedpatchError: _explain, TimeoutError: _too_slow}
        inner = Starlette(routes=routes, exception_handlers=handlers)
        self.app: ASGIApp = _Guarded(inner, streams, access, frozenset(names), self._cookie)

    def _cookie(self, scope: Scope) -> str | None:
        return Request(scope).cookies.get(self._access.cookie_name)

    async def _index(self, request: Request) -> Response:
        return Response(self._page, media_type="text/html", headers={"cache-control": "no-store"})

    async def _static(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return _refusal(404, "there is no such file")
        # The page names each file with its digest, so a browser may keep the file for ever.
        return Response(found.content, media_type=found.media_type, headers={"cache-control": _MAX_AGE})

    async def _session(self, request: Request) -> Response:
        session = self._access.session(self._cookie(request.scope))
        return _json(
            {
                "version": __version__,
                "actions": self._access.actions,
                "login_needed": self._access.read_needs_login,
                "logged_in": session is not None,
                "csrf": session.csrf if session is not None else None,
                "begin": self._starter.names if session is not None and self._starter is not None else [],
            }
        )

    async def _login(self, request: Request) -> Response:
        token = str((await _body(request)).get("token", ""))
        # No `await` is between the check and the login, so simultaneous requests are counted one after the other.
        if (wait_s := self._access.barred_s()) > 0.0:
            return _refusal(429, f"too many wrong tokens; try again in {wait_s:.0f} s")
        name = self._access.login(token)
        session = self._access.session(name)
        if name is None or session is None:
            return _refusal(403, "wrong token")
        response = _json({"csrf": session.csrf})
        response.set_cookie(
            self._access.cookie_name, name, path="/", secure=self._access.secure, httponly=True, samesite="strict"
        )
        return response

    async def _logout(self, request: Request) -> Response:
        self._access.logout(self._cookie(request.scope) or "")
        response = _json({})
        response.delete_cookie(
            self._access.cookie_name, path="/", secure=self._access.secure, httponly=True, samesite="strict"
        )
        return response

    async def _run(self, request: Request) -> Response:
        state_dir = self._directory()
        async with self._reading:
            return _json(await asyncio.to_thread(_run_document, state_dir, request.path_params["run"]))

    async def _device(self, request: Request) -> Response:
        fleet, device = request.path_params["fleet"], request.path_params["device"]
        snapshot = self._streams.snapshot
        records = snapshot.records if fleet == snapshot.fleet else ()
        return _json({"device": device, "rounds": device_history(device, records), "metric": snapshot.metric})

    async def _act(self, request: Request) -> Response:
        if (refused := self._may_not_act(request)) is not None:
            return refused
        fleet, device, action = (request.path_params[name] for name in ("fleet", "device", "action"))
        reason = str((await _body(request)).get("reason", "")) if action in DEVICE_ACTIONS else ""
        words = await asyncio.to_thread(act_on_device, self._directory(), fleet, device, action, reason)
        return _json({"done": words})

    async def _stop(self, request: Request) -> Response:
        if (refused := self._may_not_act(request)) is not None:
            return refused
        return _json({"done": await asyncio.to_thread(stop_run, self._directory(), request.path_params["run"])})

    async def _begin(self, request: Request) -> Response:
        if (refused := self._may_not_act(request)) is not None:
            return refused
        if self._starter is None:
            return _refusal(403, "no run may be begun here; name files of settings with --begin")
        return _json({"done": await asyncio.to_thread(self._starter.begin, request.path_params["name"])})

    def _may_not_act(self, request: Request) -> Response | None:
        if not self._access.actions:
            return _refusal(403, "actions are off; start `fedpatch console` with --actions")
        if not self._access.may_act(self._cookie(request.scope), request.headers.get(CSRF_HEADER)):
            return _refusal(403, "log in first")
        return None

    def _directory(self) -> Path:
        if self._state_dir is None:
            raise UsageError("this console has no state directory")
        return self._state_dir


class _Guarded:
    """The checks before each request, the headers of each response, and the event stream beside the other routes."""

    def __init__(
        self,
        inner: ASGIApp,
        streams: EventStreams,
        access: Access,
        names: frozenset[str],
        cookie: Callable[[Scope], str | None],
    ) -> None:
        self._inner, self._streams, self._access, self._names = inner, streams, access, names
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = _with_headers(send)
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, send)
        elif scope["path"] == "/events" and scope["method"] == "GET":
            await self._serve_events(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    async def _serve_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.full:
            await _refusal(503, "too many pages are open", {"retry-after": "5", "connection": "close"})(
                scope, receive, send
            )
            return
        cookie = self._cookie(scope)
        await self._streams.serve(receive, send, lambda: self._access.may_read(cookie))

    def _refused(self, scope: Scope) -> Response | None:
        headers = Request(scope).headers
        host = headers.get("host", "")
        if len(headers.getlist("host")) != 1 or not known_host(host, self._names):
            return _refusal(421, "this console has another name; give it with --name")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"] != "/":
            return _refusal(403, "another site may not read this console")
        if scope["method"] == "POST":
            return self._refused_post(headers.get("origin"), host, headers.get("content-type", ""))
        public = scope["path"] == "/" or scope["path"].startswith("/static/") or scope["path"] == "/api/session"
        if not public and not self._access.may_read(self._cookie(scope)):
            return _refusal(401, "log in first")
        return None

    def _refused_post(self, origin: str | None, host: str, content_type: str) -> Response | None:
        if not own_origin(origin, host, secure=self._access.secure):
            return _refusal(403, "another site may not act on this console")
        if content_type.partition(";")[0].strip().lower() != "application/json":
            return _refusal(415, "a request to act is application/json")
        return None


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [(name, value) for name, value in message.get("headers", []) if name not in SECURITY_HEADERS]
            message = {**message, "headers": [*kept, *SECURITY_HEADERS.items()]}
        await send(message)

    return with_headers


def _run_document(state_dir: Path, run: str) -> dict[str, Any]:
    with Registry(state_dir / REGISTRY_FILE, readonly=True) as registry:
        info = registry.run(run)
        records = registry.rounds.records(info.id)
    return {
        "run": run_row(info, len(records)),
        "settings": settings_rows(info),
        "metric": metric_of(records),
        "rounds": [round_row(record) for record in records],
    }


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Raises UsageError for another body, TimeoutError if none arrives."""
    data = b""
    async with asyncio.timeout(BODY_S):
        async for part in request.stream():
            data += part
            if len(data) > MAX_BODY:
                raise UsageError(f"a request has at most {MAX_BODY} bytes")
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError("a request is one JSON object")
    return found


def _json(content: Any) -> JSONResponse:
    return JSONResponse(content, headers={"cache-control": "no-store"})


def _refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": why}, status, headers={"cache-control": "no-store", **(headers or {})})


async def _explain(request: Request, error: Exception) -> Response:
    return _refusal(400 if isinstance(error, UsageError) else 500, str(error))


async def _too_slow(request: Request, error: Exception) -> Response:
    return _refusal(408, f"the request did not arrive within {BODY_S:.0f} s")


def _static_files() -> dict[str, StaticFile]:
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = StaticFile(content, _TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:12])
    return found


def _page(files: Mapping[str, StaticFile]) -> bytes:
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined)
    urls = {name: f"/static/{name}?{one.digest}" for name, one in files.items()}
    return environment.get_template("page.html.j2").render(version=__version__, urls=urls).encode()
