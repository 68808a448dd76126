"""JoinToken: the bounds of a request, the Secret that it makes, and what counts as live."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.api.mooring.jointoken import MAX_DESCRIPTION, answer_of, default, live, secret_of, validate
from mooring.apimachinery.schema import Obj
from mooring.identity import UserInfo
from mooring.trust.bootstraptoken.restrictions import CREATED_BY
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.bootstraptoken.tokensecret import from_secret, new_record, to_secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = parse_token("abcdef.0123456789abcdef")
USER = UserInfo("automation")


def made(**spec: object) -> Obj:
    obj: Obj = {"spec": spec}
    default(obj)
    return secret_of(obj, TOKEN, NOW, USER)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param({}, [], id="the defaults"),
        pytest.param({"expirationSeconds": 60, "maxJoins": 1}, [], id="the least"),
        pytest.param({"expirationSeconds": 86400, "maxJoins": 100}, [], id="the most"),
        pytest.param({"expirationSeconds": 59}, ["spec.expirationSeconds"], id="too short a life"),
        pytest.param({"expirationSeconds": 86401}, ["spec.expirationSeconds"], id="too long a life"),
        pytest.param({"maxJoins": 0}, ["spec.maxJoins"], id="no machine"),
        pytest.param({"maxJoins": 101}, ["spec.maxJoins"], id="too many machines"),
        pytest.param({"format": "rke2"}, ["spec.format"], id="another format"),
        pytest.param({"description": "x" * MAX_DESCRIPTION}, [], id="a long description"),
        pytest.param({"description": "ü" * MAX_DESCRIPTION}, ["spec.description"], id="one that is longer in octets"),
        pytest.param({"allowedCIDRs": ["10.0.0.0/8"], "nodeName": "web-*", "ephemeral": "1h"}, [], id="limits"),
        pytest.param({"allowedCIDRs": ["10.0.0.0/33"]}, ["spec.allowedCIDRs"], id="no network"),
        pytest.param({"nodeName": "Web"}, ["spec.nodeName"], id="no name of a node"),
        pytest.param({"ephemeral": "soon"}, ["spec.ephemeral"], id="no duration"),
    ],
)
def test_a_request(spec: Obj, fields: list[str]) -> None:
    errors = validate({"spec": spec})
    assert [one.field for one in errors] == fields
    assert not any("annotation" in str(one) for one in errors)


def test_the_secret_has_the_limits_and_who_asked() -> None:
    secret = made(
        maxJoins=3, allowedCIDRs=["10.0.0.0/8"], nodeName="web-*", ephemeral="1h", requireApproval=True, format="k3s"
    )
    record = from_secret(secret)
    assert record.token == TOKEN
    assert record.expires == NOW + timedelta(hours=1)
    limits = record.restrictions
    assert (limits.max_joins, limits.node_name, limits.ephemeral) == (3, "web-*", timedelta(hours=1))
    assert ([str(one) for one in limits.networks], limits.require_approval) == (["10.0.0.0/8"], True)
    assert secret["metadata"]["annotations"][CREATED_BY] == "automation"
    assert from_secret(made()).restrictions.max_joins == 1


def test_the_token_is_in_the_answer_alone() -> None:
    secret = made()
    assert answer_of({"spec": {}}, secret, TOKEN)["status"] == {
        "token": "abcdef.0123456789abcdef",
        "expirationTimestamp": "2026-01-01T01:00:00Z",
    }
    assert answer_of({}, secret, None)["status"] == {"expirationTimestamp": "2026-01-01T01:00:00Z"}


def test_tokens_that_were_made_so_and_have_not_expired_count() -> None:
    other = to_secret(new_record(TOKEN, NOW))
    bare = {**other, "metadata": {"name": "x"}}
    secrets = [made(), made(expirationSeconds=60), other, bare, {**made(), "type": "Opaque"}]
    assert live(secrets, NOW) == 2
    assert live(secrets, NOW + timedelta(minutes=2)) == 1
