"""cluster-info: contents and signatures.

Source: docs/protocol/cluster-info.md.
"""

from __future__ import annotations

import base64
import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import new_record, to_secret
from mooring.trust.discovery import clusterinfo

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ONE = parse_token("aaaaaa.1111111111111111")
TWO = parse_token("bbbbbb.2222222222222222")


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def secret(
    metadata: dict[str, Any] | None = None, kind: str = "bootstrap.kubernetes.io/token", **data: str | None
) -> Obj:
    """The Secret of ONE; data keys with `_` for `-`, None removes."""
    obj = to_secret(new_record(ONE, NOW))
    obj["type"] = kind
    obj["metadata"] |= metadata or {}
    changed = {key.replace("_", "-"): value for key, value in data.items()}
    obj["data"] |= {key: b64(value) for key, value in changed.items() if value is not None}
    obj["data"] = {key: value for key, value in obj["data"].items() if changed.get(key, "") is not None}
    return obj


def test_a_fresh_cluster_info_is_what_kubeadm_publishes() -> None:
    assert clusterinfo.config_map("https://192.0.2.1:6443", b"CA") == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {
            "kubeconfig": "apiVersion: v1\n"
            "clusters:\n"
            "- cluster:\n"
            "    certificate-authority-data: Q0E=\n"
            "    server: https://192.0.2.1:6443\n"
            '  name: ""\n'
            "contexts: null\n"
            'current-context: ""\n'
            "kind: Config\n"
            "users: null\n"
        },
    }


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(secret(), id="a token of kubeadm"),
        pytest.param(secret(token_secret="tokenSecret"), id="a secret of any form, as the e2e tests use"),
        pytest.param(secret({"deletionTimestamp": "2026-01-01T00:00:00Z"}), id="a Secret being deleted"),
        pytest.param(secret(expiration=None), id="a token that never expires"),
        pytest.param(secret(usage_bootstrap_authentication=None, auth_extra_groups="junk"), id="bad groups"),
    ],
)
def test_signed_by(obj: Obj) -> None:
    assert list(clusterinfo.signatures({"data": {"kubeconfig": "x"}}, [obj], NOW)) == ["jws-kubeconfig-aaaaaa"]


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(secret(kind="Opaque"), id="another type"),
        pytest.param(secret({"namespace": "default"}), id="another namespace"),
        pytest.param(secret({"name": "bootstrap-token-aaaaa"}), id="a name that is too short"),
        pytest.param(secret({"name": "bootstrap-token-bbbbbb"}), id="another id in the name"),
        pytest.param(secret(token_id=None), id="no token-id"),
        pytest.param(secret(token_secret=None), id="no token-secret"),
        pytest.param(secret(expiration="2026-01-02T03:04:05Z"), id="a token at its expiry instant"),
        pytest.param(secret(expiration="soon"), id="an unreadable expiration"),
        pytest.param(secret(usage_bootstrap_signing="True"), id="a usage in another case"),
        pytest.param(secret(usage_bootstrap_signing=None), id="no signing usage"),
    ],
)
def test_not_signed_by(obj: Obj) -> None:
    assert clusterinfo.signatures({"data": {"kubeconfig": "x"}}, [obj], NOW) == {}


@pytest.mark.parametrize("text", ["deadbeef", "text \u2713\n\n", "lone \ud800"])
def test_whatever_text_is_there_is_signed_as_it_stands(text: str) -> None:
    made = clusterinfo.signatures({"data": {"kubeconfig": text}}, [secret()], NOW)
    assert clusterinfo.verify({"kubeconfig": text, **made}, ONE) == text


def test_an_empty_text_is_signed() -> None:
    signature = clusterinfo.sign(b"", ONE.id, ONE.secret.reveal())
    assert clusterinfo.signatures({"data": {"kubeconfig": ""}}, [secret()], NOW) == {
        f"jws-kubeconfig-{ONE.id}": signature
    }


def test_signatures_are_replaced_stale_ones_removed_and_the_rest_kept() -> None:
    config_map: Obj = {
        "metadata": {"name": "cluster-info", "resourceVersion": "7", "labels": {"a": "b"}},
        "binaryData": {"x": "AA=="},
        "data": {"kubeconfig": "k", "other": "o", "jws-kubeconfig-aaaaaa": "stale", "jws-kubeconfig-gone00": "stale"},
    }
    before = copy.deepcopy(config_map)
    secrets = [to_secret(new_record(token, NOW)) for token in (ONE, TWO)]
    after = clusterinfo.signed(config_map, secrets, NOW)
    assert after == {
        **before,
        "data": {
            "kubeconfig": "k",
            "other": "o",
            "jws-kubeconfig-aaaaaa": clusterinfo.sign(b"k", "aaaaaa", b"1111111111111111"),
            "jws-kubeconfig-bbbbbb": clusterinfo.sign(b"k", "bbbbbb", b"2222222222222222"),
        },
    }
    assert config_map == before
    after["metadata"]["labels"]["a"] = "changed"
    assert config_map == before
    assert clusterinfo.signed(after, secrets, NOW) is None


def test_an_expired_token_loses_its_signature() -> None:
    signed = clusterinfo.signed({"metadata": {}, "data": {"kubeconfig": "k"}}, [secret()], NOW)
    assert signed is not None
    assert clusterinfo.signed(signed, [secret()], NOW + timedelta(days=1)) == {
        "metadata": {},
        "data": {"kubeconfig": "k"},
    }


@pytest.mark.parametrize(
    "config_map",
    [
        {"metadata": {}},
        {"metadata": {}, "data": None},
        {"metadata": {}, "data": {"jws-kubeconfig-aaaaaa": "stale"}},
    ],
    ids=["no data", "null data", "no kubeconfig: stale signatures stay"],
)
def test_nothing_is_done_for_a_config_map_with(config_map: Obj) -> None:
    assert clusterinfo.signed(config_map, [secret()], NOW) is None
    assert clusterinfo.signatures(config_map, [secret()], NOW) == {}
