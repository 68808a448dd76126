"""Grants at a simulated OpenID provider (RFC 8628, RFC 7636, RFC 6749)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mooring.secret import Secret
from mooring.trust.httpexchange import (
    NOT_HTTP,
    TIMEOUT,
    TOO_LONG,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Reply,
    Wait,
)
from mooring.trust.oidc.client import (
    Client,
    GrantEndedError,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    discover,
    form_request,
    refusal,
    wanted_scopes,
)
from mooring.trust.oidc.discovery import MAX_DOCUMENT
from mooring.trust.oidc.grants import (
    MAX_INTERVAL,
    MAX_TARGET,
    AuthorizationRequest,
    DevicePrompt,
    StrayRedirectError,
    authorization_url,
    code_grant,
    device_grant,
    new_authorization_request,
    read_redirect,
    refresh_grant,
)
from tests.support.deviceprovider import Answered, Conversation, DeviceProvider, form_of

ISSUER = "https://provider.example"
CLIENT = Client(ISSUER, "kubernetes")
REDIRECT = "http://127.0.0.1:8000/callback"
MADE = new_authorization_request(REDIRECT, bytes(range(64)))
CONFIDENTIAL = Client(ISSUER, "kube:netes", Secret("s&cret é"))


def provider_of(provider: DeviceProvider, client: Client = CLIENT) -> ProviderEndpoints:
    return Conversation(provider).drive(discover(client))


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_provider_offers_is_read_below_its_issuer() -> None:
    assert provider_of(DeviceProvider()) == ProviderEndpoints(
        f"{ISSUER}/token", f"{ISSUER}/device", f"{ISSUER}/authorize"
    )


@pytest.mark.parametrize("empty", [None, ""], ids=repr)
def test_what_a_provider_does_not_offer_is_empty(empty: str | None) -> None:
    nothing = {"device_authorization_endpoint": empty, "authorization_endpoint": empty}
    assert provider_of(DeviceProvider(configuration=nothing)) == ProviderEndpoints(f"{ISSUER}/token")


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        pytest.param({"issuer": "https://other.example"}, "is of another issuer than", id="another issuer"),
        pytest.param({"issuer": f"{ISSUER}/"}, "is of another issuer than", id="a slash is another issuer"),
        pytest.param({"token_endpoint": None}, "names no token endpoint", id="no token endpoint"),
        pytest.param({"token_endpoint": ""}, "names no token endpoint", id="an empty token endpoint"),
        pytest.param({"token_endpoint": False}, "token_endpoint is not an https URL", id="a URL that is false"),
        pytest.param({"token_endpoint": "http://p/token"}, "token_endpoint is not an https URL", id="plain http"),
        pytest.param({"token_endpoint": "https://u@p/"}, "token_endpoint is not an https URL", id="a user in a URL"),
        pytest.param({"token_endpoint": "https://[x/"}, "token_endpoint is not an https URL", id="a broken URL"),
        pytest.param({"token_endpoint": 1}, "token_endpoint is not an https URL", id="a URL that is no text"),
        pytest.param(
            {"device_authorization_endpoint": "https://p/\x1b[1m"},
            "device_authorization_endpoint is not an https URL",
            id="an escape in a URL",
        ),
        pytest.param(
            {"authorization_endpoint": "https://p/" + "x" * 600},
            "authorization_endpoint is not an https URL",
            id="an endless URL",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used(configuration: dict[str, Any], message: str) -> None:
    with pytest.raises(OAuthError, match=message):
        provider_of(DeviceProvider(configuration=configuration))


def test_an_issuer_without_a_configuration_is_told() -> None:
    with pytest.raises(OAuthError, match="the discovery document: the provider answers 404; check --oidc-issuer-url"):
        provider_of(DeviceProvider(), Client(f"{ISSUER}/realm", "x"))


def test_a_provider_that_does_not_answer_is_told() -> None:
    with pytest.raises(OAuthError, match=r"provider.example does not answer \(no answer within 15 s\)"):
        Conversation(DeviceProvider(), down=1).drive(discover(CLIENT))


def test_a_provider_whose_certificate_does_not_verify_is_told_with_the_flag() -> None:
    generator = discover(CLIENT)
    next(generator)
    told = r"certificate of provider.example does not verify \(no such issuer\); name the CA .* --oidc-ca-file$"
    with pytest.raises(OAuthError, match=told):
        generator.send(HttpFailure("certificate", "no such issuer"))


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"[" * 100_000, b" " * MAX_DOCUMENT])
def test_a_discovery_document_that_is_no_object_is_told(body: bytes) -> None:
    with pytest.raises(OAuthError, match=r"the discovery document is not (JSON|an object); check --oidc-issuer-url"):
        Conversation(DeviceProvider(), body=body).drive(discover(CLIENT))


def test_a_page_of_a_proxy_in_between_is_told_by_its_status() -> None:
    with pytest.raises(OAuthError, match="the discovery document: the provider answers 502"):
        Conversation(DeviceProvider(), body=b"<html>", status=502).drive(discover(CLIENT))


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_token_response_that_is_no_object_is_told(body: bytes) -> None:
    with pytest.raises(OAuthError, match="refreshing the log-in: the provider's answer is not a JSON object"):
        Conversation(DeviceProvider(), body=body).drive(
            refresh_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), Secret("x"))
        )


def test_a_token_endpoint_that_does_not_answer_is_told() -> None:
    conversation = Conversation(DeviceProvider(), down=1)
    told = r"refreshing the log-in: provider.example does not answer \(no answer within 15 s\); the login is kept, try again later$"
    with pytest.raises(OAuthError, match=told):
        conversation.drive(refresh_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), Secret("x")))
    with pytest.raises(
        OAuthError, match=r"redeeming the code: provider.example does not answer \(no answer within 15 s\)$"
    ):
        Conversation(DeviceProvider(), down=1).drive(
            code_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), MADE, Secret("x"))
        )


def test_an_error_page_of_the_token_endpoint_is_told_by_its_status() -> None:
    conversation = Conversation(DeviceProvider(), body=b"<html>", status=502)
    with pytest.raises(OAuthError, match="the log-in is not refreshed: status 502"):
        conversation.drive(refresh_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), Secret("x")))


# ── device grant ─────────────────────────────────────────────────────────────────────────────────────────────────


def granted(provider: DeviceProvider, client: Client = CLIENT, down: int = 0) -> tuple[Tokens, Conversation]:
    offers = provider_of(provider, client)
    conversation = Conversation(provider, down, answered=1)
    return conversation.drive(device_grant(client, offers)), conversation


def test_a_person_is_shown_the_code_and_the_token_comes_when_it_was_typed() -> None:
    tokens, conversation = granted(DeviceProvider(approve_after=2))
    assert conversation.shown == [DevicePrompt(f"{ISSUER}/activate", "WDJB-MJHT", f"{ISSUER}/activate?code=WDJB-MJHT")]
    assert conversation.waited == [5, 5, 5]
    assert tokens.id_token.reveal().count(b".") == 2
    assert tokens.refresh_token is not None
    assert form_of(conversation.requests[0]) == {"client_id": "kubernetes", "scope": "openid offline_access"}


def test_who_asks_too_often_slows_down() -> None:
    _, conversation = granted(DeviceProvider(approve_after=1, errors=["slow_down", "slow_down"]))
    assert conversation.waited == [5, 10, 15, 15]


def test_a_provider_that_does_not_answer_is_asked_less_often() -> None:
    _, conversation = granted(DeviceProvider(approve_after=0), down=2)
    assert conversation.waited == [5, 10, 20]


def test_the_interval_has_a_limit() -> None:
    _, conversation = granted(DeviceProvider(approve_after=0, device={"interval": 10_000}))
    assert conversation.waited == [MAX_INTERVAL]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        pytest.param({"interval": None}, 5, id="no interval"),
        pytest.param({"interval": "7"}, 5, id="an interval that is no number"),
        pytest.param({"interval": True}, 5, id="an interval that is a truth"),
        pytest.param({"interval": 0}, 5, id="no pause at all"),
        pytest.param({"interval": 7}, 7, id="an interval"),
    ],
)
def test_how_often_is_asked(device: dict[str, Any], expected: int) -> None:
    assert granted(DeviceProvider(approve_after=0, device=device))[1].waited == [expected]


def test_a_code_that_nobody_types_expires() -> None:
    with pytest.raises(OAuthError, match=r"the code has expired$"):
        granted(DeviceProvider(approve_after=99, device={"expires_in": 12}))


Answer = HttpResponse | HttpFailure
GRANTED = HttpResponse(200, b'{"id_token": "a.b.c"}')
PENDING = HttpResponse(400, b'{"error": "authorization_pending"}')
FORGETTING = HttpFailure("timeout", "no answer within 15 s", elapsed=15.0)


def polled(*answers: Answer, expires_in: int = 1800) -> list[float]:
    """Return the seconds of each wait of a device grant whose polls have these answers."""
    grant = device_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token", f"{ISSUER}/device"))
    left, waited = list(answers), []
    reply: Reply = None
    try:
        while True:
            step = grant.send(reply)
            reply = None
            if isinstance(step, Wait):
                waited.append(step.seconds)
            elif isinstance(step, HttpRequest) and step.url.endswith("/device"):
                reply = HttpResponse(
                    200, json.dumps(DeviceProvider(device={"expires_in": expires_in}).answer("/device", {})[1]).encode()
                )
            elif isinstance(step, HttpRequest):
                reply = left.pop(0)
    except StopIteration as stop:
        tokens = stop.value
    assert tokens.id_token == Secret("a.b.c")
    assert not left
    return waited


@pytest.mark.parametrize(
    ("answer", "waited"),
    [
        pytest.param(HttpResponse(502, b"<html>"), [5, 10], id="a page of a gateway"),
        pytest.param(HttpResponse(503, b""), [5, 10], id="nothing"),
        pytest.param(HttpResponse(503, b"", {"retry-after": "45"}), [5, 45], id="that says when to come back"),
        pytest.param(HttpResponse(503, b"", {"retry-after": "1"}), [5, 10], id="sooner than is polite"),
        pytest.param(HttpResponse(503, b"", {"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}), [5, 10], id="a date"),
        pytest.param(HttpResponse(429, b"Too Many"), [5, 10], id="a rate limit"),
        pytest.param(HttpResponse(429, b'{"error": "slow_down"}'), [5, 10], id="slow_down as a rate limit"),
        pytest.param(HttpResponse(408, b""), [5, 10], id="408"),
        pytest.param(HttpResponse(500, b'{"error": "server_error"}'), [5, 10], id="a word that may pass"),
        pytest.param(HttpResponse(400, b'{"error": "temporarily_unavailable"}'), [5, 10], id="another, with 400"),
        pytest.param(HttpResponse(500, b'{"error": "Internal Server Error"}'), [5, 10], id="words of a framework"),
        pytest.param(HttpResponse(200, b"<html>"), [5, 10], id="a page with 200"),
        pytest.param(HttpResponse(200, b'{"status": "starting"}'), [5, 10], id="an object of a gateway"),
        pytest.param(HttpResponse(403, b"<html>"), [5, 10], id="a page of a firewall"),
        pytest.param(HttpResponse(403, b'{"error": {"code": 403}}'), [5, 10], id="an error that is no word"),
        pytest.param(FORGETTING, [5, 10], id="a broken connection"),
        pytest.param(PENDING, [5, 5], id="pending"),
        pytest.param(HttpResponse(200, PENDING.body), [5, 5], id="pending with 200, as of GitHub"),
        pytest.param(HttpResponse(428, PENDING.body), [5, 5], id="pending with 428"),
        pytest.param(HttpResponse(503, PENDING.body), [5, 5], id="pending with 503"),
    ],
)
def test_one_bad_poll_ends_no_login(answer: Answer, waited: list[float]) -> None:
    assert polled(answer, GRANTED) == waited


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        pytest.param(HttpResponse(503, b'{"error": "access_denied"}'), "access_denied", id="denied, with 503"),
        pytest.param(HttpResponse(429, b'{"error": "expired_token"}'), "expired_token", id="expired, with 429"),
        pytest.param(HttpResponse(200, b'{"error": "access_denied"}'), "access_denied", id="denied, with 200"),
        pytest.param(HttpResponse(400, b'{"error": "made_up"}'), "made_up", id="an unknown word"),
    ],
)
def test_a_refusal_of_the_provider_ends_the_polls_whatever_its_status(answer: Answer, told: str) -> None:
    with pytest.raises(OAuthError, match=f"^login failed: {told}$"):
        polled(PENDING, answer)


def test_tokens_without_an_id_token_end_the_polls() -> None:
    with pytest.raises(OAuthError, match="is openid among the scopes"):
        polled(HttpResponse(200, b'{"access_token": "a"}'))


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        pytest.param([HttpResponse(502, b"")] * 3, "status 502", id="waits grow: 5, 10 and the rest"),
        pytest.param([FORGETTING] * 2, "no answer within 15 s", id="time without an answer is used up, too"),
        pytest.param([HttpResponse(503, b"", {"retry-after": "9999"})] * 2, "status 503", id="a late return"),
    ],
)
def test_bad_polls_last_as_long_as_the_code(answers: list[Answer], told: str) -> None:
    with pytest.raises(
        OAuthError, match=f"^login failed: the code has expired; the last request for the token got: {told}$"
    ):
        polled(*answers, expires_in=30)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("access_denied", "access_denied"),
        ("expired_token", "expired_token"),
        ("invalid_grant", "invalid_grant"),
        ("\x1b[31mred", "status 400"),
        ("two words", "status 400"),
        ("x" * 65, "status 400"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_standards_and_in_no_others(error: str, told: str) -> None:
    with pytest.raises(OAuthError, match=rf"^login failed: {told}$"):
        granted(DeviceProvider(errors=[error]))


@pytest.mark.parametrize(
    "device",
    [
        pytest.param({"device_code": None}, id="no device code"),
        pytest.param({"device_code": "\ud800"}, id="a device code that is no text"),
        pytest.param({"user_code": "\x07"}, id="a user code that rings"),
        pytest.param({"user_code": "X" * 65}, id="an endless user code"),
        pytest.param({"verification_uri": "javascript:alert(1)"}, id="an address that is none"),
        pytest.param({"verification_uri": None}, id="no address"),
    ],
)
def test_an_answer_that_cannot_be_shown_to_a_person(device: dict[str, Any]) -> None:
    with pytest.raises(OAuthError, match="none that RFC 8628 knows"):
        granted(DeviceProvider(device=device))


def test_the_name_of_an_older_draft_for_the_address_is_known() -> None:
    device = {"verification_uri": None, "verification_url": "https://google.example/device"}
    assert granted(DeviceProvider(device=device))[1].shown[0].verification_uri == "https://google.example/device"


def test_a_direct_address_that_is_none_is_not_shown() -> None:
    shown = granted(DeviceProvider(device={"verification_uri_complete": "http://x"}))[1].shown
    assert shown == [DevicePrompt(f"{ISSUER}/activate", "WDJB-MJHT")]


def test_a_provider_without_the_device_grant_is_told() -> None:
    with pytest.raises(OAuthError, match="offers no device grant"):
        Conversation(DeviceProvider()).drive(device_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token")))


@pytest.mark.parametrize(
    ("methods", "posted"),
    [
        pytest.param(None, False, id="nothing said means Basic"),
        pytest.param(["client_secret_basic", "client_secret_post"], False, id="Basic where both are taken"),
        pytest.param(["client_secret_post"], True, id="in the form where that is all"),
        pytest.param("client_secret_post", False, id="what is no list says nothing"),
    ],
)
def test_the_client_secret_goes_where_the_provider_wants_it(methods: Any, posted: bool) -> None:
    configuration = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
    provider = DeviceProvider(secret="s&cret é", configuration=configuration)
    _, conversation = granted(provider, CONFIDENTIAL)
    assert {"client_secret" in (form_of(request) or {}) for request in conversation.requests} == {posted}
    assert {request.authorization is None for request in conversation.requests} == {posted}
    assert "s&cret" not in repr(conversation.requests)


@dataclass
class ChoosyProvider(DeviceProvider):
    """Accepts the client's secret in one place alone, whatever it lists, and refuses it elsewhere with `refused`."""

    reads_form: bool = True
    refused: Answered = (401, {"error": "invalid_client"})

    def answer(self, path: str, form: dict[str, str] | None, authorization: str = "") -> Answered:
        if form is not None and bool(authorization) == self.reads_form:
            self.requests.append("refused")
            return self.refused
        return super().answer(path, form, authorization)


