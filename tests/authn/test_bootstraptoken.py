"""Bootstrap tokens as bearers.

Source: docs/protocol/bootstrap-tokens.md#authentication.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authn.bootstraptoken.authenticator import BootstrapTokenAuthenticator
from mooring.authn.credentials import Credentials
from mooring.authn.verdict import Accepted, NotMine, Rejected
from mooring.identity import UserInfo
from mooring.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = "abcdef.0123456789abcdef"
DATA = {
    "token-id": "abcdef",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "auth-extra-groups": "system:bootstrappers:workers",
}


def secret(data: dict[str, str] | None = None, **changes: Any) -> Obj:
    merged = {**DATA, **(data or {})}
    return {
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in merged.items()},
        **changes,
    }


def judged(bearer: str | bytes | None, *secrets: Obj) -> object:
    credentials = Credentials(bearer=None if bearer is None else Secret(bearer))
    return BootstrapTokenAuthenticator().authenticate(credentials, {"secrets": FixedView(secrets)}, NOW, ("api",))


def test_a_good_token_is_its_user_and_groups_for_any_audience_asked() -> None:
    user = UserInfo("system:bootstrap:abcdef", groups=("system:bootstrappers", "system:bootstrappers:workers"))
    assert judged(TOKEN, secret()) == Accepted(user)


@pytest.mark.parametrize(
    "bearer",
    [
        pytest.param(None, id="no bearer"),
        pytest.param("eyJhbGciOiJFUzI1NiJ9.e30.c2ln", id="a JWT"),
        pytest.param(TOKEN + "\n", id="a trailing newline"),
        pytest.param(b"\xff\xfe", id="bytes that are no text"),
    ],
)
def test_not_mine(bearer: str | bytes | None) -> None:
    assert judged(bearer, secret()) == NotMine()


@pytest.mark.parametrize(
    ("bearer", "found", "reason", "detail"),
    [
        pytest.param(
            "ffffff.0123456789abcdef",
            secret(),
            "unknown-id",
            ": there is no Secret kube-system/bootstrap-token-ffffff",
            id="an unknown id",
        ),
        pytest.param("abcdef.0123456789abcdee", secret(), "wrong-secret", "", id="a wrong secret"),
        pytest.param(
            TOKEN,
            secret({"expiration": "2026-01-01T00:00:00Z"}),
            "expired",
            ": expires this instant",
            id="the instant of expiry",
        ),
        pytest.param(
            TOKEN,
            secret({"expiration": "2025-12-31T21:00:00Z"}),
            "expired",
            ": expired 3h ago, at 2025-12-31T21:00:00Z",
            id="three hours past",
        ),
        pytest.param(
            TOKEN,
            secret({"expiration": "soon"}),
            "expired",
            ": the expiration is not an RFC 3339 time such as 2026-01-02T03:04:05Z",
            id="an expiry that is no time",
        ),
        pytest.param(
            TOKEN,
            secret({"token-id": "abcdee"}),
            "id-mismatch",
            ": the Secret's token-id is not the id in its name",
            id="a Secret of another name",
        ),
        pytest.param(
            TOKEN,
            secret(metadata={**secret()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            "deleting",
            "",
            id="on its way out",
        ),
        pytest.param(
            TOKEN,
            secret({"usage-bootstrap-authentication": "True"}),
            "usage-missing",
            ": usage authentication missing: usage-bootstrap-authentication is not true",
            id="another spelling of true",
        ),
        pytest.param(
            TOKEN,
            secret({"auth-extra-groups": "system:masters"}),
            "bad-groups",
            ': bootstrap group "system:masters" is invalid: it must match '
            r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z",
            id="a group not its own to give",
        ),
        pytest.param(
            TOKEN,
            secret(type="Opaque"),
            "wrong-type",
            ": the Secret is of type Opaque, or holds no data; it wants bootstrap.kubernetes.io/token",
            id="an ordinary Secret",
        ),
    ],
)
def test_refused_with_a_reason_and_the_public_id_only(bearer: str, found: Obj, reason: str, detail: str) -> None:
    told = f"token id {bearer[:6]}{detail}"
    assert judged(bearer, found) == Rejected(reason, told, form_only=reason == "unknown-id")
