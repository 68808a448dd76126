"""EncryptionConfiguration files: strict reading, kube-apiserver's rules and words, and the providers of a resource.

Source: docs/protocol/encryption-at-rest.md#encryptionconfiguration.
"""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.trust.encryption import configuration
from mooring.trust.encryption.configuration import GroupResource, parse, parse_group_resource

SECRET = base64.b64encode(b"k" * 32).decode()
KEYS = {"keys": [{"name": "key1", "secret": SECRET}]}
AESCBC = {"aescbc": KEYS}
IDENTITY: dict[str, Any] = {"identity": {}}
KMS = {"apiVersion": "v2", "name": "vault", "endpoint": "unix:///run/kms.sock"}


def entry(*resources: str, providers: Any = (AESCBC,)) -> dict[str, Any]:
    return {"resources": list(resources), "providers": list(providers)}


def file(*entries: Any, **more: Any) -> bytes:
    top = {"apiVersion": configuration.API_VERSION, "kind": configuration.KIND, "resources": list(entries), **more}
    return json.dumps(top).encode()


def kms(**changes: Any) -> bytes:
    return file(entry("secrets", providers=[{"kms": {**KMS, **changes}}]))


def keys(kind: str, *given: Any) -> bytes:
    return file(entry("secrets", providers=[{kind: {"keys": list(given)}}]))