@pytest.mark.parametrize("reads_form", [True, False])
@pytest.mark.parametrize(
    "refused", [(401, {"error": "invalid_client"}), (400, {"error": "invalid_client"}), (401, {})], ids=str
)
def test_where_the_client_secret_is_refused_it_goes_the_other_way_and_stays_there(
    reads_form: bool, refused: Answered
) -> None:
    provider = ChoosyProvider(secret="s&cret é", reads_form=reads_form, refused=refused)
    client = replace(CONFIDENTIAL, secret_in_form=not reads_form)
    offers = provider_of(provider, client)
    provider.requests.clear()
    tokens = Conversation(provider).drive(device_grant(client, offers))
    assert provider.requests[:2] == ["refused", "/device"]
    assert offers.secret_in_form is reads_form
    assert tokens.refresh_token is not None
    Conversation(provider).drive(refresh_grant(client, offers, tokens.refresh_token))
    back = provider.log_in(authorization_url(client, offers, MADE))
    code = Secret(parse_qs(urlsplit(back).query)["code"][0])
    Conversation(provider).drive(code_grant(client, offers, MADE, code))
    assert provider.requests.count("refused") == 1
    assert provider_of(provider, replace(client, secret_in_form=reads_form)).secret_in_form is reads_form


@pytest.mark.parametrize(
    ("client", "status", "body", "requests"),
    [
        pytest.param(CONFIDENTIAL, 401, b'{"error": "invalid_client"}', 2, id="refused both ways"),
        pytest.param(CLIENT, 401, b'{"error": "invalid_client"}', 1, id="a client without a secret"),
        pytest.param(CONFIDENTIAL, 401, b'{"error": "access_denied"}', 1, id="another error"),
    ],
)
def test_the_other_way_is_tried_once_and_for_a_secret_alone(
    client: Client, status: int, body: bytes, requests: int
) -> None:
    offers = ProviderEndpoints(f"{ISSUER}/token")
    conversation = Conversation(DeviceProvider(), body=body, status=status)
    with pytest.raises(GrantEndedError):
        conversation.drive(refresh_grant(client, offers, Secret("x")))
    assert len(conversation.requests) == requests
    assert not offers.secret_in_form


