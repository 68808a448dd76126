"""The document of /v1-k3s/encrypt/status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mooring.secret import Secret
from mooring.trust.encryption.configuration import EncryptionProvider, Key, KmsPlugin
from mooring.trust.k3s.settings import encryption_status


def with_keys(kind: str, *names: str) -> EncryptionProvider:
    return EncryptionProvider(kind, tuple(Key(name, Secret(b"0" * 32)) for name in names))


IDENTITY = EncryptionProvider("identity")
KMS = EncryptionProvider("kms", plugin=KmsPlugin("vault", "/run/kms"))


@pytest.mark.parametrize(
    ("providers", "stale", "hashes", "expected"),
    [
        pytest.param([], 0, {""}, {"stage": "", "activekey": ""}, id="without a configuration it is empty"),
        pytest.param(
            [with_keys("aescbc", "new", "old"), IDENTITY],
            0,
            {"a"},
            {
                "stage": "start",
                "activekey": "AES-CBC new",
                "enable": True,
                "hashmatch": True,
                "inactivekeys": ["AES-CBC old"],
            },
            id="the first key writes",
        ),
        pytest.param(
            [IDENTITY, with_keys("secretbox", "one")],
            0,
            {"a"},
            {
                "stage": "start",
                "activekey": "",
                "enable": False,
                "hashmatch": True,
                "inactivekeys": ["XSalsa20-POLY1305 one"],
            },
            id="identity first is turned off",
        ),
        pytest.param(
            [with_keys("aesgcm", "one"), IDENTITY],
            3,
            {"a", "b"},
            {
                "stage": "rotate",
                "activekey": "AES-GCM one",
                "enable": True,
                "hasherror": "the servers use different encryption configurations",
            },
            id="stale values and servers that differ",
        ),
        pytest.param(
            [KMS, IDENTITY],
            0,
            {"a"},
            {"stage": "start", "activekey": "KMS vault", "enable": True, "hashmatch": True},
            id="a plugin is named",
        ),
    ],
)
def test_status(
    providers: Sequence[EncryptionProvider], stale: int, hashes: set[str], expected: dict[str, Any]
) -> None:
    assert encryption_status(providers, stale, hashes) == expected
