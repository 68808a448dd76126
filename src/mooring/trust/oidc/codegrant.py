"""OAuth authorization code grant with PKCE: a person logs in with a browser on this machine (RFC 6749, RFC 7636, RFC 8252).

The redirect comes back to this machine and must carry the `state` that was sent. The code is redeemed with the verifier whose
SHA-256 was sent (S256).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit

from mooring import base64url
from mooring.secret import Secret
from mooring.trust.httpexchange import Exchange
from mooring.trust.oidc.client import (
    INVALID_SCOPE,
    Client,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    is_refusal,
    read_tokens,
    refusal,
    send_form,
    sent_secrets,
    wanted_scopes,
)


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
