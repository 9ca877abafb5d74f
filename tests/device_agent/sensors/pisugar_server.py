"""PiSugar's power manager on its socket: one line for each question, and one for each press of the button."""

from __future__ import annotations

import socket
import threading
from pathlib import Path


class PiSugarServer:
    """Listens on a Unix socket, or on a local port if no path is given."""

    def __init__(self, path: Path | None = None, **answers: str) -> None:
        self.answers = answers
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.ups = f"pisugar:127.0.0.1:{self._listener.getsockname()[1]}"
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(path))
            self._listener.listen()
            self.ups = f"pisugar:{path}"
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> PiSugarServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:  # the test is over
                return
            with line, line.makefile("rw", encoding="utf-8") as talk:
                for question in talk:
                    name = question.strip().removeprefix("get ")
                    answer = f"{name}: {self.answers[name]}" if name in self.answers else "Invalid request."
                    talk.write(f"single\n{answer}\n")
                    talk.flush()