@pytest.mark.parametrize("second", [HttpFailure("timeout", "x"), HttpResponse(503, b"")], ids=["no answer", "503"])
def test_an_other_way_that_gets_no_answer_teaches_nothing(second: Answer) -> None:
    offers = ProviderEndpoints(f"{ISSUER}/token")
    grant = refresh_grant(CONFIDENTIAL, offers, Secret("x"))
    next(grant)
    grant.send(HttpResponse(401, b'{"error": "invalid_client"}'))
    with pytest.raises(GrantEndedError, match="invalid_client"):
        grant.send(second)
    assert not offers.secret_in_form


def test_a_request_without_an_answer_is_not_sent_the_other_way() -> None:
    conversation = Conversation(DeviceProvider(), down=1)
    with pytest.raises(OAuthError, match="does not answer"):
        conversation.drive(refresh_grant(CONFIDENTIAL, ProviderEndpoints(f"{ISSUER}/token"), Secret("x")))
    assert len(conversation.requests) == 1


def test_a_wrong_client_secret_is_told() -> None:
    with pytest.raises(OAuthError, match="the provider refuses: invalid_client"):
        granted(DeviceProvider(secret="another"), CONFIDENTIAL)


@pytest.mark.parametrize(
    ("listed", "scopes", "sent"),
    [
        pytest.param(None, (), "openid offline_access", id="a provider that lists none"),
        pytest.param([], (), "openid offline_access", id="an empty list"),
        pytest.param("openid", (), "openid offline_access", id="no list"),
        pytest.param(["openid", "offline_access"], (), "openid offline_access", id="one that has both"),
        pytest.param(["openid", "profile", "email"], (), "openid", id="GitLab and Google have no offline_access"),
        pytest.param(["openid"], ("openid", "groups"), "openid groups", id="those of the user, whatever is listed"),
    ],
)
def test_the_scopes_that_are_asked_for(listed: Any, scopes: tuple[str, ...], sent: str) -> None:
    client = Client(ISSUER, "kubernetes", scopes=scopes)
    offers = provider_of(DeviceProvider(configuration={"scopes_supported": listed}))
    assert wanted_scopes(client, offers) == sent
    query = parse_qs(urlsplit(authorization_url(client, offers, MADE)).query)
    assert query["scope"] == [sent]


