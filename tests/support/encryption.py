"""EncryptionConfigurations of tests, with keys that are no secrets."""

from __future__ import annotations

import base64
import json
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.trust.encryption.configuration import API_VERSION, KIND

CONFIGURED = {
    "secrets": b"k8s:enc:aescbc:v1:key1:",
    "configmaps": b"k8s:enc:aesgcm:v1:key1:",
    "serviceaccounts": b"k8s:enc:secretbox:v1:key1:",
    "leases.coordination.k8s.io": b"k8s:enc:kms:v2:vault:",
}
"""Resources that `provider_file` encrypts, each by another provider, and the first bytes of their values."""


def key(name: str) -> Obj:
    """Return a key of 32 bytes, which follow from its name."""
    return {"name": name, "secret": base64.b64encode(name.encode().ljust(32, b".")).decode()}


def entry(resources: str, *providers: Obj) -> Obj:
    """Return an entry for resources with commas between."""
    return {"resources": resources.split(","), "providers": list(providers)}


def local(kind: str, *names: str) -> Obj:
    """Return a provider with keys of these names."""
    return {kind: {"keys": [key(name) for name in names]}}


def kms(endpoint: str, **more: Any) -> Obj:
    """Return a KMS v2 provider named vault."""
    return {"kms": {"apiVersion": "v2", "name": "vault", "endpoint": endpoint, **more}}


IDENTITY: Obj = {"identity": {}}


def file(*entries: Obj) -> bytes:
    """Return an EncryptionConfiguration."""
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "resources": entries}).encode()


def provider_file(endpoint: str) -> bytes:
    """Return the configuration of `CONFIGURED`, with a KMS plugin at `endpoint`."""
    return file(
        entry("secrets", local("aescbc", "key1")),
        entry("configmaps", local("aesgcm", "key1")),
        entry("serviceaccounts", local("secretbox", "key1")),
        entry("leases.coordination.k8s.io", kms(endpoint), IDENTITY),
    )
