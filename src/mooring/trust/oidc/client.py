"""OpenID client: its registration, the endpoints of its provider, and requests to the token endpoint.

Rules kept here (RFC 6749; RFC 8414):
1. Every endpoint in the provider's metadata is an https URL.
2. A confidential client sends its secret as the provider wants it: in a Basic header, else in the form. A public one has none. Some
   providers list both and read only one, or do not decode the header (RFC 6749 section 2.3.1): where one way is refused as
   `invalid_client` the other is tried, and remembered when it is accepted, as Go's oauth2 does.
3. The ID token is opaque here; the cluster judges it. A refresh token is kept when there is one.
4. Text of the provider is untrusted. Of its errors the code word and the description are repeated, the latter in quotes and
   shortened, unless it has something of the request in it. Nothing that is not printable reaches a terminal.
5. Without scopes of its own the client asks for `openid` and `offline_access`, or for `openid` alone when the provider lists its
   scopes without the other: GitLab and Google know none (OpenID Connect Discovery 1.0 section 3, Core 1.0 section 11).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, quote_plus, urlencode, urlsplit

from mooring.errors import PeerError, quoted
from mooring.secret import Secret
from mooring.trust.httpexchange import CERTIFICATE, Exchange, HttpFailure, HttpRequest, HttpResponse, Reply, send
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.oidc.discovery import ProviderError, document_url, fetch_metadata

PROVIDER = "provider"
"""Target of every request: the provider, under the trust that the driver has for it."""
OPENID_SCOPE = "openid"
REFRESH_SCOPE = "offline_access"
INVALID_SCOPE = "invalid_scope"
REQUEST_TIMEOUT = 15.0
"""Seconds for one request; providers sign tokens in a few milliseconds."""
UNAUTHORIZED = 401
REQUEST_TIMED_OUT = 408
TOO_MANY_REQUESTS = 429
MAX_URL = 512
"""Characters of a URL that is shown to a person."""
MAX_WORD = 64
"""Characters of a user code or of an error code."""
MAX_DESCRIPTION = 200
"""Characters of an error's description that are repeated."""


class OAuthError(PeerError):
    """The provider gave no token. The message says why, and never repeats a token or a code."""


class GrantEndedError(OAuthError):
    """A refresh token brings no ID token any more: a person has to log in again.

    `reason` is for the person. `refresh_token` is a new one that the response had all the same; the old one is dead then.
    """

    def __init__(self, reason: str, refresh_token: Secret | None = None) -> None:
        super().__init__(f"the log-in is not refreshed: {reason}")
        self.reason = reason
        self.refresh_token = refresh_token


@dataclass(frozen=True, slots=True)
class Client:
    """Registration of this program at the provider. Without `scopes` those of rule 5 are asked for.

    `secret_in_form`: an earlier login found that the provider accepts the secret in the form alone.
    """

    issuer: str
    client_id: str
    secret: Secret | None = None
    scopes: tuple[str, ...] = ()
    secret_in_form: bool = False


@dataclass(slots=True)
class ProviderEndpoints:
    """Endpoints of the provider. An empty URL is an endpoint that it does not offer. `scopes`: those that it lists, if it does.

    `secret_in_form` changes when the provider refuses the client's secret in one place and accepts it in the other.
    """

    token: str
    device: str = ""
    authorization: str = ""
    secret_in_form: bool = False
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a successful grant."""

    id_token: Secret
    refresh_token: Secret | None = None


def discover(client: Client) -> Exchange[ProviderEndpoints]:
    """Return the endpoints of the client's issuer. Raises OAuthError."""
    try:
        metadata = yield from fetch_metadata(PROVIDER, client.issuer, document_url(client.issuer), REQUEST_TIMEOUT)
    except ProviderError as error:
        if error.failure is not None:
            raise failure_error("reading the provider's configuration", client.issuer, error.failure) from None
        raise OAuthError(f"{client.issuer}: {error}; check --oidc-issuer-url") from None
    methods = metadata.get("token_endpoint_auth_methods_supported")
    # What an earlier login found counts before what the provider says.
    secret_in_form = client.secret_in_form or (
        isinstance(methods, list) and "client_secret_post" in methods and "client_secret_basic" not in methods
    )
    token = _endpoint(metadata, "token_endpoint")
    if not token:
        raise OAuthError(f"{client.issuer} names no token endpoint")
    return ProviderEndpoints(
        token,
        _endpoint(metadata, "device_authorization_endpoint"),
        _endpoint(metadata, "authorization_endpoint"),
        secret_in_form,
        _scopes(metadata.get("scopes_supported")),
    )