@pytest.mark.parametrize(
    ("response", "told"),
    [
        pytest.param({"error": "invalid_client"}, "invalid_client", id="a word alone"),
        pytest.param({"error": "x", "error_description": "é, no"}, 'x: "é, no"', id="with a description"),
        pytest.param({"error_description": "no"}, 'status 400: "no"', id="a description alone"),
        pytest.param({"error": "x", "error_description": "\x1b[31mred"}, "x", id="one that colours the terminal"),
        pytest.param({"error": "x", "error_description": 5}, "x", id="one that is no text"),
        pytest.param({"error": "x", "error_description": "of s3cret"}, "x", id="one that repeats a secret"),
        pytest.param({"error": "s3cret"}, "status 400", id="a word that repeats a secret"),
        pytest.param({"error": "x", "error_description": "y" * 201}, f'x: "{"y" * 200}…"', id="an endless one"),
        pytest.param(
            {"error": "invalid_scope", "error_description": "unknown scope"},
            'invalid_scope: "unknown scope"; the scopes openid groups were asked for: name others with --oidc-scope',
            id="a scope that it does not have",
        ),
    ],
)
def test_the_words_of_a_refusal(response: dict[str, Any], told: str) -> None:
    assert refusal(400, response, ("", "s3cret"), "openid groups") == told


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("s&cret é", id="as it is"),
        pytest.param("s%26cret%20%C3%A9", id="percent-encoded"),
        pytest.param("s%26cret+%C3%A9", id="as in a form"),
        pytest.param("a3ViZSUzQW5ldGVzOnMlMjZjcmV0JTIwJUMzJUE5", id="in the base64 of Basic"),
    ],
)
@pytest.mark.parametrize("path", ["/device", "/token", "refresh", "code"])
def test_a_provider_that_repeats_the_secret_of_the_client_is_not_repeated(
    form: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = DeviceProvider()
    offers = provider_of(peer, CONFIDENTIAL)
    refused = (401, {"error": "invalid_client", "error_description": f"the secret {form} is wrong"})
    answer = peer.answer
    monkeypatch.setattr(
        peer, "answer", lambda at, sent, shown="": answer(at, sent, shown) if path == "/token" != at else refused
    )
    grants = {
        "refresh": refresh_grant(CONFIDENTIAL, offers, Secret("refresh-1")),
        "code": code_grant(CONFIDENTIAL, offers, MADE, Secret("code-1")),
    }
    with pytest.raises(OAuthError, match=r"invalid_client$") as caught:
        Conversation(peer).drive(grants.get(path) or device_grant(CONFIDENTIAL, offers))
    assert form not in str(caught.value)


@pytest.mark.parametrize(
    ("issuer", "named"),
    [
        pytest.param(f"{ISSUER}/", f'it names "{ISSUER}/"', id="a slash"),
        pytest.param("http://provider.example:80", 'it names "http://provider.example:80"', id="another scheme"),
        pytest.param(None, "it names none", id="none"),
        pytest.param("\x1b", "it names none", id="one that cannot be shown"),
    ],
)
def test_the_issuer_that_was_found_stands_beside_the_one_that_was_expected(issuer: Any, named: str) -> None:
    with pytest.raises(OAuthError, match=f"of another issuer than {ISSUER}: {named}; check --oidc-issuer-url"):
        provider_of(DeviceProvider(configuration={"issuer": issuer}))


# ── code grant ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_browser_begins_with_a_challenge_and_never_with_the_verifier() -> None:
    url = authorization_url(CLIENT, provider_of(DeviceProvider()), MADE)
    assert url.startswith(f"{ISSUER}/authorize?")
    assert {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()} == {
        "response_type": "code",
        "client_id": "kubernetes",
        "redirect_uri": REDIRECT,
        "scope": "openid offline_access",
        "state": MADE.state,
        "code_challenge": MADE.challenge,
        "code_challenge_method": "S256",
    }
    assert MADE.verifier.reveal().decode() not in url
    assert len(MADE.verifier.reveal()) == len(MADE.state) == 43


def test_the_challenge_is_that_of_the_standard() -> None:
    """RFC 7636 appendix B."""
    made = AuthorizationRequest(REDIRECT, "s", Secret("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"))
    assert made.challenge == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_an_address_with_a_query_keeps_it() -> None:
    offers = ProviderEndpoints(f"{ISSUER}/token", authorization=f"{ISSUER}/authorize?tenant=1")
    assert authorization_url(CLIENT, offers, MADE).startswith(f"{ISSUER}/authorize?tenant=1&response_type=code")


def test_a_provider_without_a_browser_is_told() -> None:
    with pytest.raises(OAuthError, match="offers no log-in by browser"):
        authorization_url(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), MADE)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        pytest.param(f"/callback?code=abc&state={MADE.state}", b"abc", id="the answer"),
        pytest.param("/callback", None, id="neither a code nor an error"),
        pytest.param("/callback?state=x", None, id="a state alone"),
        pytest.param("/callback?a=1" + "&b=2" * 20, None, id="too many fields"),
        pytest.param(f"/callback?state={MADE.state}", None, id="no code"),
        pytest.param(f"/callback?code=%C3%A9&state={MADE.state}", None, id="a code that is not ASCII"),
        pytest.param(f"/favicon.ico?code=abc&state={MADE.state}", None, id="another path"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_what_a_browser_comes_back_with(target: str, code: bytes | None) -> None:
    found = read_redirect(MADE, target)
    assert (found.reveal() if found else None) == code


@pytest.mark.parametrize(
    ("query", "told"),
    [
        pytest.param("code=abc", "a code and no state", id="no state"),
        pytest.param(f"code=abc&state={MADE.state}x", "a code and the state of another login", id="another state"),
        pytest.param("code=abc&state=%ED%A0%80", "a code and the state of another login", id="a state that is no text"),
        pytest.param("error=access_denied", "the error access_denied and no state", id="an error as of Entra ID"),
        pytest.param(
            "error=access_denied&state=x",
            "the error access_denied and the state of another login",
            id="an error for another attempt",
        ),
        pytest.param("error=call+555&error_description=call+555", "an error and no state", id="words of any page"),
        pytest.param(
            f"state={MADE.state}&code={'x' * MAX_TARGET}", "more than 16 KiB, which is not read", id="more than is read"
        ),
    ],
)
def test_a_redirect_that_need_not_belong_to_this_login_is_told_without_its_words(query: str, told: str) -> None:
    with pytest.raises(StrayRedirectError, match=f"^the browser came back with {told}") as raised:
        read_redirect(MADE, f"/callback?{query}")
    assert "555" not in str(raised.value)


@given(st.text())
@example("//[")
@example("a=1&" * 30)
def test_whatever_a_browser_sends_is_no_code_of_ours(target: str) -> None:
    assert read_redirect(MADE, target) is None
    with suppress(StrayRedirectError):
        assert read_redirect(MADE, f"/callback?{target}") is None


@pytest.mark.parametrize(
    ("error", "told"), [("access_denied", "access_denied"), ("%1b", "no reason that can be shown")]
)
def test_a_browser_that_was_refused_says_so(error: str, told: str) -> None:
    with pytest.raises(OAuthError, match=f"login failed: {told}"):
        read_redirect(MADE, f"/callback?error={error}&state={MADE.state}")


def test_the_code_is_redeemed_with_the_verifier() -> None:
    provider = DeviceProvider()
    offers = provider_of(provider)
    back = provider.log_in(authorization_url(CLIENT, offers, MADE))
    code = read_redirect(MADE, back.removeprefix("http://127.0.0.1:8000"))
    assert code is not None
    tokens = Conversation(provider).drive(code_grant(CLIENT, offers, MADE, code))
    assert tokens.refresh_token is not None
    with pytest.raises(OAuthError, match="login failed: invalid_grant"):
        Conversation(provider).drive(code_grant(CLIENT, offers, MADE, code))


def test_a_stolen_code_is_worth_nothing_without_the_verifier() -> None:
    provider = DeviceProvider()
    offers = provider_of(provider)
    back = provider.log_in(authorization_url(CLIENT, offers, MADE))
    code = Secret(parse_qs(urlsplit(back).query)["code"][0])
    thief = new_authorization_request(REDIRECT, bytes(64))
    with pytest.raises(OAuthError, match="invalid_grant"):
        Conversation(provider).drive(code_grant(CLIENT, offers, thief, code))


# ── refreshing ───────────────────────────────────────────────────────────────────────────────────────────────────


def refreshed(provider: DeviceProvider, token: str) -> Tokens:
    return Conversation(provider).drive(refresh_grant(CLIENT, provider_of(provider), Secret(token)))


def test_a_refresh_token_brings_new_ones() -> None:
    provider = DeviceProvider(refresh_tokens={"first"})
    tokens = refreshed(provider, "first")
    assert tokens.refresh_token is not None
    assert tokens.refresh_token.reveal() != b"first"


def test_a_refresh_token_that_was_used_needs_a_person() -> None:
    with pytest.raises(GrantEndedError, match="the log-in is not refreshed: invalid_grant"):
        refreshed(DeviceProvider(), "used")


def refresh_answered(status: int, body: bytes) -> Tokens:
    conversation = Conversation(DeviceProvider(), body=body, status=status)
    return conversation.drive(refresh_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), Secret("first")))


