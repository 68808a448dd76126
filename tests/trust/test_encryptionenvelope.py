"""Envelope of a KMS plugin: seeds, data keys, staleness, and the time for which writing goes on without the plugin.

Source: docs/protocol/encryption-at-rest.md#kms-v2.
"""

from __future__ import annotations

import hashlib

import pytest

from mooring.secret import Secret
from mooring.trust.encryption import transformer as module
from mooring.trust.encryption.encryptedobject import (
    AES_GCM_KEY,
    AesGcm,
    CipherError,
    EncryptedDataKey,
    EncryptedObject,
    encode_encrypted_object,
)
from mooring.trust.encryption.transformer import (
    DATA_KEY_SECONDS,
    WRITE_SECONDS,
    DataKeyNeededError,
    Envelope,
    PluginStatus,
)

KEY = b"/registry/secrets/default/a"
SEED = Secret(b"s" * 32)


def entropy(size: int) -> bytes:
    return hashlib.shake_256(b"entropy").digest(size)


def data_key(key_id: str, ciphertext: bytes = b"c") -> EncryptedDataKey:
    return EncryptedDataKey(ciphertext, key_id)


def primed(key_id: str = "one", now: float = 0.0) -> Envelope:
    envelope = Envelope("vault")
    envelope.replace(SEED, data_key(key_id), key_id, now)
    return envelope


def learn(envelope: Envelope, value: bytes) -> None:
    """Let the envelope learn the data key of a value, which SEED encrypted."""
    with pytest.raises(DataKeyNeededError) as caught:
        envelope.open(value, KEY, 0)
    envelope.learn(caught.value, SEED, 0)


def test_a_value_opens_with_the_seed_that_wrote_it() -> None:
    envelope = primed()
    assert envelope.open(envelope.seal(b"value", KEY, entropy, 0), KEY, 0) == (b"value", False)


def test_nothing_is_written_before_the_plugin_was_reached() -> None:
    with pytest.raises(CipherError, match="has not been reached yet: see that it runs and listens at its endpoint"):
        Envelope("vault").seal(b"value", KEY, entropy, 0)


def test_writing_ends_some_time_after_the_last_news() -> None:
    envelope = primed()
    envelope.seal(b"value", KEY, entropy, WRITE_SECONDS)
    with pytest.raises(CipherError, match="not been healthy for more than 180 s"):
        envelope.seal(b"value", KEY, entropy, WRITE_SECONDS + 1)
    assert envelope.is_current("one")
    envelope.extend(100)
    envelope.seal(b"value", KEY, entropy, WRITE_SECONDS + 100)


def test_a_new_key_of_the_plugin_makes_values_stale_and_readable_still() -> None:
    envelope = primed()
    value = envelope.seal(b"value", KEY, entropy, 0)
    assert not envelope.is_current("two")
    envelope.replace(Secret(b"t" * 32), data_key("two", b"d"), "two", 5)
    assert envelope.key_id == "two"
    assert envelope.open(value, KEY, 5) == (b"value", True)


def test_an_unknown_data_key_is_asked_for_and_then_known_for_a_day() -> None:
    value = primed().seal(b"value", KEY, entropy, 0)
    restarted = Envelope("vault")
    with pytest.raises(DataKeyNeededError) as caught:
        restarted.open(value, KEY, 0)
    assert caught.value.data_key == data_key("one")
    assert caught.value.envelope is restarted
    with pytest.raises(CipherError, match="not authentic"):
        restarted.learn(caught.value, Secret(b"w" * 32), 0)
    with pytest.raises(DataKeyNeededError):  # a wrong answer is not kept
        restarted.open(value, KEY, 0)
    restarted.learn(caught.value, SEED, 0)
    assert restarted.open(value, KEY, DATA_KEY_SECONDS) == (b"value", True)  # stale: nothing writes yet
    with pytest.raises(DataKeyNeededError):
        restarted.open(value, KEY, DATA_KEY_SECONDS + 1)


def test_a_data_key_of_the_older_form_is_the_key_itself() -> None:
    key = EncryptedDataKey(b"c", "one", (), AES_GCM_KEY)
    value = encode_encrypted_object(EncryptedObject(AesGcm(SEED).seal(b"value", KEY, entropy), key))
    envelope = primed()
    learn(envelope, value)
    assert envelope.open(value, KEY, 0) == (b"value", True)  # stale: the form is not the one written now


@pytest.mark.parametrize("source", [AES_GCM_KEY, 1])
def test_something_that_is_no_key_is_refused(source: int) -> None:
    envelope = primed()
    needed = DataKeyNeededError(envelope, EncryptedObject(b"", EncryptedDataKey(b"c", "one", (), source)), KEY)
    with pytest.raises(CipherError, match=r"no data key|shorter than 32 bytes"):
        envelope.learn(needed, Secret(b"short"), 0)


def test_data_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DATA_KEYS", 2)
    first, *others = [primed(name).seal(b"value", KEY, entropy, 0) for name in ("one", "two", "three")]
    envelope = Envelope("vault")
    for value in (first, *others):
        learn(envelope, value)
    with pytest.raises(DataKeyNeededError):
        envelope.open(first, KEY, 0)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(PluginStatus("v2", "sealed", "one"), "says that it is not healthy", id="not healthy"),
        pytest.param(PluginStatus("v1", "ok", "one"), "another version of the API than v2", id="another version"),
        pytest.param(PluginStatus("v2", "ok", ""), "keyID is empty", id="no key id"),
    ],
)
def test_a_plugin_that_is_not_healthy(status: PluginStatus, message: str) -> None:
    with pytest.raises(CipherError, match=message):
        primed().check_status(status)


def test_the_version_does_not_change() -> None:
    envelope = primed()
    envelope.check_status(PluginStatus("v2beta1", "ok", "one"))
    with pytest.raises(CipherError, match="from v2beta1 to v2"):
        envelope.check_status(PluginStatus("v2", "ok", "one"))


def test_a_seed_that_another_key_encrypted_is_refused_and_the_present_one_stays() -> None:
    envelope = primed()
    with pytest.raises(CipherError, match="with another key than the one that its status names"):
        envelope.replace(Secret(b"t" * 32), data_key("two"), "three", 0)
    assert envelope.key_id == "one"