ENTRY = "resources[0]"
PROVIDER = f"{ENTRY}.providers[0]"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"", "the file is empty", id="an empty file"),
        pytest.param(b"\xff", "the file is not UTF-8 text", id="bytes that are no text"),
        pytest.param(
            b"a: {\nsecret", "the file is not valid YAML in line 3", id="broken YAML is named by its line alone"
        ),
        pytest.param(b"a: \x01", "the file is not valid YAML", id="broken YAML without a line"),
        pytest.param(b"x" * (1 << 20) + b"x", "an EncryptionConfiguration is at most 1048576 bytes", id="a huge file"),
        pytest.param(b"[]", "one EncryptionConfiguration is expected", id="a list"),
        pytest.param(b"kind: EncryptionConfiguration", "one EncryptionConfiguration is expected", id="no version"),
        pytest.param(file() + b"\n" + file(), "the file is not valid YAML", id="two documents"),
        pytest.param(
            b"kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources: []\nresources: []\n",
            'line 4: key "resources" already set in map',
            id="a duplicate field",
        ),
        pytest.param(file(extra=1), 'unknown field "extra"', id="an unknown field"),
        pytest.param(file(), "resources: Required value: at least one resources is required", id="no entry"),
        pytest.param(file(7), f"{ENTRY} must be an object", id="an entry that is a number"),
        pytest.param(
            file({**entry("secrets"), "x": 1}), f'{ENTRY}: unknown field "x"', id="an unknown field of an entry"
        ),
        pytest.param(
            file(entry()),
            f"{ENTRY}.resources: Required value: at least one {ENTRY}.resources is required",
            id="no name",
        ),
        pytest.param(
            file(entry("secrets", providers=[])),
            f"{ENTRY}.providers: Required value: at least one {ENTRY}.providers is required",
            id="no provider",
        ),
        pytest.param(
            file(entry("a", "a")),
            f'{ENTRY}.resources: Invalid value: ["a","a"]: the same resource cannot be specified multiple times',
            id="a resource twice",
        ),
        pytest.param(
            file(entry("secrets", "*.")),
            f'{ENTRY}.resources: Invalid value: ["secrets","*."]: {configuration.MASKED}',
            id="a resource and its group",
        ),
        pytest.param(file(entry("*.*", "x.y")), configuration.MASKED, id="a resource and everything"),
        pytest.param(
            file(entry("Secrets")),
            f'{ENTRY}.resources[0]: Invalid value: "Secrets": resource name should not contain capital letters',
            id="capital letters",
        ),
        pytest.param(file(entry("*")), "use '*.' to encrypt all the resources from core API group", id="a bare star"),
        pytest.param(file(entry("serviceipallocations")), "resources which do not have REST API/s", id="no REST API"),
        pytest.param(file(entry("events.events.k8s.io")), "Use 'events' instead", id="the group of events"),
        pytest.param(file(entry("x.extensions")), "'extensions' group has been removed", id="the group extensions"),
        pytest.param(
            file(entry("secrets.*")), "encrypting the same resource across groups is not supported", id="any group"
        ),
        pytest.param(
            file(entry("*."), entry("secrets")),
            'resource "secrets" is masked by earlier rule "*."',
            id="an entry behind its group",
        ),
        pytest.param(
            file(entry("*.*"), entry("*.apps")),
            'resource "*.apps" is masked by earlier rule "*.*"',
            id="an entry behind everything",
        ),
        pytest.param(file(entry(*["s"] * 1001)), "more than 1000 resources or providers", id="too many resources"),
        pytest.param(
            file(entry("secrets", providers=[{}])),
            f"{PROVIDER}: Invalid value: []: provider does not contain any of the expected providers",
            id="an empty provider",
        ),
        pytest.param(
            file(entry("secrets", providers=[{**AESCBC, **IDENTITY}])),
            f'{PROVIDER}: Invalid value: ["aescbc","identity"]: more than one provider specified in a single element',
            id="two providers in one element",
        ),
        pytest.param(
            file(entry("secrets", providers=[{"rot13": {}}])), f'{PROVIDER}: unknown field "rot13"', id="rot13"
        ),
        pytest.param(
            file(entry("secrets", providers=[{"identity": {"a": 1}}])),
            f'{PROVIDER}.identity: unknown field "a"',
            id="a field of identity",
        ),
        pytest.param(
            keys("aescbc"), f"{PROVIDER}.aescbc.keys: Required value: at least one keys is required", id="no keys"
        ),
        pytest.param(
            keys("aescbc", *[{"name": "k", "secret": SECRET}] * 1001), "has more than 1000 keys", id="too many keys"
        ),
        pytest.param(
            keys("aesgcm", {"secret": SECRET}),
            f"{PROVIDER}.aesgcm.keys[0].name: Required value: name is a mandatory field for a key",
            id="a key without a name",
        ),
        pytest.param(
            keys("aesgcm", {"name": "a\nb", "secret": SECRET}), "has no control characters", id="a name of two lines"
        ),
        pytest.param(
            keys("aesgcm", {"name": "k"}),
            f"{PROVIDER}.aesgcm.keys[0].secret: Required value: secret is a mandatory field for a key",
            id="a key without a secret",
        ),
        pytest.param(
            keys("aesgcm", {"name": "k", "secret": "!!!!"}),
            f'{PROVIDER}.aesgcm.keys[0].secret: Invalid value: "REDACTED": secrets must be base64 encoded',
            id="a secret that is not base64",
        ),
        pytest.param(
            keys("aesgcm", {"name": "k", "secret": "MTIz"}),
            'Invalid value: "REDACTED": secret is not of the expected length, got 3, expected one of [16 24 32]',
            id="a short key of AES",
        ),
        pytest.param(
            keys("secretbox", {"name": "k", "secret": "MTIz"}),
            "secret is not of the expected length, got 3, expected one of [32]",
            id="a short key of secretbox",
        ),
        pytest.param(
            kms(name=""), f"{PROVIDER}.kms.name: Required value: name is a mandatory field", id="KMS without a name"
        ),
        pytest.param(kms(name="a:b"), "invalid KMS provider name a:b, must not contain ':'", id="a colon in the name"),
        pytest.param(
            file(entry("secrets", providers=[{"kms": KMS}]), entry("configmaps", providers=[{"kms": KMS}])),
            'resources[1].providers[0].kms.name: Invalid value: "vault": duplicate KMS provider name vault, names must be unique',
            id="two KMS providers of one name",
        ),
        pytest.param(
            kms(apiVersion="v1"),
            f'{PROVIDER}.kms.apiVersion: Invalid value: "v1": KMS v1 is not supported: use a plugin of KMS v2',
            id="KMS v1",
        ),
        pytest.param(kms(apiVersion=""), "KMS v1 is not supported", id="KMS without a version is v1"),
        pytest.param(kms(apiVersion="v3"), "only v2 is supported", id="KMS v3"),
        pytest.param(kms(cachesize=1), "cachesize is not supported in v2", id="a size of the cache"),
        pytest.param(kms(timeout="0s"), "timeout should be a positive value", id="no time"),
        pytest.param(kms(timeout="-1s"), "timeout should be a positive value", id="negative time"),
        pytest.param(kms(timeout="x"), f"{PROVIDER}.kms.timeout must be a duration, such as 3s", id="no duration"),
        pytest.param(
            kms(timeout=3), f"{PROVIDER}.kms.timeout must be a duration, such as 3s", id="a number of seconds"
        ),
        pytest.param(kms(endpoint=""), "endpoint is a mandatory field for a kms", id="no endpoint"),
        pytest.param(
            kms(endpoint="tcp://x"), 'unsupported scheme "tcp" for KMS provider, only unix is supported', id="TCP"
        ),
        pytest.param(kms(endpoint="unix://[x"), "error: not a URL", id="an endpoint that is no URL"),
        pytest.param(kms(endpoint="unix://host/x"), "the absolute path of a socket", id="an endpoint with a host"),
        pytest.param(kms(endpoint="unix:x"), "the absolute path of a socket", id="a relative path"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_in_words(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(data, "encryption-provider-config: f")
    assert str(caught.value).startswith("encryption-provider-config: f: ")
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_all_broken_rules_are_reported_at_once() -> None:
    with pytest.raises(ConfigError, match=r"f: \[resources\[0\]\.resources\[0\]: .*, resources\[0\]\.providers: "):
        parse(file(entry("A", providers=[])), "f")


def test_a_key_appears_in_no_output() -> None:
    found = parse(file(entry("secrets")), "f")
    assert "kkkk" not in repr(found)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        pytest.param("secrets", "first,second", id="a resource of two entries has the providers of both"),
        pytest.param("pods", "core", id="the core group"),
        pytest.param("leases.coordination.k8s.io", "leases", id="a resource of a group"),
        pytest.param("roles.rbac.authorization.k8s.io", "rbac", id="a group"),
        pytest.param("pandas.awesome.bears.example", "rest", id="everything else"),
    ],
)
def test_providers_of_a_resource(resource: str, name: str) -> None:
    def named(*names: str) -> list[Any]:
        return [{"secretbox": {"keys": [{"name": one, "secret": SECRET} for one in names]}}]

    found = parse(
        file(
            entry("secrets", "leases.coordination.k8s.io", providers=named("first")) | {"resources": ["secrets"]},
            entry("secrets", providers=named("second")),
            entry("leases.coordination.k8s.io", providers=named("leases")),
            entry("*.", providers=named("core")),
            entry("*.rbac.authorization.k8s.io", providers=named("rbac")),
            entry("*.*", providers=named("rest")),
        ),
        "f",
    )
    providers = found.providers_of(parse_group_resource(resource))
    assert ",".join(key.name for one in providers for key in one.keys) == name


