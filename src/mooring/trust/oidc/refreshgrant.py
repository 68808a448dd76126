"""OAuth refresh: new tokens for a refresh token, without a person (RFC 6749 section 6).

Rules kept here: providers have many words for a refresh token that is dead (Dex: `invalid_request`), and OpenID Connect Core 1.0
section 12.2 allows an answer without an ID token. So every answer ends the grant, whatever its body is, but for the ones that may
pass: 408, 429 and 5xx, whatever word they have, and a connection that breaks.
"""

from __future__ import annotations

from mooring.secret import Secret
from mooring.trust.httpexchange import NOT_HTTP, TOO_LONG, Exchange, HttpFailure
from mooring.trust.oidc.client import (
    Client,
    GrantEndedError,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    failure_error,
    is_refusal,
    is_token,
    may_pass,
    post_form,
    read_refresh_token,
    read_tokens,
    refusal,
    response_object,
    sent_secrets,
)

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
        # of a status that refuses, the body does not matter: one that cannot be read would keep the login for ever
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