DEX = b'{"error": "invalid_request", "error_description": "Refresh token expired."}'


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        pytest.param(400, DEX, 'invalid_request: "Refresh token expired."', id="Dex"),
        pytest.param(400, b'{"error": "unauthorized_client"}', "unauthorized_client", id="the grant was switched off"),
        pytest.param(401, b'{"error": "invalid_token"}', "invalid_token", id="a word of bearer tokens"),
        pytest.param(401, b'{"error": "invalid_client"}', "invalid_client", id="the client is unknown"),
        pytest.param(403, b'{"error": "access_denied"}', "access_denied", id="403"),
        pytest.param(400, b"", "status 400", id="400 without a word"),
        pytest.param(404, b"<html>", "status 404", id="404 with a page"),
        pytest.param(302, b"", "status 302", id="a redirect to a page"),
        pytest.param(200, b'{"error": "bad_refresh_token"}', "bad_refresh_token", id="an error with 200, as of GitHub"),
        pytest.param(200, b"<html>", "refreshing the log-in: the provider's answer is not a JSON object", id="a page"),
    ],
)
def test_a_refresh_that_fails_for_good_needs_a_person(status: int, body: bytes, reason: str) -> None:
    with pytest.raises(GrantEndedError) as raised:
        refresh_answered(status, body)
    assert raised.value.reason == reason
    assert raised.value.refresh_token is None


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"error": "server_error"}', b'{"error": "invalid_grant"}'], ids=repr
)
def test_a_refresh_that_may_succeed_later_keeps_the_grant(status: int, body: bytes) -> None:
    with pytest.raises(OAuthError, match=r"is not refreshed: .*; the login is kept, try again later$") as raised:
        refresh_answered(status, body)
    assert not isinstance(raised.value, GrantEndedError)