def _scopes(listed: Any) -> tuple[str, ...] | None:
    return tuple(one for one in listed if isinstance(one, str)) if isinstance(listed, list) and listed else None


def wanted_scopes(client: Client, provider: ProviderEndpoints) -> str:
    """Return the scopes to ask for, as the parameter `scope` (rule 5)."""
    default: tuple[str, ...] = (OPENID_SCOPE, REFRESH_SCOPE)
    if provider.scopes is not None and REFRESH_SCOPE not in provider.scopes:
        default = (OPENID_SCOPE,)
    return " ".join(client.scopes or default)


def form_request(client: Client, provider: ProviderEndpoints, url: str, form: Sequence[tuple[str, str]]) -> HttpRequest:
    """Return a POST of `form` to an endpoint, with the client's secret (rule 2)."""
    authorization = None
    if client.secret is not None:
        if provider.secret_in_form:
            form = (*form, ("client_secret", client.secret.reveal().decode()))
        else:
            authorization = Secret(f"Basic {_pair(client.client_id, client.secret)}")
    return HttpRequest(
        PROVIDER,
        "POST",
        url,
        headers=(("accept", "application/json"), ("content-type", "application/x-www-form-urlencoded")),
        body=urlencode(form).encode(),
        authorization=authorization,
        timeout=REQUEST_TIMEOUT,
    )


def _pair(client_id: str, secret: Secret) -> str:
    return base64.b64encode(f"{quote(client_id, safe='')}:{quote(secret.reveal().decode(), safe='')}".encode()).decode()


def sent_secrets(client: Client, *more: str) -> tuple[str, ...]:
    """Return the texts of a request that no message repeats: the client's secret in the forms in which it travels, and `more`."""
    if client.secret is None:
        return more
    secret = client.secret.reveal().decode()
    return secret, quote(secret, safe=""), quote_plus(secret), _pair(client.client_id, client.secret), *more


def send_form(
    step: str, client: Client, provider: ProviderEndpoints, url: str, form: Sequence[tuple[str, str]]
) -> Exchange[tuple[int, Mapping[str, Any]]]:
    """Return the status and the JSON object of a response. Raises OAuthError that begins with `step`."""
    reply = yield from post_form(client, provider, url, form)
    if isinstance(reply, HttpFailure):
        raise failure_error(step, url, reply)
    return reply.status, response_object(step, reply)


def post_form(
    client: Client, provider: ProviderEndpoints, url: str, form: Sequence[tuple[str, str]]
) -> Generator[HttpRequest, Reply, HttpResponse | HttpFailure]:
    """Return the reply to a form, which is sent a second time where the client's secret was refused (rule 2)."""
    reply = yield from send(form_request(client, provider, url, form))
    if client.secret is None or not _is_unknown_client(reply):
        return reply
    otherwise = replace(provider, secret_in_form=not provider.secret_in_form)
    second = yield from send(form_request(client, otherwise, url, form))
    # The first reply is the error: the second form may be one that the provider does not know at all.
    if isinstance(second, HttpFailure) or may_pass(second.status) or _is_unknown_client(second):
        return reply
    # Only once the provider took the secret there: later requests begin with it.
    provider.secret_in_form = otherwise.secret_in_form
    return second


def _is_unknown_client(reply: HttpResponse | HttpFailure) -> bool:
    if isinstance(reply, HttpFailure):
        return False
    error = (json_object(reply) or {}).get("error")
    return error == "invalid_client" or (reply.status == UNAUTHORIZED and error is None)


def failure_error(step: str, url: str, failure: HttpFailure) -> OAuthError:
    """Return the error for a request to `url` that failed."""
    host = urlsplit(url).netloc
    if failure.kind == CERTIFICATE:
        hint = "name the CA that signed it with --oidc-ca-file"
        return OAuthError(f"{step}: the certificate of {host} does not verify ({failure.message}); {hint}")
    return OAuthError(f"{step}: {host} does not answer ({failure.message})")


def response_object(step: str, response: HttpResponse) -> Mapping[str, Any]:
    """Return the JSON object of a response; an empty one for an error page. Raises OAuthError for a page with status 200."""
    value = json_object(response)
    if value is None and response.status == 200:
        raise OAuthError(f"{step}: the provider's answer is not a JSON object")
    return value or {}


def json_object(response: HttpResponse) -> Mapping[str, Any] | None:
    """Return the JSON object of a response; None for anything else, such as a page."""
    try:
        value = json.loads(response.body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_tokens(response: Mapping[str, Any]) -> Tokens:
    """Return the tokens of a successful response. Raises OAuthError."""
    if not is_token(response.get("id_token")):
        raise OAuthError("the provider gave no ID token; is openid among the scopes, and is this client allowed it?")
    return Tokens(Secret(str(response["id_token"])), read_refresh_token(response))


def read_refresh_token(response: Mapping[str, Any]) -> Secret | None:
    """Return the refresh token in a response; None when it has none that can be sent back."""
    refresh_token = response.get("refresh_token")
    return Secret(str(refresh_token)) if is_token(refresh_token) else None


def may_pass(status: int) -> bool:
    """Return True for a status of a gateway or of a provider out of order: the same request may succeed later."""
    return status >= 500 or status in (REQUEST_TIMED_OUT, TOO_MANY_REQUESTS)


def is_refusal(status: int, response: Mapping[str, Any]) -> bool:
    """Return True for a response of the token endpoint that is an error. GitHub sends the error with status 200."""
    return status != 200 or ("error" in response and "id_token" not in response)


def refusal(status: int, response: Mapping[str, Any], sent: Iterable[str] = (), scopes: str = "") -> str:
    """Return the reason of a refusal: its code word or status, and its description (rule 4).

    `sent`: secrets of the request (`sent_secrets`), which either may repeat. `scopes`: those that were asked for.
    """
    error, text = (_without(sent, response.get(key)) for key in ("error", "error_description"))
    word = f"status {status}" if status else "no reason that can be shown"
    # A code word only: anything else may hold control characters or a token.
    if is_printable(error, MAX_WORD) and str(error).replace("_", "").isalnum():
        word = str(error)
    if isinstance(text, str) and text and text.isprintable():
        shown = f"{text[:MAX_DESCRIPTION]}…" if len(text) > MAX_DESCRIPTION else text
        word += f": {quoted(shown)}"
    if error == INVALID_SCOPE and scopes:
        word += f"; the scopes {scopes} were asked for: name others with --oidc-scope"
    return word


def _without(sent: Iterable[str], text: Any) -> Any:
    return None if isinstance(text, str) and any(one and one in text for one in sent) else text


def is_printable_url(value: Any) -> bool:
    """Return True for an https URL that a terminal can show."""
    return is_printable(value, MAX_URL) and not https_url_problem(value, query=True, fragment=True)


def is_printable(value: Any, max_length: int) -> bool:
    """Return True for printable ASCII text of 1 to `max_length` characters."""
    return isinstance(value, str) and 0 < len(value) <= max_length and value.isascii() and value.isprintable()


def is_token(value: Any) -> bool:
    """Return True for printable ASCII text: a token or a code."""
    return isinstance(value, str) and bool(value) and value.isascii() and value.isprintable()


def _endpoint(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if value in (None, ""):
        return ""
    if not is_printable_url(value):
        raise OAuthError(f"the provider's {key} is not an https URL")
    return str(value)
