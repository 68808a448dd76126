"""Logging in at an OpenID provider from a command: the device grant, the code grant with PKCE, and refreshing (law 8: generators).

Rules kept here (RFC 8628; RFC 6749 and 8252; RFC 7636; OpenID Connect Discovery 1.0):
1. The provider's configuration is fetched from below its issuer and must name that issuer. Every address in it is an https URL.
2. A confidential client says its secret as the provider wants it: in a Basic header, else in the form. A public one has none.
3. Device grant: the person is shown an address and a code; the provider is asked every `interval` seconds, slower when it says so
   or does not answer, until it grants, refuses, or the code has expired.
4. Code grant: the answer comes back to this machine and must carry the `state` that was sent; the code is redeemed with the
   verifier whose SHA-256 went out (S256).
5. What is wanted is an ID token, which the cluster judges; it is not looked into here. A refresh token is kept when there is one.
6. What a provider says is untrusted text: errors are told in its own code words when those are of the kind that the standards
   know, and nothing it says reaches a terminal unless it is printable.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from mooring.errors import PeerError
from mooring.secret import Secret
from mooring.trust.httpexchange import CERTIFICATE, HttpRequest, HttpResponse, Reply, Wait

PROVIDER = "provider"
"""The target of every request: the provider, under the trust that the driver was given."""
DISCOVERY_PATH = "/.well-known/openid-configuration"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
REQUIRED_SCOPE = "openid"
REFRESH_SCOPE = "offline_access"
MAX_BODY = 1 << 20
"""Bytes of an answer: a token of many groups has 16 kB."""
TIMEOUT = 15.0
"""Seconds for one exchange; providers sign tokens in a few milliseconds."""
INTERVAL = 5
"""Seconds between questions when the provider does not say (RFC 8628 section 3.2)."""
MAX_INTERVAL = 60
MAX_CODE_LIFE = 1800
"""Seconds: nobody looks at a code for longer."""
MAX_SHOWN = 512
"""Characters of an address that is shown to a person."""
MAX_WORD = 64


class OauthError(PeerError):
    """The provider gave no token. The message says why, and never repeats a token or a code."""


class GrantEndedError(OauthError):
    """A refresh token is not believed any more: a person has to log in again."""


@dataclass(frozen=True, slots=True)
class Client:
    """How this program is known to the provider."""

    issuer: str
    client_id: str
    secret: Secret | None = None
    scopes: tuple[str, ...] = (REQUIRED_SCOPE, REFRESH_SCOPE)


@dataclass(frozen=True, slots=True)
class Show:
    """A person has to open `address` and type `code` there; `direct` leads there with the code, when it is not empty."""

    address: str
    code: str
    direct: str = ""


@dataclass(frozen=True, slots=True)
class Provider:
    """What the provider says of itself. Empty addresses mean what it does not offer."""

    token: str
    device: str = ""
    authorization: str = ""
    secret_in_form: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """What was granted."""

    id_token: Secret
    refresh_token: Secret | None = None


Step = HttpRequest | Show | Wait


def discover(client: Client) -> Generator[Step, Reply, Provider]:
    """What the issuer offers (rule 1). Raises OauthError."""
    url = client.issuer.rstrip("/") + DISCOVERY_PATH
    status, found = yield from _asked(_request(url), "reading the provider's configuration")
    if status != 200:
        raise OauthError(
            f"{client.issuer} publishes no OpenID configuration: it answers {status}; check --oidc-issuer-url"
        )
    if found.get("issuer") != client.issuer:
        raise OauthError(f"what is at {client.issuer} calls itself by another name; check --oidc-issuer-url")
    methods = found.get("token_endpoint_auth_methods_supported")
    posted = isinstance(methods, list) and "client_secret_post" in methods and "client_secret_basic" not in methods
    token = _endpoint(found, "token_endpoint")
    if not token:
        raise OauthError(f"{client.issuer} names no token endpoint")
    return Provider(
        token, _endpoint(found, "device_authorization_endpoint"), _endpoint(found, "authorization_endpoint"), posted
    )


# ── device grant ─────────────────────────────────────────────────────────────────────────────────────────────────


def device_grant(client: Client, provider: Provider) -> Generator[Step, Reply, Tokens]:
    """Let a person log in with any browser anywhere (rule 3). Raises OauthError."""
    if not provider.device:
        raise OauthError(f"{client.issuer} offers no device grant (RFC 8628)")
    step = "asking for a device code"
    form = (("client_id", client.client_id), ("scope", " ".join(client.scopes)))
    status, found = yield from _asked(_posted(client, provider, provider.device, form), step)
    if status != 200:
        raise OauthError(f"{step}: the provider refuses: {_why(status, found)}")
    device_code, user_code = found.get("device_code"), found.get("user_code")
    address = found.get("verification_uri") or found.get(
        "verification_url"
    )  # the second is an older draft's, and Google's
    direct = found.get("verification_uri_complete") or ""
    if not isinstance(device_code, str) or not _showable(user_code, MAX_WORD) or not _web_address(address):
        raise OauthError(f"{step}: the provider's answer is none that RFC 8628 knows")
    yield Show(str(address), str(user_code), direct if _web_address(direct) else "")

    interval = min(_seconds(found.get("interval"), INTERVAL), MAX_INTERVAL)
    left = min(_seconds(found.get("expires_in"), MAX_CODE_LIFE), MAX_CODE_LIFE)
    question = (("grant_type", DEVICE_GRANT), ("device_code", device_code), ("client_id", client.client_id))
    ask = _posted(client, provider, provider.token, question)
    while left > 0:
        yield Wait(interval)
        left -= interval
        reply = yield ask
        if not isinstance(reply, HttpResponse):
            interval = min(interval * 2, MAX_INTERVAL)
            continue
        found = _object(reply, "asking for the token")
        error = found.get("error")
        if reply.status == 200:
            return _tokens(found)
        if error == "slow_down":
            interval = min(interval + INTERVAL, MAX_INTERVAL)
        elif error != "authorization_pending":
            raise OauthError(f"nobody was logged in: {_why(reply.status, found)}")
    raise OauthError("nobody was logged in: the code has expired")


# ── code grant with PKCE ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Attempt:
    """One log-in by redirect. `state` and `verifier` are from entropy: 43 characters of base64url each."""

    redirect: str
    state: str
    verifier: Secret

    @property
    def challenge(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.reveal()).digest()).rstrip(b"=").decode()


def attempt(redirect: str, entropy: bytes) -> Attempt:
    """`entropy`: 64 bytes."""
    texts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (entropy[:32], entropy[32:64])]
    return Attempt(redirect, texts[0], Secret(texts[1]))


def authorization_url(client: Client, provider: Provider, made: Attempt) -> str:
    """Where a browser begins. Raises OauthError."""
    if not provider.authorization:
        raise OauthError(f"{client.issuer} offers no log-in by browser")
    query = {
        "response_type": "code",
        "client_id": client.client_id,
        "redirect_uri": made.redirect,
        "scope": " ".join(client.scopes),
        "state": made.state,
        "code_challenge": made.challenge,
        "code_challenge_method": "S256",
    }
    return f"{provider.authorization}{'&' if urlsplit(provider.authorization).query else '?'}{urlencode(query)}"


def read_redirect(made: Attempt, target: str) -> Secret | None:
    """The code in the request target that the browser came back with; None when it is no answer to this attempt.

    Raises OauthError when the provider says in it that nobody was logged in.
    """
    try:
        parts = urlsplit(target)
        query = parse_qs(parts.query, max_num_fields=20)
    except ValueError:
        return None
    if parts.path != urlsplit(made.redirect).path:
        return None
    state, code, error = (query.get(key, [""])[0] for key in ("state", "code", "error"))
    if not hmac.compare_digest(state.encode("utf-8", "surrogatepass"), made.state.encode()):
        return None
    if error:
        raise OauthError(f"nobody was logged in: {_why(0, {'error': error})}")
    return Secret(code) if code and code.isascii() else None


def code_grant(client: Client, provider: Provider, made: Attempt, code: Secret) -> Generator[Step, Reply, Tokens]:
    """The tokens for the code (rule 4). Raises OauthError."""
    form = (
        ("grant_type", "authorization_code"),
        ("code", code.reveal().decode()),
        ("redirect_uri", made.redirect),
        ("code_verifier", made.verifier.reveal().decode()),
        ("client_id", client.client_id),
    )
    status, found = yield from _asked(_posted(client, provider, provider.token, form), "redeeming the code")
    if status != 200:
        raise OauthError(f"nobody was logged in: {_why(status, found)}")
    return _tokens(found)


# ── refreshing ───────────────────────────────────────────────────────────────────────────────────────────────────


def refresh(client: Client, provider: Provider, token: Secret) -> Generator[Step, Reply, Tokens]:
    """New tokens without a person. Raises GrantEndedError when a person is needed, and OauthError."""
    form = (
        ("grant_type", "refresh_token"),
        ("refresh_token", token.reveal().decode()),
        ("client_id", client.client_id),
    )
    status, found = yield from _asked(_posted(client, provider, provider.token, form), "refreshing the log-in")
    if status != 200:
        ended = found.get("error") in ("invalid_grant", "interaction_required", "login_required", "consent_required")
        raise (GrantEndedError if ended else OauthError)(f"the log-in is not refreshed: {_why(status, found)}")
    return _tokens(found)


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _asked(ask: HttpRequest, step: str) -> Generator[Step, Reply, tuple[int, Mapping[str, Any]]]:
    reply = yield ask
    if not isinstance(reply, HttpResponse):
        why = reply.message if reply else "nothing came back"
        where = urlsplit(ask.url).netloc
        if reply and reply.kind == CERTIFICATE:
            hint = "name the CA that signed it with --oidc-ca-file"
            raise OauthError(f"{step}: the certificate of {where} does not verify ({why}); {hint}")
        raise OauthError(f"{step}: {where} does not answer ({why})")
    return reply.status, _object(reply, step)


def _object(reply: HttpResponse, step: str) -> Mapping[str, Any]:
    try:
        found = json.loads(reply.body) if len(reply.body) <= MAX_BODY else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if reply.status == 200:
        raise OauthError(f"{step}: the provider's answer is not a JSON object")
    return {}


def _request(url: str, form: Sequence[tuple[str, str]] | None = None, authorization: str = "") -> HttpRequest:
    """Return a GET, or a POST of `form`."""
    headers = [("Accept", "application/json")]
    body = None
    if form is not None:
        body = urlencode(form).encode()
        headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    if authorization:
        headers.append(("Authorization", authorization))
    method = "GET" if body is None else "POST"
    return HttpRequest(PROVIDER, method, url, tuple(headers), body, TIMEOUT, MAX_BODY)


def _posted(client: Client, provider: Provider, url: str, form: Sequence[tuple[str, str]]) -> HttpRequest:
    """Return a POST of `form` with the client's secret (rule 2)."""
    if client.secret is None:
        return _request(url, form)
    secret = client.secret.reveal().decode()
    if provider.secret_in_form:
        return _request(url, (*form, ("client_secret", secret)))
    basic = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
    return _request(url, form, "Basic " + base64.b64encode(basic.encode()).decode())


def _tokens(found: Mapping[str, Any]) -> Tokens:
    id_token, refresh_token = found.get("id_token"), found.get("refresh_token")
    if not _token(id_token):
        raise OauthError("the provider gave no ID token; is openid among the scopes, and is this client allowed it?")
    return Tokens(Secret(str(id_token)), Secret(str(refresh_token)) if _token(refresh_token) else None)


def _token(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and value.isascii() and value.isprintable()


def _endpoint(found: Mapping[str, Any], key: str) -> str:
    value = found.get(key)
    if value is None:
        return ""
    if not _web_address(value):
        raise OauthError(f"the provider's {key} is not an https URL")
    return str(value)


def _web_address(value: Any) -> bool:
    if not _showable(value, MAX_SHOWN):
        return False
    try:
        parts = urlsplit(value)
        return parts.scheme == "https" and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def _showable(value: Any, most: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most and value.isascii() and value.isprintable()


def _seconds(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _why(status: int, found: Mapping[str, Any]) -> str:
    """The provider's code word, when it is one."""
    error = found.get("error")
    if _showable(error, MAX_WORD) and str(error).replace("_", "").isalnum():
        return str(error)
    return f"status {status}" if status else "no reason that can be shown"