ABSENT: list[tuple[Any, str]] = [
    ({"identity": {}, "aescbc": None, "kms": None}, ""),
    ({**AESCBC, "secretbox": None}, ""),
    ({"kms": {**KMS, "timeout": None, "cachesize": None}}, ""),
    (None, "does not contain any of the expected providers"),
    ({}, "does not contain any of the expected providers"),
    ({"identity": None}, "does not contain any of the expected providers"),
    ({"identity": ""}, "must be an object"),
    ({"aescbc": {}}, "at least one keys is required"),
    ({"aescbc": {"keys": None}}, "at least one keys is required"),
    ({"aescbc": {"keys": []}}, "at least one keys is required"),
    ({"aescbc": {"keys": [None]}}, "name is a mandatory field for a key"),
    ({"aescbc": {"keys": [{"name": None, "secret": ""}]}}, "secret is a mandatory field for a key"),
    ({"kms": {**KMS, "timeout": ""}}, "timeout must be a duration"),
    ({"kms": {**KMS, "cachesize": 0}}, "cachesize is not supported in v2"),
]


@pytest.mark.parametrize(("provider", "message"), ABSENT, ids=str)
def test_null_and_empty_are_what_they_are_in_kube_apiserver(provider: Any, message: str) -> None:
    """Each row was run against the decoder and ValidateEncryptionConfiguration of Kubernetes 1.36."""
    data = file(entry("secrets", providers=[provider]))
    if not message:
        assert len(parse(data, "file").providers) == 1
        return
    with pytest.raises(ConfigError, match=message):
        parse(data, "file")


@pytest.mark.parametrize("resources", [None, [], [None], [{}], [{"resources": None, "providers": None}]], ids=str)
def test_a_file_without_resources_or_providers_is_refused(resources: Any) -> None:
    with pytest.raises(ConfigError, match="at least one resources"):
        parse(file(resources=resources), "file")


def test_a_resource_that_no_entry_names_is_not_encrypted() -> None:
    assert parse(file(entry("secrets")), "f").providers_of(GroupResource("", "configmaps")) == ()


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        (GroupResource("", "secrets"), "secrets"),
        (GroupResource("apps", "deployments"), "deployments.apps"),
        (GroupResource("", "*"), "*."),
        (GroupResource("apps", "*"), "*.apps"),
        (configuration.ANYTHING, "*.*"),
    ],
)
def test_names_of_resources(resource: GroupResource, text: str) -> None:
    assert str(resource) == text
    assert parse_group_resource(text) == resource


def test_a_plugin_is_read_with_its_socket_and_time() -> None:
    data = file(
        entry("secrets", providers=[{"kms": {**KMS, "timeout": "1m", "endpoint": "unix:///@abstract"}}, IDENTITY]),
        entry("configmaps", providers=[{"kms": {**KMS, "name": "other"}}]),
    )
    first, second = parse(data, "f").plugins
    assert (first.name, first.socket, first.timeout) == ("vault", "@abstract", timedelta(minutes=1))
    assert (second.name, second.socket, second.timeout) == ("other", "/run/kms.sock", timedelta(seconds=3))
