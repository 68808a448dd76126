"""OAuth device authorization grant: a person logs in with any browser anywhere (RFC 8628).

The person is shown an address and a code. The token endpoint is polled every `interval` seconds, more slowly when it says
`slow_down`, does not respond, or a gateway responds in its place, until it grants, refuses, or the code has expired (section 3.5).
A response is the provider's own when it has tokens or an error of OAuth.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from mooring.trust.httpexchange import HttpFailure, HttpRequest, HttpResponse, Reply, Wait
from mooring.trust.oidc.client import (
    INVALID_SCOPE,
    MAX_WORD,
    Client,
    OAuthError,
    ProviderEndpoints,
    Tokens,
    is_printable,
    is_printable_url,
    is_refusal,
    is_token,
    json_object,
    may_pass,
    post_form,
    read_tokens,
    refusal,
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
