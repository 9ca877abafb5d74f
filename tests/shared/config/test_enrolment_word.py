"""The word of an enrolment, and the messages that it authenticates."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpatch.shared.config.enrolment_word import (
    MAX_REQUEST_BYTES,
    CertificateGiven,
    code_to_compare,
    decode_request,
    decode_sealed,
    digest_of,
    encode_request,
    is_authentic,
    keys_of,
    new_word,
    open_answer,
    seal_answer,
)
from fedpatch.shared.errors import DataError, UsageError

WORD = "7k3m-9qxt-2b8c-wd1z-hv50"
KEYS = keys_of(WORD)
ASKED = "the request"
GIVEN = CertificateGiven(
    request=digest_of(ASKED), fleet="kitchen", device="pi-1", broker="", broker_profile="", ca="CA", certificate="C"
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_word_has_100_bits_in_letters_that_look_different():
    words = {new_word() for _ in range(200)}
    letters = set("".join(words)) - {"-"}
    assert len(words) == 200 and len(letters) == 32 and not letters & set("ilou")
    assert all([len(part) for part in word.split("-")] == [4] * 5 for word in words)


@pytest.mark.parametrize(
    "typed",
    [WORD.upper(), WORD.replace("-", ""), f" {WORD.replace('-', ' ')} ", WORD.replace("1", "l").replace("0", "O")],
)
def test_word_typed_in_another_way_gives_the_same_keys(typed: str):
    assert keys_of(typed) == KEYS


@pytest.mark.parametrize("typed", ["", WORD[:-1], f"{WORD}0", WORD.replace("7", "u"), WORD.replace("7", "é")])
def test_text_that_is_no_word_is_refused_without_printing_it(typed: str):
    with pytest.raises(
        UsageError, match="no word of `fedpatch device invite`: it has 20 letters and digits"
    ) as refused:
        keys_of(typed)
    assert not typed or typed not in str(refused.value)


def test_keys_of_two_words_and_of_both_directions_differ():
    other = keys_of(new_word())
    values = (KEYS.invitation, KEYS.request, KEYS.answer, other.invitation, other.request, other.answer)
    assert len(set(values)) == 6


@given(TEXTS)
def test_request_is_authentic_for_its_word_only(request: str):
    asked = decode_request(encode_request(KEYS, request))
    assert asked.request == request and is_authentic(asked, KEYS.request)
    assert not is_authentic(asked, keys_of(new_word()).request)
    assert not is_authentic(asked, KEYS.answer)


@given(TEXTS, TEXTS)
def test_changed_request_or_invitation_is_not_authentic(request: str, other: str):
    assume(other != request)
    asked = decode_request(encode_request(KEYS, request))
    assert not is_authentic(replace(asked, request=other), KEYS.request)
    assert not is_authentic(replace(asked, invitation="0" * 16), KEYS.request)


@given(at=st.integers(min_value=0), bit=st.integers(0, 6))
def test_answer_with_any_changed_letter_is_refused(at: int, bit: int):
    sealed = seal_answer(GIVEN, KEYS.invitation, KEYS.answer)
    assert open_answer(sealed, KEYS, ASKED) == GIVEN
    text = sealed.answer
    at %= len(text)
    changed = text[:at] + chr(ord(text[at]) ^ (1 << bit)) + text[at + 1 :]
    with pytest.raises(DataError, match="does not know the word"):
        open_answer(replace(sealed, answer=changed), KEYS, ASKED)


def test_answer_of_another_word_another_request_or_another_invitation_is_refused():
    sealed = seal_answer(GIVEN, KEYS.invitation, KEYS.answer)
    for wrong in (
        seal_answer(GIVEN, KEYS.invitation, keys_of(new_word()).answer),
        seal_answer(GIVEN, KEYS.invitation, KEYS.request),
        seal_answer(GIVEN, "0" * 16, KEYS.answer),
        replace(sealed, mac=""),
        replace(sealed, mac="é"),
    ):
        with pytest.raises(DataError, match="does not know the word"):
            open_answer(wrong, KEYS, ASKED)
    with pytest.raises(DataError, match="for another request"):
        open_answer(sealed, KEYS, "another request")


def test_messages_have_neither_the_word_nor_its_keys():
    sealed = seal_answer(GIVEN, KEYS.invitation, KEYS.answer)
    sent = encode_request(KEYS, ASKED).decode() + sealed.answer + sealed.mac
    for secret in (WORD, WORD.replace("-", ""), KEYS.request.hex(), KEYS.answer.hex()):
        assert secret not in sent


def test_damaged_messages_are_refused():
    good = encode_request(KEYS, ASKED)
    later = json.dumps({**json.loads(good), "version": 2}).encode()
    with pytest.raises(DataError, match="of version 2; this fedpatch knows 1"):
        decode_request(later)
    for damaged in (b"", b"{}", good[:-1], good.replace(KEYS.invitation.encode(), b"../../../../etc/"), b"\xff"):
        with pytest.raises(DataError, match="damaged, or not a request"):
            decode_request(damaged)
    with pytest.raises(DataError, match="larger than a request"):
        decode_request(b" " * (MAX_REQUEST_BYTES + 1))
    with pytest.raises(DataError, match="damaged, or not an answer"):
        decode_sealed(b"<html>")


def test_code_to_compare_differs_between_requests():
    assert code_to_compare("a") != code_to_compare("b")
    assert [len(part) for part in code_to_compare("a").split("-")] == [4] * 4
