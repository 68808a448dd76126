"""Secret and ConfigMap: defaults, validation, immutability, warnings.

Source: docs/protocol/bootstrap-tokens.md#the-secret-of-a-token, docs/protocol/secrets-and-configmaps.md.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

from mooring.api.core.configmap import MAX_DATA
from mooring.api.kinds import BY_PLURAL
from tests.support.changes import NOW, created, updated
from tests.support.testca import ThrowawayCA

SECRET = BY_PLURAL["secrets"]
CONFIG_MAP = BY_PLURAL["configmaps"]

Obj = dict[str, Any]

IMMUTABLE = "Forbidden: field is immutable when `immutable` is set"
DOCKER = "kubernetes.io/dockerconfigjson"
SA_TOKEN = "kubernetes.io/service-account-token"
TLS = "kubernetes.io/tls"


def b64(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


HIDDEN = 'Invalid value: "<secret contents redacted>"'


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param({}, {"type": "Opaque"}, id="the type is Opaque when not given"),
        pytest.param({"type": ""}, {"type": "Opaque"}, id="or empty"),
        pytest.param({"type": "mine"}, {"type": "mine"}, id="any other type is kept"),
        pytest.param({"stringData": {}}, {"type": "Opaque"}, id="empty stringData leaves nothing behind"),
        pytest.param(
            {"data": {"a": b64("1"), "b": b64("2")}, "stringData": {"b": "zwei", "c": "é"}},
            {"type": "Opaque", "data": {"a": b64("1"), "b": b64("zwei"), "c": b64("é")}},
            id="stringData is merged over data and gone",
        ),
        pytest.param(
            {"stringData": {"c": "x"}},
            {"type": "Opaque", "data": {"c": b64("x")}},
            id="stringData makes data when there is none",
        ),
    ],
)
def test_a_created_secret(given: Obj, made: Obj) -> None:
    obj, errors = created(SECRET, given)
    del obj["metadata"]
    assert (obj, errors) == (made, [])


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        pytest.param({"type": "bootstrap.kubernetes.io/token"}, [], id="a malformed bootstrap token is stored"),
        pytest.param({"data": {"k": b64(b"x" * MAX_DATA)}}, [], id="1 MiB fits"),
        pytest.param(
            {"data": {"k": b64(b"x" * MAX_DATA), "l": b64("y")}},
            ["data: Too long: may not be more than 1048576 bytes"],
            id="one byte more does not",
        ),
        pytest.param(
            {"data": {"..": ""}},
            ["data[..]: Invalid value: \"..\": must not be '..'"],
            id="keys are file names",
        ),
        pytest.param(
            {"type": SA_TOKEN},
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            id="a service account token says whose",
        ),
        pytest.param(
            {"type": SA_TOKEN, "metadata": {"name": "x", "annotations": {"kubernetes.io/service-account.name": "sa"}}},
            [],
            id="and that is enough",
        ),
        pytest.param(
            {"type": "kubernetes.io/tls"},
            ["data[tls.crt]: Required value", "data[tls.key]: Required value"],
            id="TLS needs both keys",
        ),
        pytest.param(
            {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}, [], id="which may be empty"
        ),
        pytest.param(
            {"type": DOCKER}, ["data[.dockerconfigjson]: Required value"], id="registry credentials need their key"
        ),
        pytest.param(
            {"type": DOCKER, "data": {".dockerconfigjson": b64('{"auths":{}}')}}, [], id="holding a JSON object"
        ),
        pytest.param(
            {"type": DOCKER, "data": {".dockerconfigjson": b64("s3cret")}},
            [f"data[.dockerconfigjson]: {HIDDEN}: invalid character 's' looking for beginning of value"],
            id="and never quote what is no JSON",
        ),
        pytest.param(
            {"type": "kubernetes.io/dockercfg", "data": {".dockercfg": b64("[1]")}},
            [f"data[.dockercfg]: {HIDDEN}: json: cannot unmarshal into Go value of type map[string]interface {{}}"],
            id="a JSON list is no object",
        ),
        pytest.param(
            {"type": "kubernetes.io/dockercfg", "data": {".dockercfg": b64(b"\xff\xfe")}},
            [f"data[.dockercfg]: {HIDDEN}: invalid character 'ÿ' looking for beginning of value"],
            id="nor are bytes that are no text",
        ),
        pytest.param(
            {"type": "kubernetes.io/basic-auth"},
            ["data[username]: Required value", "data[password]: Required value"],
            id="basic-auth needs a username or a password",
        ),
        pytest.param(
            {"type": "kubernetes.io/basic-auth", "data": {"password": ""}}, [], id="one is enough, even empty"
        ),
        pytest.param(
            {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": ""}},
            ["data[ssh-privatekey]: Required value"],
            id="ssh-auth needs a key that is not empty",
        ),
        pytest.param(
            {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": b64("k")}}, [], id="and is content with one"
        ),
    ],
)
def test_secret_validation(given: Obj, errors: list[str]) -> None:
    assert created(SECRET, given)[1] == errors


PLAIN = {"type": "Opaque", "data": {"a": b64("1")}}
FIXED = {**PLAIN, "immutable": True}


@pytest.mark.parametrize(
    ("old", "new", "errors"),
    [
        pytest.param(PLAIN, {"data": {"b": b64("2")}}, [], id="data may change, and no type is Opaque"),
        pytest.param(
            {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}},
            {"type": "", "data": {"tls.crt": "", "tls.key": ""}},
            ['type: Invalid value: "Opaque": field is immutable'],
            id="which another type does not become",
        ),
        pytest.param(
            PLAIN, {"type": "mine"}, ['type: Invalid value: "mine": field is immutable'], id="the type never changes"
        ),
        pytest.param(PLAIN, {**PLAIN, "immutable": True}, [], id="a Secret may be frozen"),
        pytest.param(FIXED, FIXED, [], id="a frozen one may be written as it is"),
        pytest.param(FIXED, {"immutable": True}, [f"data: {IMMUTABLE}"], id="but not changed"),
        pytest.param(FIXED, PLAIN, [f"immutable: {IMMUTABLE}"], id="nor thawed"),
    ],
)
def test_secret_update(old: Obj, new: Obj, errors: list[str]) -> None:
    stored = created(SECRET, old)[0]
    assert updated(SECRET, new, stored)[1] == errors


def test_a_secret_without_type_in_storage_is_opaque() -> None:
    stored = created(SECRET, {})[0]
    del stored["type"]
    new, errors = updated(SECRET, {}, stored)
    assert (new["type"], errors) == ("Opaque", [])


def test_a_secret_is_selected_by_type_and_printed_by_count() -> None:
    obj = created(SECRET, {"type": "mine", "data": {"a": "", "b": ""}})[0]
    assert SECRET.selectable_fields(obj) == {"type": "mine"}
    assert [column.cell(obj, NOW) for column in SECRET.resource.columns] == ["x", "mine", 2, "0s"]


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        pytest.param({}, [], id="an empty one is fine"),
        pytest.param({"data": {"a": "1"}, "binaryData": {"b": b64("2")}}, [], id="text and bytes together are fine"),
        pytest.param(
            {"data": {"a": "1"}, "binaryData": {"a": b64("2"), ".": ""}},
            [
                'data[a]: Invalid value: "a": duplicate of key present in binaryData',
                "binaryData[.]: Invalid value: \".\": must not be '.'",
            ],
            id="but no key twice, and all are file names",
        ),
        pytest.param(
            {"data": {"..": ""}}, ["data[..]: Invalid value: \"..\": must not be '..'"], id="keys are file names"
        ),
        pytest.param({"data": {"a": "é" * (MAX_DATA // 2)}}, [], id="1 MiB fits"),
        pytest.param(
            {"data": {"a": "é" * (MAX_DATA // 2)}, "binaryData": {"b": b64("x")}},
            ["[]: Too long: may not be more than 1048576 bytes"],
            id="one byte more does not",
        ),
    ],
)
def test_config_map_validation(given: Obj, errors: list[str]) -> None:
    assert created(CONFIG_MAP, given)[1] == errors


@pytest.mark.parametrize(
    ("new", "errors"),
    [
        pytest.param({"data": {"a": "1"}, "immutable": True}, [], id="a frozen one may be written as it is"),
        pytest.param(
            {"data": {"a": "2"}, "binaryData": {"b": ""}},
            [f"immutable: {IMMUTABLE}", f"data: {IMMUTABLE}", f"binaryData: {IMMUTABLE}"],
            id="but neither thawed nor changed",
        ),
    ],
)
def test_an_immutable_config_map(new: Obj, errors: list[str]) -> None:
    stored = created(CONFIG_MAP, {"data": {"a": "1"}, "immutable": True})[0]
    assert updated(CONFIG_MAP, new, stored)[1] == errors


def test_a_config_map_counts_text_and_bytes() -> None:
    obj = created(CONFIG_MAP, {"data": {"a": "1"}, "binaryData": {"b": ""}})[0]
    assert [column.cell(obj, NOW) for column in CONFIG_MAP.resource.columns] == ["x", 2, "0s"]


PAIR = ThrowawayCA().client("a")
OTHER = ThrowawayCA().client("a")


@pytest.mark.parametrize(
    ("kind", "certificate", "key", "warnings"),
    [
        pytest.param(TLS, PAIR.certificate_pem, PAIR.key_pem, [], id="a pair"),
        pytest.param(
            TLS, PAIR.certificate_pem, OTHER.key_pem, ["tls: private key does not match public key"], id="no pair"
        ),
        pytest.param(TLS, b"", b"", ["tls: failed to find any PEM data in certificate input"], id="nothing"),
        pytest.param(TLS, PAIR.certificate_pem, b"x", ["tls: failed to find any PEM data in key input"], id="no key"),
        pytest.param(
            TLS,
            PAIR.certificate_pem,
            b"-----BEGIN X-----\nAAAA\n-----END X-----\n",
            ["tls: the text holds no public key in PEM form"],
            id="a key of no known kind",
        ),
        pytest.param("Opaque", b"", b"", [], id="another type may hold anything"),
    ],
)
def test_a_tls_secret_whose_key_does_not_match_is_stored_with_a_warning(
    kind: str, certificate: bytes, key: bytes, warnings: list[str]
) -> None:
    data = {"tls.crt": b64(certificate), "tls.key": b64(key)}
    made = {"metadata": {"name": "a"}, "type": kind, "data": data}
    assert SECRET.validate(made) == []
    assert SECRET.warnings(made, None) == SECRET.warnings(made, made) == warnings


def test_most_kinds_have_no_warnings() -> None:
    assert CONFIG_MAP.warnings({"metadata": {"name": "a"}}, None) == []
