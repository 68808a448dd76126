"""OAuth refresh: new tokens for a refresh token, without a person (RFC 6749 section 6)."""

from __future__ import annotations

from mooring.secret import Secret
from mooring.trust.httpexchange import Exchange
from mooring.trust.oidc.client import (
    Client,
    GrantEndedError,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    form_request,
    read_tokens,
    refusal,
    send_form,
    sent_secrets,
)

LOGIN_NEEDED = ("invalid_grant", "interaction_required", "login_required", "consent_required")
"""Error codes that only a new login of a person resolves."""


def refresh_grant(client: Client, provider: ProviderEndpoints, token: Secret) -> Exchange[Tokens]:
    """Return new tokens. Raises GrantEndedError when a person has to log in again, and OAuthError."""
    form = (
        ("grant_type", "refresh_token"),
        ("refresh_token", token.reveal().decode()),
        ("client_id", client.client_id),
    )
    status, response = yield from send_form(
        "refreshing the log-in", form_request(client, provider, provider.token, form)
    )
    if status != 200:
        error = GrantEndedError if response.get("error") in LOGIN_NEEDED else OAuthError
        sent = sent_secrets(client, token.reveal().decode())
        raise error(f"the log-in is not refreshed: {refusal(status, response, sent)}")
    return read_tokens(response)
