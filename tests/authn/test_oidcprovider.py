"""Asking a provider for its keys (OpenID Connect Discovery 1.0 section 4).

Source: docs/protocol/openid-connect.md.
"""

from __future__ import annotations

import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.authn.oidc.authenticator import MAX_KEY_SET, REQUEST_SECONDS, OidcProvider, discover, renew
from mooring.trust.httpexchange import UNREACHABLE, HttpFailure, HttpResponse
from mooring.trust.oidc.discovery import MAX_DOCUMENT, ProviderError
from tests.support.jwtsigner import key_for, key_set, public
from tests.support.urlresponder import UrlResponder

ISSUER = "https://id.example"
WELL_KNOWN = f"{ISSUER}/.well-known/openid-configuration"
JWKS = "https://keys.example/jwks?all=1"
PROVIDER = OidcProvider(ISSUER, "oidc/1")
KEYS = key_set(public(key_for("ES256")))


def document(**changed: Any) -> bytes:
    return json.dumps({"issuer": ISSUER, "jwks_uri": JWKS, **changed}).encode()


def world(**changed: Any) -> UrlResponder:
    return UrlResponder({WELL_KNOWN: document(), JWKS: KEYS, **changed})


def test_keys_are_found_by_the_discovery_document() -> None:
    asked = world()
    published = asked.run(discover(PROVIDER))
    assert [key.kid for key in published.keys.keys] == ["k"]
    assert (published.jwks_uri, published.life) == (JWKS, timedelta(hours=1))
    assert asked.urls == [WELL_KNOWN, JWKS]
    assert {(call.target, call.method, call.timeout) for call in asked.calls} == {("oidc/1", "GET", REQUEST_SECONDS)}
    assert [call.max_bytes for call in asked.calls] == [MAX_DOCUMENT, MAX_KEY_SET]


def test_known_keys_are_renewed_without_the_document() -> None:
    asked = world()
    assert asked.run(renew(PROVIDER, JWKS)).jwks_uri == JWKS
    assert asked.urls == [JWKS]


@pytest.mark.parametrize(
    ("provider", "url"),
    [
        pytest.param(
            OidcProvider("https://a/b", ""), "https://a/b/.well-known/openid-configuration", id="below a path"
        ),
        pytest.param(
            OidcProvider("https://a/b/", ""), "https://a/b/.well-known/openid-configuration", id="one slash goes"
        ),
        pytest.param(OidcProvider("https://a", "", "https://in/d"), "https://in/d", id="where the configuration says"),
    ],
)
def test_where_the_document_is(provider: OidcProvider, url: str) -> None:
    assert provider.document_url == url


def test_a_document_from_elsewhere_still_names_the_issuer() -> None:
    elsewhere = OidcProvider(ISSUER, "oidc/1", "https://inside.example/discovery")
    good = UrlResponder({"https://inside.example/discovery": document(), JWKS: KEYS})
    assert good.run(discover(elsewhere)).keys.keys
    bad = UrlResponder({"https://inside.example/discovery": document(issuer="https://inside.example"), JWKS: KEYS})
    with pytest.raises(ProviderError, match=r"of another issuer than https://id\.example"):
        bad.run(discover(elsewhere))


@pytest.mark.parametrize(
    ("page", "why"),
    [
        pytest.param(HttpFailure(UNREACHABLE, "refused"), "the discovery document: refused", id="nobody answers"),
        pytest.param(HttpResponse(404, b""), "the discovery document: the provider answers 404", id="not found"),
        pytest.param(
            HttpResponse(302, b"", {"location": "/"}), "the provider answers 302", id="a redirect is not followed"
        ),
        pytest.param(HttpResponse(204, document()), "the provider answers 204", id="a success of another kind"),
        pytest.param(b" " * MAX_DOCUMENT + document(), "longer than 65536 bytes", id="a document without end"),
        pytest.param(b"<html>", "the discovery document is not JSON", id="a page"),
        pytest.param(b"\xff", "the discovery document is not JSON", id="no text"),
        pytest.param(b"[" * 60_000, "the discovery document is not JSON", id="a tower of brackets"),
        pytest.param(b"[]", "the discovery document is not an object", id="a list"),
        pytest.param(b"{}", "of another issuer", id="an empty object"),
        pytest.param(document(issuer=f"{ISSUER}/"), "of another issuer", id="an issuer with a slash more"),
        pytest.param(document(issuer=[ISSUER]), "of another issuer", id="an issuer that is a list"),
        pytest.param(document(jwks_uri=None), "has no https URL as jwks_uri", id="no key set"),
        pytest.param(document(jwks_uri="http://id.example/jwks"), "no https URL as jwks_uri", id="keys in the clear"),
        pytest.param(document(jwks_uri="file:///etc/passwd"), "no https URL as jwks_uri", id="keys in a file"),
        pytest.param(
            document(jwks_uri="https://u:p@id.example/"), "no https URL as jwks_uri", id="keys with a password"
        ),
    ],
)
def test_documents_that_lead_nowhere(page: Any, why: str) -> None:
    with pytest.raises(ProviderError, match=why):
        world(**{WELL_KNOWN: page}).run(discover(PROVIDER))


@pytest.mark.parametrize(
    ("page", "why"),
    [
        pytest.param(HttpFailure(UNREACHABLE, "timed out"), "the key set: timed out", id="nobody answers"),
        pytest.param(HttpResponse(500, b""), "the key set: the provider answers 500", id="an error"),
        pytest.param(
            b" " * MAX_KEY_SET + KEYS, "the key set: the answer is longer than 262144 bytes", id="without end"
        ),
        pytest.param(b"{}", "the key set has no list of keys", id="no keys"),
        pytest.param(key_set(), "none of the 0 keys of the key set can verify a token", id="an empty set"),
    ],
)
def test_key_sets_that_are_none(page: Any, why: str) -> None:
    with pytest.raises(ProviderError, match=why):
        world(**{JWKS: page}).run(discover(PROVIDER))


@pytest.mark.parametrize(
    ("said", "life"),
    [
        pytest.param(None, timedelta(hours=1), id="nothing said"),
        pytest.param("public, max-age=7200", timedelta(hours=2), id="two hours"),
        pytest.param("public, Max-Age = 7200, must-revalidate", timedelta(hours=2), id="two hours, otherwise spelt"),
        pytest.param("max-age=5", timedelta(minutes=5), id="at least five minutes"),
        pytest.param("max-age=999999999", timedelta(hours=24), id="at most a day"),
        pytest.param("s-max-age=7200", timedelta(hours=1), id="what is said to others is not said to us"),
        pytest.param("no-store, max-age=7200", timedelta(minutes=5), id="not to be kept"),
        pytest.param("no-transform, max-age=7200", timedelta(hours=2), id="not to be changed"),
        pytest.param("max-age=soon", timedelta(hours=1), id="nothing that can be read"),
    ],
)
def test_how_long_keys_need_not_be_asked_for(said: str | None, life: timedelta) -> None:
    headers = {} if said is None else {"cache-control": said}
    assert world(**{JWKS: HttpResponse(200, KEYS, headers)}).run(renew(PROVIDER, JWKS)).life == life


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_any_answers_are_keys_or_an_error(first: bytes, second: bytes) -> None:
    for page in (first, document()):
        with contextlib.suppress(ProviderError):
            world(**{WELL_KNOWN: page, JWKS: second}).run(discover(PROVIDER))
