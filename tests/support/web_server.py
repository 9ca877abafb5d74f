"""Web servers whose answers a test chooses, also answers that no real server gives."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.support.brokers import HOST


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore the error: a client may close its connection early."""


@contextmanager
def server(
    answer: Callable[[BaseHTTPRequestHandler], None], identity: tuple[Path, Path] | None = None
) -> Iterator[str]:
    """The URL of a server on loopback that answers with `answer`; `identity`, a certificate and its key, adds TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with _Server((HOST, 0), Handler) as made:
        made.daemon_threads = True
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*identity)
            made.socket = context.wrap_socket(made.socket, server_side=True)
        thread = Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http{'s' if identity else ''}://{HOST}:{made.server_port}/demo/blob"
        finally:
            made.shutdown()
            thread.join()


def sends(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer
