"""Keys, boxes and keystreams against the known answers of their RFCs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.keys import (
    SecretKeys,
    _agree,
    _derive,
    check_distinct_keys,
    commitment_to,
    is_available,
    key_in_any_form,
    keystream,
    open_box,
    pair_mask_seed,
    public_key,
    seal_box,
    self_mask_seed,
)
from fedpatch.shared.wire.masking_messages import MAX_BOX_BYTES, SHARE_BYTES, GroupMember, MaskingKeys

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
CONTEXT = b"\xc7" * 32
SHARES = (b"\x01" * 33, b"\x02" * 33)


def test_key_agreement_is_that_of_rfc_7748_section_6_1():
    assert public_key(ALICE).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert public_key(BOB).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert _agree(ALICE, public_key(BOB)).hex() == _agree(BOB, public_key(ALICE)).hex() == shared


def test_keystream_is_that_of_rfc_8439_appendix_a_1():
    """Key and nonce of zeros, blocks 0 and 1 (test vectors 1 and 2)."""
    assert keystream(bytes(32), 128).hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_key_derivation_is_that_of_rfc_5869_appendix_a_1():
    derived = _derive(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)))
    assert derived.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_two_members_derive_the_same_seed_and_another_group_another_one():
    seed = pair_mask_seed(ALICE, public_key(BOB), CONTEXT, (0, 1))
    assert seed == pair_mask_seed(BOB, public_key(ALICE), CONTEXT, (1, 0))
    assert seed != pair_mask_seed(ALICE, public_key(BOB), bytes(32), (0, 1))
    assert self_mask_seed(ALICE, CONTEXT) != self_mask_seed(ALICE, bytes(32))
    assert commitment_to(ALICE, CONTEXT) != commitment_to(ALICE, bytes(32))


def test_box_opens_for_its_receiver_alone():
    box = seal_box(ALICE, public_key(BOB), CONTEXT, (0, 1), SHARES)
    assert len(box) == 2 * SHARE_BYTES + 16 <= MAX_BOX_BYTES
    assert open_box(BOB, public_key(ALICE), CONTEXT, (0, 1), box) == SHARES


@pytest.mark.parametrize(
    ("private", "context", "ends", "change"),
    [
        (ALICE, CONTEXT, (0, 1), 0),  # another receiver
        (BOB, bytes(32), (0, 1), 0),  # another group
        (BOB, CONTEXT, (1, 0), 0),  # the other direction
        (BOB, CONTEXT, (0, 1), 1),  # another byte
    ],
)
def test_box_that_does_not_fit_is_a_wire_error(private, context, ends, change):
    box = bytearray(seal_box(ALICE, public_key(BOB), CONTEXT, (0, 1), SHARES))
    box[0] ^= change
    with pytest.raises(WireError, match="does not open"):
        open_box(private, public_key(ALICE), context, ends, bytes(box))


@pytest.mark.parametrize("length", [0, 1, 15, 16, 81, 120])
def test_box_of_another_length_is_a_wire_error(length):
    with pytest.raises(WireError, match="member 0"):
        open_box(BOB, public_key(ALICE), CONTEXT, (0, 1), bytes(length))


@pytest.mark.parametrize("point", [bytes(32), b"\x01" + bytes(31)])
def test_public_key_of_small_order_is_a_wire_error(point):
    """Its shared secret is always zero, hence not secret."""
    with pytest.raises(WireError, match="not a usable X25519 key"):
        pair_mask_seed(ALICE, point, CONTEXT, (0, 1))


_PRIME = 2**255 - 19


def forms_of(key: bytes) -> dict[str, bytes]:
    """Other bytes of a public key with the same secrets: RFC 7748 ignores bit 255, and reduces; a clamped key clears 8."""
    number = int.from_bytes(key, "little")
    return {
        "bit 255": bytes([*key[:31], key[31] ^ 0x80]),
        # The sum with the point (0, 0) of order two has the inverse coordinate.
        "plus a point of order two": pow(number, -1, _PRIME).to_bytes(32, "little"),
    }


@pytest.mark.parametrize("form", ["bit 255", "plus a point of order two"])
def test_copied_key_is_found_in_any_form_and_gives_other_masks(form):
    copied = forms_of(public_key(BOB))[form]
    assert copied != public_key(BOB)
    assert _agree(ALICE, copied) == _agree(ALICE, public_key(BOB))
    assert key_in_any_form(copied) == key_in_any_form(public_key(BOB)) != key_in_any_form(public_key(ALICE))
    own = pair_mask_seed(ALICE, public_key(BOB), CONTEXT, (0, 1))
    assert pair_mask_seed(ALICE, copied, CONTEXT, (0, 2)) != own


def test_roster_with_a_copied_key_is_refused_by_the_names_of_both():
    def member(name: str, share: bytes, mask: bytes) -> GroupMember:
        return GroupMember(name, MaskingKeys(share, mask))

    keys = [public_key(bytes([number]) * 32) for number in range(1, 5)]
    honest = (member("pi-1", keys[0], keys[1]), member("pi-2", keys[2], keys[3]))
    check_distinct_keys(honest)
    for copied in (keys[1], *forms_of(keys[1]).values()):
        for liar in (member("pi-9", keys[3], copied), member("pi-9", copied, keys[2])):
            with pytest.raises(WireError, match="pi-1 and pi-9 have the same key"):
                check_distinct_keys((honest[0], liar))
    with pytest.raises(WireError, match="not a usable X25519 key"):
        check_distinct_keys((honest[0], member("pi-9", keys[2], bytes(32))))


def test_cryptography_is_available_where_it_is_installed(monkeypatch):
    assert is_available()
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert not is_available()


def test_secrets_are_not_in_their_text():
    secrets = SecretKeys.new(lambda count: b"\x2a" * count)
    assert "2a" not in repr(secrets)
    assert "*" not in repr(secrets)


def test_erased_secrets_have_no_bytes():
    assert not any(vars(SecretKeys.erased()).values())


@pytest.mark.medium
def test_agent_imports_no_cryptography_before_a_masked_round():
    """It takes 12 MB; the modules of the agent's process import it in the functions that need it."""
    program = (
        "import sys, fedpatch.device_agent.runtime.startup as startup; import fedpatch.shared.masking.unmasking\n"
        "from fedpatch.device_agent.policy.secure_limits import SecureLimits\n"
        "assert SecureLimits().offers\n"
        "print([name for name in sys.modules if name.startswith(('cryptography', 'numpy'))])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
