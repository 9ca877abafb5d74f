"""Files that hold a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.shared.config.secret_file import read_secret


@pytest.mark.parametrize("data", [b"x", b"x\n", b"x\r\n", b"\xef\xbb\xbfx\r\n"])
def test_secret_is_the_line_without_its_end_and_without_the_mark_of_an_editor(tmp_path: Path, data: bytes):
    file = tmp_path / "password"
    file.write_bytes(data)
    file.chmod(0o600)
    assert read_secret(file, "password file", "password", "make one") == "x"
