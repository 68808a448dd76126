"""Transformers: which key writes, which one reads, what is stale, and what an unreadable value is said to be.

Source: docs/protocol/encryption-at-rest.md#transformers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from mooring.secret import Secret
from mooring.trust.encryption.configuration import NOTHING, parse, parse_group_resource
from mooring.trust.encryption.encryptedobject import EncryptedDataKey
from mooring.trust.encryption.transformer import (
    PLAIN,
    DataKeyNeededError,
    Transformer,
    Transformers,
    UnreadableError,
    key_id_hash,
    written_by,
)
from tests.support.encryption import IDENTITY, entry, file, kms, local, provider_file
from tests.support.kmsplugin import opened

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "trust" / "encryption.json").read_text())
SECRETS = parse_group_resource("secrets")
KEY = b"/registry/secrets/default/a"
CBC1, CBC2, CBC21, BOX = local("aescbc", "1"), local("aescbc", "2"), local("aescbc", "2", "1"), local("secretbox", "1")
VAULT = kms("unix:///run/kms.sock")


def entropy(size: int) -> bytes:
    return hashlib.shake_256(b"entropy").digest(size)


def transformer(*providers: Any) -> Transformer:
    return Transformers(parse(file(entry("secrets", *providers)), "f")).of(SECRETS)


def sealed(*providers: Any) -> bytes:
    return transformer(*providers).seal(b"value", KEY, entropy, 0)


@pytest.mark.parametrize("row", VECTORS["values"], ids=lambda row: row["resource"])
def test_values_that_kube_apiserver_wrote_open(row: dict[str, str]) -> None:
    value, plain = (base64.b64decode(row[name]) for name in ("value", "plain"))
    transformers = Transformers(parse(provider_file("unix:///run/kms.sock"), "f"))
    found = transformers.of(parse_group_resource(row["resource"]))
    try:
        assert found.open(value, row["key"].encode(), 0) == (plain, False)
    except DataKeyNeededError as needed:
        seed = opened(needed.data_key.key_id, needed.data_key.ciphertext)
        needed.envelope.learn(needed, Secret(seed), 0)
        assert found.open(value, row["key"].encode(), 0)[0] == plain


@pytest.mark.parametrize(
    ("writer", "reader", "stale"),
    [
        pytest.param((CBC1,), (CBC1,), False, id="the key that writes"),
        pytest.param((CBC1,), (CBC21,), True, id="the second key of the first provider"),
        pytest.param((CBC1,), (BOX, CBC1), True, id="the second provider"),
        pytest.param((CBC1,), (CBC2, CBC1), True, id="a provider of the same kind"),
        pytest.param((IDENTITY,), (CBC1, IDENTITY), True, id="a plain value where a key writes"),
        pytest.param((CBC1,), (IDENTITY, CBC1), True, id="an encrypted value where identity writes"),
        pytest.param((IDENTITY,), (IDENTITY, CBC1), False, id="a plain value where identity writes"),
    ],
)
def test_who_reads_and_what_is_stale(writer: Any, reader: Any, stale: bool) -> None:
    assert transformer(*reader).open(sealed(*writer), KEY, 0) == (b"value", stale)


def test_a_key_of_the_same_name_in_another_provider_is_tried_next() -> None:
    other = {"aescbc": {"keys": [{"name": "1", "secret": base64.b64encode(b"o" * 32).decode()}]}}
    found = None
    for attempt in range(20):  # a wrong key of AES-CBC finds good padding in one of 256 values
        value = transformer(CBC1).seal(b"value", KEY, lambda size, seed=attempt: bytes([seed]) * size, 0)  # type: ignore[misc]  # mypy cannot infer a default of a lambda
        found = transformer(other, CBC1).open(value, KEY, 0)
        if found == (b"value", True):
            break
    assert found == (b"value", True)


@pytest.mark.parametrize(
    ("value", "providers", "message"),
    [
        pytest.param(
            sealed(CBC1),
            (CBC2,),
            "it was encrypted by aescbc 1, which is not configured for this resource",
            id="no key",
        ),
        pytest.param(sealed(CBC1), (IDENTITY,), "it was encrypted by aescbc 1, which is not", id="only identity"),
        pytest.param(b"{}", (CBC1,), "it is not encrypted, and the provider identity is not configured", id="plain"),
        pytest.param(
            sealed(BOX)[:-1], (BOX, IDENTITY), "secretbox 1: the stored data is not authentic", id="a damaged value"
        ),
        pytest.param(b"k8s:enc:kms:v2:vault:\xff", (VAULT,), "kms vault: the stored data is not an", id="no message"),
    ],
)
def test_an_unreadable_value_names_provider_and_key(value: bytes, providers: Any, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        transformer(*providers).open(value, KEY, 0)


def kms_value(transformers: Transformers) -> bytes:
    transformers.envelopes["vault"].replace(Secret(b"s" * 32), EncryptedDataKey(b"c", "id"), "id", 0)
    return transformers.of(SECRETS).seal(b"value", KEY, entropy, 0)


def test_a_plugin_writes_reads_and_is_asked_for_unknown_keys() -> None:
    configuration = parse(file(entry("secrets", VAULT, CBC1)), "f")
    first = Transformers(configuration)
    value = kms_value(first)
    assert value.startswith(b"k8s:enc:kms:v2:vault:")
    assert first.of(SECRETS).open(value, KEY, 0) == (b"value", False)
    restarted = Transformers(configuration)
    with pytest.raises(DataKeyNeededError) as caught:
        restarted.of(SECRETS).open(value, KEY, 0)
    with pytest.raises(UnreadableError, match="kms vault: refused by the plugin"):
        restarted.of(SECRETS).open(value, KEY, 0, refused={caught.value.data_key: "refused by the plugin"})
    kept = Transformers(configuration, first.envelopes)
    assert kept.of(SECRETS).open(value, KEY, 0) == (b"value", False)


def test_labels_and_prefixes() -> None:
    assert transformer(CBC21, IDENTITY).label == "aescbc 2"
    assert transformer(CBC21, IDENTITY).prefix == b"k8s:enc:aescbc:v1:2:"
    assert transformer(CBC21, IDENTITY).prefixes == (b"k8s:enc:aescbc:v1:2:", b"k8s:enc:aescbc:v1:1:")


def test_a_resource_without_providers_is_plain() -> None:
    transformers = Transformers(NOTHING)
    assert transformers.of(SECRETS) is PLAIN
    assert transformers.of(SECRETS) is PLAIN
    assert PLAIN.seal(b"value", KEY, entropy, 0) == b"value"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(b"{}", "identity", id="JSON"),
        pytest.param(b"k8s\x00", "identity", id="protobuf"),
        pytest.param(sealed(BOX), "secretbox 1", id="a local key"),
        pytest.param(b"k8s:enc:\xff\n", "\ufffd? ", id="dirt"),
        pytest.param(b"k8s:enc:kms:v1:old:x", "kms old", id="KMS v1"),
        pytest.param(b"k8s:enc:kms:v2:vault:\xff", "kms vault", id="no message"),
        pytest.param(
            kms_value(Transformers(parse(file(entry("secrets", VAULT)), "f"))),
            f"kms vault {key_id_hash('id')}",
            id="KMS v2",
        ),
    ],
)
def test_who_wrote_a_value(value: bytes, text: str) -> None:
    assert written_by(value) == text
