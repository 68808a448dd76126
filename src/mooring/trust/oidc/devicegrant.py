"""OAuth device authorization grant: a person logs in with any browser anywhere (RFC 8628).

The person is shown an address and a code. The token endpoint is polled every `interval` seconds, more slowly when it says
`slow_down` or does not respond, until it grants, refuses, or the code has expired.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from mooring.trust.httpexchange import HttpFailure, HttpRequest, Reply, Wait, send
from mooring.trust.oidc.client import (
    MAX_WORD,
    Client,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    form_request,
    is_printable,
    is_printable_url,
    is_token,
    read_tokens,
    refusal,
    response_object,
    send_form,
    sent_secrets,
    wanted_scopes,
)

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL = 5
"""Seconds between polls when the provider does not say (RFC 8628 section 3.2)."""
MAX_INTERVAL = 60
"""Seconds between polls at most."""
MAX_CODE_LIFE = 1800
"""Seconds for which a code is polled at most."""


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
    status, response = yield from send_form(step, form_request(client, provider, provider.device, form))
    if status != 200:
        raise OAuthError(f"{step}: the provider refuses: {refusal(status, response, sent_secrets(client), scopes)}")
    device_code, user_code = response.get("device_code"), response.get("user_code")
    # verification_url is the name in an older draft, which Google uses
    uri = response.get("verification_uri") or response.get("verification_url")
    complete_uri = response.get("verification_uri_complete") or ""
    if not is_token(device_code) or not is_printable(user_code, MAX_WORD) or not is_printable_url(uri):
        raise OAuthError(f"{step}: the provider's answer is none that RFC 8628 knows")
    yield DevicePrompt(str(uri), str(user_code), complete_uri if is_printable_url(complete_uri) else "")

    interval = min(_seconds(response.get("interval"), INTERVAL), MAX_INTERVAL)
    left = min(_seconds(response.get("expires_in"), MAX_CODE_LIFE), MAX_CODE_LIFE)
    poll_form = (("grant_type", GRANT_TYPE), ("device_code", str(device_code)), ("client_id", client.client_id))
    poll = form_request(client, provider, provider.token, poll_form)
    sent = sent_secrets(client, str(device_code))
    while left > 0:
        yield Wait(interval)
        left -= interval
        reply = yield from send(poll)
        if isinstance(reply, HttpFailure):
            interval = min(interval * 2, MAX_INTERVAL)
            continue
        response = response_object("asking for the token", reply)
        error = response.get("error")
        if reply.status == 200:
            return read_tokens(response)
        if error == "slow_down":
            interval = min(interval + INTERVAL, MAX_INTERVAL)
        elif error != "authorization_pending":
            raise OAuthError(f"login failed: {refusal(reply.status, response, sent, scopes)}")
    raise OAuthError("login failed: the code has expired")


def _seconds(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
