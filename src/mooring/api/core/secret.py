"""Secret: strategy and validation of the built-in types.

Rules kept here (docs/protocol/bootstrap-tokens.md#the-secret-of-a-token, docs/protocol/secrets-and-configmaps.md):
* `type` is Opaque by default and immutable. An update without it therefore says Opaque.
* `stringData` is write-only: it is merged over `data` and never stored.
* Some types require keys: service account tokens an annotation, TLS both its keys, registry credentials a JSON object, basic-auth
  one of two keys, ssh-auth a key that is not empty. Values never appear in an error.
* A TLS certificate and key that do not match are stored, with a warning.
* **Bootstrap tokens are not validated**: kube-apiserver stores malformed ones too, and their readers ignore them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from mooring.api.core.configmap import MAX_DATA, base64_size, immutability_errors, key_errors
from mooring.api.kind import Kind
from mooring.api.objectmeta import NAME
from mooring.apimachinery.codec.goerrors import json_syntax_error
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid, required, too_long
from mooring.pki.errors import PkiError
from mooring.pki.keys import public_key_der
from mooring.pki.x509.bundles import load_public_keys
from mooring.trust.bootstraptoken.tokensecret import SECRET_TYPE as BOOTSTRAP_TOKEN

OPAQUE = "Opaque"
SERVICE_ACCOUNT_TOKEN = "kubernetes.io/service-account-token"  # noqa: S105 - a type name, no secret
SERVICE_ACCOUNT_NAME = "kubernetes.io/service-account.name"
"""Annotation with the name of the ServiceAccount whose token the Secret holds."""
TLS = "kubernetes.io/tls"
BASIC_AUTH = "kubernetes.io/basic-auth"
SSH_AUTH = "kubernetes.io/ssh-auth"
_REGISTRY_KEYS = {"kubernetes.io/dockercfg": ".dockercfg", "kubernetes.io/dockerconfigjson": ".dockerconfigjson"}


def _default(obj: Obj) -> None:
    """Set the type, and merge `stringData` over `data`, in base64, before any other hook reads the data."""
    obj["type"] = obj.get("type") or OPAQUE
    texts = obj.pop("stringData", None)
    if texts:
        data = obj["data"] = dict(obj.get("data") or {})
        for key, text in texts.items():
            data[key] = base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _validate(obj: Obj) -> list[FieldError]:
    data: Mapping[str, str] = obj.get("data") or {}
    errors = key_errors(data, "data")
    if base64_size(data) > MAX_DATA:
        errors.append(too_long("data", MAX_DATA))
    kind = obj.get("type", OPAQUE)
    if kind == OPAQUE:
        return errors
    if kind == SERVICE_ACCOUNT_TOKEN:
        if not (obj["metadata"].get("annotations") or {}).get(SERVICE_ACCOUNT_NAME):
            errors.append(required(f"metadata.annotations[{SERVICE_ACCOUNT_NAME}]"))
    elif kind in _REGISTRY_KEYS:
        errors += _registry_credential_errors(data, _REGISTRY_KEYS[kind])
    elif kind == TLS:
        errors += [required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data]
    elif kind == BASIC_AUTH:
        if "username" not in data and "password" not in data:
            errors += [required("data[username]"), required("data[password]")]
    elif kind == SSH_AUTH and not data.get("ssh-privatekey"):
        errors.append(required("data[ssh-privatekey]"))
    return errors


def _registry_credential_errors(data: Mapping[str, str], key: str) -> list[FieldError]:
    """Validate registry credentials, which are a JSON object. The parser's message never quotes the text."""
    if key not in data:
        return [required(f"data[{key}]")]
    try:
        text = base64.b64decode(data[key])
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, binascii.Error):
        # Go's words name a character at most.
        detail = json_syntax_error(text) or "json: cannot unmarshal into Go value of type map[string]interface {}"
        return [invalid(f"data[{key}]", "<secret contents redacted>", detail)]
    return []


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = immutability_errors(new, old, ("data",))
    if new["type"] != old.get("type", OPAQUE):
        errors.insert(0, invalid("type", new["type"], "field is immutable"))
    return errors


def _warnings(obj: Obj, old: Obj | None) -> list[str]:
    if obj["type"] != TLS:
        return []
    pem = {name: base64.b64decode(obj["data"][name]) for name in ("tls.crt", "tls.key")}
    for name, what in (("tls.crt", "certificate"), ("tls.key", "key")):
        if b"-----BEGIN" not in pem[name]:
            return [f"tls: failed to find any PEM data in {what} input"]
    try:
        certificate, key = (load_public_keys(data)[0] for data in pem.values())
    except PkiError as error:
        return [f"tls: {error}"]
    return [] if public_key_der(certificate) == public_key_der(key) else ["tls: private key does not match public key"]


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Secret",
        plural="secrets",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.Secret"),
        columns=(
            NAME,
            Column("Type", lambda obj, now: obj.get("type", OPAQUE), description="What the data is meant for."),
            Column("Data", lambda obj, now: len(obj.get("data") or ()), type="integer", description="Number of keys."),
            AGE,
        ),
    ),
    storage="/registry/secrets",
    tracks_creator=lambda obj: obj.get("type") != BOOTSTRAP_TOKEN,
    name_errors=dns1123_subdomain_errors,
    default=_default,
    validate=_validate,
    validate_update=_validate_update,
    warnings=_warnings,
    selectable_fields=lambda obj: {"type": obj.get("type", "")},
    field_labels=("type",),
)
