"""The terms of a console: settings that are refused before it listens, TLS, logins, hosts and origins."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

pytest.importorskip("uvicorn", reason="the console is not installed (pip install 'fedpatch[console]')")

from fedpatch.coordinator.cli.main import app
from fedpatch.coordinator.console.beside import local_address
from fedpatch.coordinator.console.listen_terms import TOKEN_FILE, ConsoleTerms, token_of
from fedpatch.coordinator.console.logins import (
    FAILURES_S,
    MAX_FAILURES,
    MAX_SESSIONS,
    SESSION_S,
    Access,
    known_host,
    own_origin,
)
from fedpatch.shared.app.command import run_app
from fedpatch.shared.config.listen_address import parse_address
from fedpatch.shared.errors import UsageError
from tests.coordinator.console.consoles import TOKEN, filled, served
from tests.support.identities import Certified
from tests.support.programs import Program


def _token(place: Path, text: str = TOKEN, mode: int = 0o600) -> Path:
    place.write_text(text)
    place.chmod(mode)
    return place


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        (("--listen", "0.0.0.0:0"), "give --tls-cert and --tls-key"),
        (("--listen", "192.0.2.1:0", "--tls-cert", "c.pem"), "give --token-file or --client-ca"),
        (("--listen", "[::]:0"), "needs TLS"),
        (("--client-ca", "ca.pem"), "give --tls-cert too"),
        (("--tls-key", "key.pem"), "give --tls-cert too"),
        (("--tls-cert", "none.pem"), "correct --tls-cert"),
        (("--listen", "nowhere"), "is no HOST:PORT"),
        (("--token-file", "none", "--actions"), "openssl rand -hex 24"),
        (("--begin", "nightly.toml"), "give --actions too"),
        (("--begin", "nightly.toml", "--actions"), "nightly.toml"),
    ],
)
def test_unsafe_or_unusable_terms_end_with_exit_code_2_and_the_remedy(options, remedy, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ended = Program(lambda: run_app(app, "fedpatch"), monkeypatch, capsys)(
        "console", "--state-dir", tmp_path, "--broker", "none", *options
    )
    assert ended.code == 2 and remedy in ended.err and ended.out == ""


def test_address_in_use_ends_with_exit_code_2(tmp_path, monkeypatch, capsys):
    with filled(tmp_path), served(tmp_path) as other:
        run = Program(lambda: run_app(app, "fedpatch"), monkeypatch, capsys)
        ended = run("console", "--state-dir", tmp_path, "--broker", "none", "--listen", f"127.0.0.1:{other.port}")
        assert ended.code == 2 and "--listen names another HOST:PORT" in ended.err


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.9.9.9:1"])
def test_loopback_needs_neither_tls_nor_token(host):
    ConsoleTerms(listen=parse_address(host)).check()
    assert local_address(host) == parse_address(host)


def test_console_beside_a_run_is_for_this_machine():
    with pytest.raises(UsageError, match="--tls-cert and --token-file"):
        local_address("0.0.0.0:8465")


def test_token_that_is_not_given_is_made_once_for_its_owner_alone(tmp_path):
    terms = ConsoleTerms(listen=parse_address("127.0.0.1:0"), actions=True)
    token, place = token_of(terms, tmp_path)
    assert place is not None and place == tmp_path / TOKEN_FILE and place.stat().st_mode & 0o777 == 0o600
    assert token is not None and len(token) >= 32
    assert token_of(terms, tmp_path) == (token, place)
    assert token_of(ConsoleTerms(listen=terms.listen), tmp_path) == (None, None)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [("short", 0o600, "16 or more"), (TOKEN, 0o644, "open to other users"), ("ä" * 20, 0o600, "ASCII")],
)
def test_weak_token_file_is_refused(tmp_path, text, mode, why):
    terms = ConsoleTerms(listen=parse_address("127.0.0.1:0"), token_file=_token(tmp_path / "token", text, mode))
    with pytest.raises(UsageError, match=why):
        token_of(terms, tmp_path)


def test_token_file_that_systemd_gives_its_service_is_taken(tmp_path, monkeypatch):
    terms = ConsoleTerms(listen=parse_address("127.0.0.1:0"), token_file=_token(tmp_path / "token", mode=0o440))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert token_of(terms, None) == (TOKEN, tmp_path / "token")


def _get(url: str, context: ssl.SSLContext) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    ("password", "mode", "remedy"),
    [("abcd", 0o600, "without a password.*correct --tls-cert and --tls-key"), ("", 0o644, "chmod 600")],
)
def test_key_with_a_password_or_open_to_others_is_refused_without_a_question(tmp_path, password, mode, remedy):
    pair = Certified(tmp_path).make().directory / "broker"
    key = tmp_path / "own.key"
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    parsed = load_pem_private_key((pair / "broker.key").read_bytes(), None)
    key.write_bytes(parsed.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    key.chmod(mode)
    with pytest.raises(UsageError, match=remedy):
        ConsoleTerms(listen=parse_address("127.0.0.1:1"), tls_cert=pair / "broker.crt", tls_key=key).ssl_context()


def test_over_tls_a_browser_with_a_certificate_reads_and_one_without_gets_no_answer(tmp_path):
    fleet = Certified(tmp_path / "ca").make("ann")
    place = tmp_path / "ca" / "broker"
    terms = {"tls_cert": place / "broker.crt", "tls_key": place / "broker.key", "client_ca": fleet.ca_file}
    with filled(tmp_path / "state"), served(tmp_path / "state", **terms) as console:
        assert console.url.startswith("https://")
        context = ssl.create_default_context(cafile=fleet.ca_file)
        with pytest.raises(OSError):
            _get(f"{console.url}api/runs/last", context)
        context.load_cert_chain(*fleet.pair("ann"))
        assert _get(f"{console.url}api/runs/last", context) == 200


def test_console_for_other_machines_answers_nothing_but_the_login_page_before_a_login(tmp_path):
    terms = ConsoleTerms(listen=parse_address("0.0.0.0:1"), tls_cert=tmp_path, token_file=tmp_path)
    terms.check()
    assert terms.read_needs_login
    access = Access(token=TOKEN, read_needs_login=True, actions=False, secure=True)
    assert access.cookie_name.startswith("__Host-")
    assert not access.may_read(None) and not access.may_read("wrong")
    name = access.login(TOKEN)
    session = access.session(name)
    assert session is not None and access.may_read(name) and not access.may_act(name, session.csrf)


def test_session_ends_after_its_time_and_the_oldest_of_many_is_dropped():
    now = [0.0]
    access = Access(token=TOKEN, read_needs_login=False, actions=True, secure=False, clock=lambda: now[0])
    first = access.login(TOKEN)
    names = [access.login(TOKEN) for _ in range(MAX_SESSIONS)]
    assert access.session(first) is None and access.session(names[0]) is not None
    now[0] = SESSION_S
    assert access.session(names[-1]) is None


def test_wrong_tokens_bar_logins_until_their_time_is_over():
    now = [0.0]
    access = Access(token=TOKEN, read_needs_login=False, actions=True, secure=False, clock=lambda: now[0])
    for _ in range(MAX_FAILURES):
        access.login("wrong")
    assert access.barred_s() == FAILURES_S
    now[0] = FAILURES_S
    assert access.barred_s() == 0.0


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9000", "[::1]:8465", "[::1]"])
def test_own_names_are_known_at_any_port(host):
    assert known_host(host, {"localhost", "127.0.0.1", "::1"})


@pytest.mark.parametrize(
    "host", ["", "evil", "localhost.evil", "localhost:x", "localhost:80:80", "@localhost", "[::1", ":80"]
)
def test_other_names_are_not_known(host):
    assert not known_host(host, {"localhost", "127.0.0.1"})


@pytest.mark.parametrize(
    "origin", [None, "null", "http://localhost", "https://localhost:1", "http://localhost:1/", "http://x:1"]
)
def test_origin_other_than_the_console_is_rejected(origin):
    assert own_origin("http://localhost:1", "localhost:1", secure=False)
    assert not own_origin(origin, "localhost:1", secure=False)


def test_missing_extra_is_named_with_the_remedy(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedpatch.coordinator.console.beside.find_spec", lambda _: None)
    ended = Program(lambda: run_app(app, "fedpatch"), monkeypatch, capsys)("console", "--state-dir", tmp_path)
    assert ended.code == 2 and "pip install 'fedpatch[console]'" in ended.err


def test_json_names_the_url_and_the_token_file(tmp_path):
    from fedpatch.coordinator.console.server import ready_line

    line = json.loads(ready_line("http://127.0.0.1:1/", tmp_path, actions=True))
    assert line == {"url": "http://127.0.0.1:1/", "actions": True, "token_file": str(tmp_path)}