@pytest.mark.parametrize(
    ("status", "kind", "ends"),
    [
        pytest.param(400, TOO_LONG, True, id="a refusal of any length"),
        pytest.param(403, NOT_HTTP, True, id="a refusal that is compressed"),
        pytest.param(400, UNREACHABLE, True, id="a refusal that is cut off"),
        pytest.param(302, TIMEOUT, True, id="a redirect whose page drips"),
        pytest.param(200, TOO_LONG, True, id="200 of any length"),
        pytest.param(200, NOT_HTTP, True, id="200 that is compressed"),
        pytest.param(200, UNREACHABLE, False, id="200 that is cut off"),
        pytest.param(200, TIMEOUT, False, id="200 that drips"),
        pytest.param(429, TOO_LONG, False, id="429 of any length"),
        pytest.param(500, NOT_HTTP, False, id="500 that is compressed"),
        pytest.param(0, NOT_HTTP, False, id="no head of a response"),
    ],
)
def test_a_refresh_whose_body_cannot_be_read_goes_by_its_status(status: int, kind: str, ends: bool) -> None:
    exchange = refresh_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), Secret("first"))
    next(exchange)
    with pytest.raises(OAuthError) as raised:
        exchange.send(HttpFailure(kind, "the answer is longer than 1048576 bytes", status=status))
    if ends:
        assert isinstance(raised.value, GrantEndedError)
        assert raised.value.reason == f"status {status}: the answer is longer than 1048576 bytes"
    else:
        assert not isinstance(raised.value, GrantEndedError)
        assert str(raised.value).endswith("; the login is kept, try again later")


