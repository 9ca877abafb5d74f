"""A real web server for tests: nginx with TLS on a free port, which serves a directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from tests.support.brokers import HOST, free_port, listening, start_server
from tests.support.identities import Certified
from tests.support.listing import children

_CONFIG = """
daemon off;
{user}
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/pid;
events {{ worker_connections 512; }}
http {{
    log_format ranges '$request $status $http_range';
    access_log {folder}/access.log ranges;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen {host}:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        root {root};
        {options}
    }}
}}
"""


class Nginx:
    """A web server of the files in `root`; `options` are lines of its `server`, which `restart` may replace.

    Its certificate is issued by a CA of its own, whose file is `ca_file`.
    """

    def __init__(self, options: str = "") -> None:
        binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if binary is None:
            pytest.skip("nginx is not installed (apt install nginx)")
        self._binary = binary
        self._files = ExitStack()
        self._folder = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-nginx-")))
        self.root = self._folder / "models"
        self.root.mkdir()
        authority = Certified(self._folder / "ca").make()
        self.ca_file = authority.ca_file
        place = authority.directory / "broker"
        self._pair = place / "broker.crt", place / "broker.key"
        self.port = free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}/"

    @property
    def store(self) -> str:
        """The setting `models_store` of a coordinator that writes to the folder of this server."""
        return f"file://{self.root}"

    @property
    def requests(self) -> list[str]:
        """The line, the status and the requested range of each answered request."""
        log = self._folder / "access.log"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def busy(self) -> bool:
        """Whether a client has a connection: a slow answer is logged only when it is over."""
        table = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return any(one.split()[1].endswith(f":{self.port:04X}") and one.split()[3] == "01" for one in table)

    @property
    def pids(self) -> list[int]:
        """The master and its workers."""
        assert self._process is not None
        return [self._process.pid, *children(self._process.pid)]

    def start(self) -> None:
        """Start it and wait until it answers; each start uses the same port."""
        config, log = self._folder / "nginx.conf", self._folder / "log"
        user = "user root;" if os.geteuid() == 0 else ""
        certificate, key = self._pair
        config.write_text(
            _CONFIG.format(
                folder=self._folder,
                user=user,
                host=HOST,
                port=self.port,
                root=self.root,
                certificate=certificate,
                key=key,
                options=self._options,
            )
        )
        command = [self._binary, "-c", config, "-e", log]
        self._process = start_server("nginx", command, log, partial(listening, self.port))

    def stop(self) -> None:
        """End it at once, with all connections."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def restart(self, options: str) -> None:
        """Start it again with other options."""
        self.stop()
        self._options = options
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._files.close()
