"""Bootstrap tokens as bearers.

Source: docs/protocol/bootstrap-tokens.md#authentication.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.authn.bootstraptoken import BootstrapTokenAuthenticator
from mooring.authn.credentials import Credentials
from mooring.authn.lastuses import LastUse, LastUses
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


def judged(bearer: str | bytes | None, *secrets: Obj, source: str = "192.0.2.7") -> object:
    credentials = Credentials(bearer=None if bearer is None else Secret(bearer), source=source)
    return BootstrapTokenAuthenticator(LastUses()).authenticate(
        credentials, {"secrets": FixedView(secrets)}, NOW, ("api",)
    )


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
    ("annotation", "dry_run", "noted"),
    [
        pytest.param(None, False, True, id="the first use"),
        pytest.param("2025-12-31T23:30:00Z", False, False, id="half an hour after the last note"),
        pytest.param("2025-12-31T23:00:00Z", False, True, id="an hour after the last note"),
        pytest.param("2026-01-01T00:30:00Z", False, False, id="another server's clock is ahead"),
        pytest.param("2027-01-01T00:00:00Z", False, True, id="a note of a wrong clock"),
        pytest.param("yesterday", False, True, id="a note that cannot be read"),
        pytest.param(None, True, False, id="a dry run"),
    ],
)
def test_uses_are_noted_once_an_hour(annotation: str | None, dry_run: bool, noted: bool) -> None:
    uses = LastUses()
    annotations = {} if annotation is None else {"mooring.dev/last-used": annotation}
    found = secret(metadata={**secret()["metadata"], "uid": "u", "annotations": annotations})
    credentials = Credentials(bearer=Secret(TOKEN), dry_run=dry_run)
    verdict = BootstrapTokenAuthenticator(uses).authenticate(credentials, {"secrets": FixedView([found])}, NOW, ())
    assert isinstance(verdict, Accepted)
    use = LastUse(
        "kube-system", "bootstrap-token-abcdef", "u", {"annotations": {"mooring.dev/last-used": "2026-01-01T00:00:00Z"}}
    )
    assert uses.take() == ((use,) if noted else ())


def restricted(text: str) -> Obj:
    return secret(metadata={**secret()["metadata"], "annotations": {"mooring.dev/allowed-cidrs": text}})


def test_a_token_with_networks_is_accepted_from_there() -> None:
    assert isinstance(judged(TOKEN, restricted("192.0.2.0/24")), Accepted)
    assert judged(TOKEN, restricted("192.0.2.0/24"), source="") == Rejected(
        "network-not-allowed", "token id abcdef: used from an unknown address; allowed from 192.0.2.0/24"
    )


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
            restricted("10.0.0.0/8,fd00::/64"),
            "network-not-allowed",
            ": used from 192.0.2.7; allowed from 10.0.0.0/8, fd00::/64",
            id="another network",
        ),
        pytest.param(
            TOKEN,
            restricted("192.0.2.7"),
            "bad-restrictions",
            ": mooring.dev/allowed-cidrs: one of the networks is not a network such as 10.1.0.0/16 or fd00:1::/64, with no bits "
            "set beyond the prefix",
            id="networks that cannot be read",
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


@pytest.mark.parametrize(("uid", "is_ended"), [("u1", True), ("u2", False)])
def test_a_token_that_was_deleted_before_the_store_was_restored(uid: str, is_ended: bool) -> None:
    found = secret(metadata={"name": "bootstrap-token-abcdef", "namespace": "kube-system", "uid": "u1"})
    entries = {"token.abcdef": tombstones.entry("abcdef", {"uid": uid})}
    waiting = {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": entries}
    verdict = BootstrapTokenAuthenticator(LastUses()).authenticate(
        Credentials(bearer=Secret(TOKEN)),
        {"secrets": FixedView([found]), "configmaps": FixedView([waiting])},
        NOW,
        (),
    )
    assert isinstance(verdict, Rejected if is_ended else Accepted)


@pytest.mark.parametrize(
    "waiting",
    [
        pytest.param(FixedView(unreadable={(tombstones.NAMESPACE, tombstones.NAME): "damaged"}), id="cannot be read"),
        pytest.param(
            FixedView(
                [
                    {
                        "metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE},
                        "data": {tombstones.more_key("token", "s1"): "{}"},
                    }
                ]
            ),
            id="is not complete",
        ),
    ],
)
def test_no_token_counts_while_the_list_of_deleted_ones(waiting: FixedView) -> None:
    views = {"secrets": FixedView([secret()]), "configmaps": waiting}
    authenticator = BootstrapTokenAuthenticator(LastUses())
    verdict = authenticator.authenticate(Credentials(bearer=Secret(TOKEN)), views, NOW, ())
    assert isinstance(verdict, Rejected)
    assert (verdict.reason, verdict.is_undecided, verdict.form_only) == ("object-unreadable", True, False)
    wrong = authenticator.authenticate(Credentials(bearer=Secret(TOKEN[:-1] + "x")), views, NOW, ())
    assert isinstance(wrong, Rejected)
    assert wrong.reason == "wrong-secret", "a guess counts as one"