def test_a_new_refresh_token_beside_no_id_token_is_not_lost() -> None:
    with pytest.raises(GrantEndedError, match="the provider gave no ID token") as raised:
        refresh_answered(200, b'{"access_token": "a", "refresh_token": "second"}')
    assert raised.value.refresh_token == Secret("second")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"access_token": "x"}, id="an access token only"),
        pytest.param({"id_token": 1}, id="an ID token that is no text"),
        pytest.param({"id_token": "a\nb"}, id="an ID token of two lines"),
        pytest.param({"id_token": "é"}, id="an ID token that is not ASCII"),
    ],
)
def test_an_answer_without_an_id_token_is_told(answer: dict[str, Any]) -> None:
    conversation = Conversation(DeviceProvider(), body=json.dumps(answer).encode())
    offers = ProviderEndpoints(f"{ISSUER}/token")
    with pytest.raises(OAuthError, match="is openid among the scopes"):
        conversation.drive(code_grant(CLIENT, offers, MADE, Secret("code")))
    with pytest.raises(GrantEndedError, match=r"the provider gave no ID token$"):
        conversation.drive(refresh_grant(CLIENT, offers, Secret("x")))


def test_a_refresh_token_that_cannot_be_sent_back_is_none() -> None:
    conversation = Conversation(DeviceProvider(), body=b'{"id_token": "a.b.c", "refresh_token": "a\\nb"}')
    tokens = conversation.drive(refresh_grant(CLIENT, ProviderEndpoints(f"{ISSUER}/token"), Secret("x")))
    assert tokens.refresh_token is None


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3))
KEYS = st.sampled_from(
    ["device_code", "user_code", "verification_uri", "interval", "expires_in", "error", "id_token", "issuer"]
)


@given(st.dictionaries(KEYS, JSON).map(lambda found: json.dumps(found).encode()) | st.binary(max_size=100))
def test_whatever_a_provider_answers_ends_in_tokens_or_in_one_error(body: bytes) -> None:
    offers = ProviderEndpoints(f"{ISSUER}/token", f"{ISSUER}/device")
    told: list[str] = []
    for generator in (
        discover(CLIENT),
        device_grant(CLIENT, offers),
        refresh_grant(CLIENT, offers, Secret("x")),
    ):
        try:
            Conversation(DeviceProvider(), body=body).drive(generator)
        except OAuthError as error:
            told.append(str(error))
    assert all(map(str.isprintable, told))


def test_nothing_secret_is_in_a_repr() -> None:
    request = form_request(
        CONFIDENTIAL, ProviderEndpoints(f"{ISSUER}/token"), "https://x", (("refresh_token", "s3cret"),)
    )
    shown = repr((CONFIDENTIAL, MADE, request))
    assert "s3cret" not in shown
    assert "cret é" not in shown
    assert MADE.verifier.reveal().decode() not in shown
