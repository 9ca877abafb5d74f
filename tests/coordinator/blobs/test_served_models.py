"""Settings of models that devices fetch by URL, and the resulting URLs."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fedpatch.coordinator.blobs.served_models import open_served, served_problem
from fedpatch.shared.errors import UsageError

FILES, BUCKET = "file:///srv/models", "s3://fleet/models"


@pytest.mark.parametrize(
    ("store", "url", "blobs", "setting", "words"),
    [
        (None, None, None, None, ""),
        (BUCKET, None, None, None, ""),
        (BUCKET, None, "s3://fleet", None, ""),
        (BUCKET, "https://cdn.example/models/", "s3://fleet/state", None, ""),
        (FILES, "https://cdn.example:8443", "file:///srv/models-of-others", None, ""),
        (FILES, "http://127.0.0.1:8080/", None, None, ""),
        (None, "https://cdn.example/", None, "models_url", "models_store"),
        ("ftp://host/dir", None, None, "models_store", "unknown scheme"),
        (FILES, None, None, "models_url", "web server"),
        (BUCKET, "https://cdn.example/", "s3://fleet/", "models_store", "updates"),
        (FILES, "https://cdn.example/", FILES, "models_store", "updates"),
        (FILES, "http://cdn.example/", None, "models_url", "https://"),
        (FILES, "cdn.example", None, "models_url", "no URL"),
        (FILES, "https://", None, "models_url", "no URL"),
        (FILES, "https://[x", None, "models_url", "no URL"),
        (FILES, "https://user:secret@cdn.example/", None, "models_url", "more than a place"),
        (FILES, "https://cdn.example/?token=secret", None, "models_url", "more than a place"),
    ],
)
def test_settings_that_do_not_fit_name_the_setting_and_the_remedy(store, url, blobs, setting, words):
    problem = served_problem(store, url, blobs=blobs, insecure=False)
    assert (problem[0] if problem else None) == setting
    assert problem is None or (words in problem[1] and "secret" not in problem[1])


def test_plain_server_elsewhere_is_allowed_with_insecure():
    assert served_problem(FILES, "http://cdn.example/", blobs=None, insecure=True) is None


def test_directory_without_a_server_has_no_presigned_urls(tmp_path: Path):
    with pytest.raises(UsageError, match="set models_url"):
        open_served(f"file://{tmp_path}", None, "demo", 60.0)


def test_presigned_urls_give_the_blobs_of_one_fleet(s3: str):
    fleets = [open_served(s3, None, name, 60.0) for name in ("hall", "kitchen")]
    contents = {"ab" * 32: b"model", "cd" * 32: b"delta"}
    for served in fleets:
        assert served is not None
        served.check()
        urls = served.serve(contents)
        for digest, url in urls.items():
            parts = urlsplit(url)
            connection = http.client.HTTPConnection(parts.netloc)
            connection.request("GET", f"{parts.path}?{parts.query}")
            assert connection.getresponse().read() == contents[digest]
            connection.close()
    assert fleets[0] is not None
    fleets[0].close()
    assert fleets[1] is not None and fleets[1]._store.list() == sorted(contents)
