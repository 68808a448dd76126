"""Grants of OAuth with which a person logs in: by a browser on this machine, by a code on another one, and by a refresh token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from mooring import base64url
from mooring.secret import Secret
from mooring.trust.httpexchange import NOT_HTTP, TOO_LONG, Exchange, HttpFailure, HttpRequest, HttpResponse, Reply, Wait
from mooring.trust.oidc.client import (
    INVALID_SCOPE,
    MAX_WORD,
    Client,
    GrantEndedError,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    failure_error,
    is_printable,
    is_printable_url,
    is_refusal,
    is_token,
    json_object,
    may_pass,
    post_form,
    read_refresh_token,
    read_tokens,
    refusal,
    response_object,
    send_form,
    sent_secrets,
    wanted_scopes,
)

# OAuth authorization code grant with PKCE: a person logs in with a browser on this machine (RFC 6749, RFC 7636, RFC 8252).
#
# The redirect comes back to this machine and must carry the `state` that was sent. The code is redeemed with the verifier whose
# SHA-256 was sent (S256).


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """State of one login by redirect. `state` and `verifier` come from entropy: 43 characters of base64url each."""

    redirect_uri: str
    state: str
    verifier: Secret

    @property
    def challenge(self) -> str:
        return base64url.encode(hashlib.sha256(self.verifier.reveal()).digest())


def new_authorization_request(redirect_uri: str, entropy: bytes) -> AuthorizationRequest:
    """Return a new request. `entropy` has 64 bytes."""
    state, verifier = (base64url.encode(part) for part in (entropy[:32], entropy[32:64]))
    return AuthorizationRequest(redirect_uri, state, Secret(verifier))


def authorization_url(client: Client, provider: ProviderEndpoints, request: AuthorizationRequest) -> str:
    """Return the URL that the browser opens. Raises OAuthError."""
    if not provider.authorization:
        raise OAuthError(f"{client.issuer} offers no log-in by browser")
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": request.redirect_uri,
        "scope": wanted_scopes(client, provider),
        "state": request.state,
        "code_challenge": request.challenge,
        "code_challenge_method": "S256",
    }
    return f"{provider.authorization}{'&' if urlsplit(provider.authorization).query else '?'}{urlencode(query)}"


MAX_TARGET = 16 << 10
"""Characters of a redirect: the codes of some providers have 2 kB."""


class StrayRedirectError(OAuthError):
    """A redirect that need not belong to this login. It does not end the login, because any page can send a browser here."""


REDIRECT_ERRORS = (
    "invalid_request", "unauthorized_client", "access_denied", "unsupported_response_type", INVALID_SCOPE, "server_error",
    "temporarily_unavailable", "interaction_required", "login_required", "account_selection_required", "consent_required",
)  # fmt: skip
"""Errors that a browser comes back with (RFC 6749 section 4.1.2.1, OpenID Connect Core 1.0 section 3.1.2.6)."""


def read_redirect(request: AuthorizationRequest, target: str, scopes: str = "") -> Secret | None:
    """Return the code in the request target of a redirect; None when it does not belong to `request`.

    `scopes`: those that were asked for. Raises OAuthError when the provider refused the login, StrayRedirectError for a redirect
    without its state. Of such a redirect no text is repeated, because any page may have written it.
    """
    try:
        parts = urlsplit(target)
        if parts.path != urlsplit(request.redirect_uri).path:
            return None
        if len(target) > MAX_TARGET:
            raise StrayRedirectError(f"the browser came back with more than {MAX_TARGET >> 10} KiB, which is not read")
        query = parse_qs(parts.query, max_num_fields=20)
    except ValueError:
        return None
    state, code, error, text = (query.get(key, [""])[0] for key in ("state", "code", "error", "error_description"))
    if not hmac.compare_digest(state.encode("utf-8", "surrogatepass"), request.state.encode()):
        if error or code:
            word = f"the error {error}" if error in REDIRECT_ERRORS else "an error" if error else "a code"
            whose = "the state of another login" if state else "no state"
            raise StrayRedirectError(f"the browser came back with {word} and {whose}, so it may be of another page")
        return None
    if error:
        sent = (request.state, request.verifier.reveal().decode())
        response = {"error": error, "error_description": text}
        raise OAuthError(f"login failed: {refusal(0, response, sent, scopes)}")
    return Secret(code) if code and code.isascii() else None


def code_grant(
    client: Client, provider: ProviderEndpoints, request: AuthorizationRequest, code: Secret
) -> Exchange[Tokens]:
    """Return the tokens for `code`. Raises OAuthError."""
    form = (
        ("grant_type", "authorization_code"),
        ("code", code.reveal().decode()),
        ("redirect_uri", request.redirect_uri),
        ("code_verifier", request.verifier.reveal().decode()),
        ("client_id", client.client_id),
    )
    status, response = yield from send_form("redeeming the code", client, provider, provider.token, form)
    if is_refusal(status, response):
        sent = sent_secrets(client, code.reveal().decode(), request.verifier.reveal().decode())
        raise OAuthError(f"login failed: {refusal(status, response, sent)}")
    return read_tokens(response)


# OAuth device authorization grant: a person logs in with any browser anywhere (RFC 8628).
#
# The person is shown an address and a code. The token endpoint is polled every `interval` seconds, more slowly when it says
# `slow_down`, does not respond, or a gateway responds in its place, until it grants, refuses, or the code has expired (section
# 3.5). A response is the provider's own when it has tokens or an error of OAuth.

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL = 5
"""Seconds between polls when the provider does not say (RFC 8628 section 3.2)."""
MAX_INTERVAL = 60
"""Seconds between polls at most."""
MAX_CODE_LIFE = 1800
"""Seconds for which a code is polled at most."""
MAX_RETRY_DIGITS = 6
"""Digits of a Retry-After in seconds: days, far longer than a code lives."""
PENDING = ("authorization_pending", "server_error", "temporarily_unavailable")
"""Errors of OAuth that may pass (RFC 8628 section 3.5, RFC 6749 section 4.1.2.1), whatever the status."""
FINAL = (
    "access_denied",
    "expired_token",
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    INVALID_SCOPE,
    "unauthorized_client",
    "unsupported_grant_type",
)
"""Errors of OAuth that no later poll changes (RFC 6749 section 5.2, RFC 8628 section 3.5), also with a status of a gateway."""


@dataclass(frozen=True, slots=True)
class DevicePrompt:
    """Notice to the person: open the URI and enter the code. The complete URI, when there is one, contains the code."""

    verification_uri: str
    user_code: str
    verification_uri_complete: str = ""


def device_grant(
    client: Client, provider: ProviderEndpoints
) -> Generator[HttpRequest | Wait | DevicePrompt, Reply, Tokens]:
    """Return the tokens of a device grant. Raises OAuthError."""
    if not provider.device:
        raise OAuthError(f"{client.issuer} offers no device grant (RFC 8628)")
    step = "asking for a device code"
    scopes = wanted_scopes(client, provider)
    form = (("client_id", client.client_id), ("scope", scopes))
    status, response = yield from send_form(step, client, provider, provider.device, form)
    if is_refusal(status, response):
        raise OAuthError(f"{step}: the provider refuses: {refusal(status, response, sent_secrets(client), scopes)}")
    device_code, user_code = response.get("device_code"), response.get("user_code")
    # verification_url is the name in an older draft, which Google uses
    uri = response.get("verification_uri") or response.get("verification_url")
    complete_uri = response.get("verification_uri_complete") or ""
    if not is_token(device_code) or not is_printable(user_code, MAX_WORD) or not is_printable_url(uri):
        raise OAuthError(f"{step}: the provider's answer is none that RFC 8628 knows")
    yield DevicePrompt(str(uri), str(user_code), complete_uri if is_printable_url(complete_uri) else "")

    interval = min(_seconds(response.get("interval"), INTERVAL), MAX_INTERVAL)
    left: float = min(_seconds(response.get("expires_in"), MAX_CODE_LIFE), MAX_CODE_LIFE)
    poll_form = (("grant_type", GRANT_TYPE), ("device_code", str(device_code)), ("client_id", client.client_id))
    sent = sent_secrets(client, str(device_code))
    pause: float = interval
    problem = ""
    while left > 0:
        pause = min(pause, left)
        yield Wait(pause)
        reply = yield from post_form(client, provider, provider.token, poll_form)
        left -= pause + reply.elapsed
        response = {} if isinstance(reply, HttpFailure) else json_object(reply) or {}
        status = 0 if isinstance(reply, HttpFailure) else reply.status
        error = response.get("error")
        pause, problem = interval, ""
        if (
            status == 200
            and ("id_token" in response or "access_token" in response)
            and not is_refusal(status, response)
        ):
            return read_tokens(response)
        if error == "slow_down":
            pause = interval = min(interval + INTERVAL, MAX_INTERVAL)
        elif isinstance(error, str) and (error in FINAL or not may_pass(status)) and error not in PENDING:
            raise OAuthError(f"login failed: {refusal(status, response, sent, scopes)}")
        elif error != "authorization_pending":
            interval = min(interval * 2, MAX_INTERVAL)
            pause = max(interval, _retry_after(reply))
            problem = reply.text if isinstance(reply, HttpFailure) else f"status {status}"
    last = f"; the last request for the token got: {problem}" if problem else ""
    raise OAuthError(f"login failed: the code has expired{last}")


def _retry_after(reply: HttpResponse | HttpFailure) -> int:
    text = "" if isinstance(reply, HttpFailure) else reply.headers.get("retry-after", "")
    return int(text) if len(text) <= MAX_RETRY_DIGITS and text.isascii() and text.isdigit() else 0


def _seconds(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


# OAuth refresh: new tokens for a refresh token, without a person (RFC 6749 section 6).
#
# Rules kept here: providers have many words for a refresh token that is dead (Dex: `invalid_request`), and OpenID Connect Core
# 1.0 section 12.2 allows an answer without an ID token. So every answer ends the grant, whatever its body is, but for the ones
# that may pass: 408, 429 and 5xx, whatever word they have, and a connection that breaks.

OK = 200
_STEP = "refreshing the log-in"
_KEPT = "the login is kept, try again later"


def refresh_grant(client: Client, provider: ProviderEndpoints, token: Secret) -> Exchange[Tokens]:
    """Return new tokens. Raises GrantEndedError when a person has to log in again, and OAuthError."""
    form = (
        ("grant_type", "refresh_token"),
        ("refresh_token", token.reveal().decode()),
        ("client_id", client.client_id),
    )
    reply = yield from post_form(client, provider, provider.token, form)
    if isinstance(reply, HttpFailure):
        # Of a status that refuses, the body does not matter: one that cannot be read would keep the login for ever.
        is_unreadable = reply.kind in (TOO_LONG, NOT_HTTP)
        if reply.status and not may_pass(reply.status) and (reply.status != OK or is_unreadable):
            raise GrantEndedError(f"status {reply.status}: {reply.message}")
        raise OAuthError(f"{failure_error(_STEP, provider.token, reply)}; {_KEPT}")
    try:
        response = response_object(_STEP, reply)
    except OAuthError as error:
        raise GrantEndedError(str(error)) from None
    if is_refusal(reply.status, response):
        word = refusal(reply.status, response, sent_secrets(client, token.reveal().decode()))
        if may_pass(reply.status):
            raise OAuthError(f"the log-in is not refreshed: {word}; {_KEPT}")
        raise GrantEndedError(word, read_refresh_token(response))
    if not is_token(response.get("id_token")):
        raise GrantEndedError("the provider gave no ID token", read_refresh_token(response))
    return read_tokens(response)
