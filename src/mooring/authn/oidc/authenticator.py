"""OpenID Connect: ID tokens of an issuer, whose keys and distributed claims are fetched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mooring.api.view import Views
from mooring.authn.claims import Claim, ClaimsRefusedError, Identification, identify
from mooring.authn.claims import Claims as MappedClaims
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.oidc.settings import SIGNING_ALGORITHMS
from mooring.authn.reasons import WRONG_AUDIENCE, Code
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import MAX_REMEMBERED, VerifiedTokens
from mooring.duration import format_duration
from mooring.errors import quoted
from mooring.identity import UserInfo
from mooring.pki.errors import KeyRefusedError, TokenRefusedError
from mooring.pki.jwt.keyset import KeySet, parse_key_set
from mooring.pki.jwt.token import (
    Claims,
    audiences,
    check_header,
    check_texts,
    claimed_issuer,
    decode_unverified,
    time_claim,
)
from mooring.secret import Secret
from mooring.trust.httpexchange import ACCEPT_JSON, Exchange, HttpRequest
from mooring.trust.httpsurl import https_url_problem
from mooring.trust.oidc.discovery import ProviderError, document_url, fetch_document, fetch_metadata

# Keys of an OpenID provider: discovery document, then key set (OpenID Connect Discovery 1.0 section 4).
#
# Rules kept here (docs/protocol/openid-connect.md):
# * The discovery document is fetched and checked by `mooring.trust.oidc.discovery`.
# * Keys come from its `jwks_uri`, which must be https, under the same trust.
# * Sizes and the number of keys are bounded. A key set with any fault is a `ProviderError`; no part of it is used.
# * Keys are used for as long as the response may be cached, within bounds. Then they are fetched again.

MAX_KEY_SET = 256 << 10
"""Bytes of a key set: thirty keys with their certificates have 60 kB."""
REQUEST_SECONDS = 5.0
"""Timeout of each of the two requests: half of the time that an authentication may wait."""
MIN_LIFE = timedelta(minutes=5)
"""Lower bound of the time for which keys are cached. An unknown key id is fetched at once."""
LIFE = timedelta(hours=1)
"""Time for which keys are cached when the provider does not say."""
MAX_LIFE = timedelta(hours=24)
"""Upper bound of the time for which keys are cached: a withdrawn key is refused after it at the latest."""
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?([0-9]{1,9})", re.ASCII | re.IGNORECASE)
_NO_CACHE = re.compile(r"\bno-(store|cache)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OidcProvider:
    """A provider. `target` is the name under which the driver knows its trust."""

    issuer: str
    target: str
    discovery_url: str = ""

    @property
    def document_url(self) -> str:
        return self.discovery_url or document_url(self.issuer)


@dataclass(frozen=True, slots=True)
class Published:
    """Keys of a provider, their URL, and the time for which they are cached."""

    keys: KeySet
    jwks_uri: str
    life: timedelta


def discover(provider: OidcProvider) -> Exchange[Published]:
    """Return the keys, found by the discovery document. Raises ProviderError."""
    document = yield from fetch_metadata(provider.target, provider.issuer, provider.document_url, REQUEST_SECONDS)
    uri = document.get("jwks_uri")
    if not isinstance(uri, str) or https_url_problem(uri, query=True):
        raise ProviderError("the discovery document has no https URL as jwks_uri")
    return (yield from renew(provider, uri))


def renew(provider: OidcProvider, jwks_uri: str) -> Exchange[Published]:
    """Return the keys at their known URL. Raises ProviderError."""
    request = HttpRequest(
        provider.target, url=jwks_uri, headers=ACCEPT_JSON, timeout=REQUEST_SECONDS, max_bytes=MAX_KEY_SET
    )
    response = yield from fetch_document("the key set", request)
    try:
        keys = parse_key_set(response.body)
    except KeyRefusedError as error:
        raise ProviderError(str(error)) from None
    return Published(keys, jwks_uri, _life(response.headers))


def _life(headers: Mapping[str, str]) -> timedelta:
    cache_control = headers.get("cache-control", "")
    max_age = _MAX_AGE.search(cache_control)
    life = timedelta(seconds=int(max_age[1])) if max_age else LIFE
    return MIN_LIFE if _NO_CACHE.search(cache_control) else max(MIN_LIFE, min(life, MAX_LIFE))


NOT_READY = Code("provider-not-ready")
KEYS_NOT_FETCHED = Code("keys-not-fetched")
DISTRIBUTED_CLAIM = Code("distributed-claim")


# Checks of an ID token that need no key: algorithm, audience and times.
#
# Rules kept here (docs/protocol/openid-connect.md#verification; OpenID Connect Core 1.0 section 3.1.3.7; the leeways are
# kube-apiserver's):
# * The algorithm must be allowed for the issuer. `none` and every HMAC never are, and are rejected before a key is used.
# * A header with critical extensions is rejected, and so is a `kid` that is not text.
# * The token must be for one of the configured audiences.
# * `exp` must be there and must not be past, without leeway. `nbf` may lie one minute ahead. `iat` must be a time, at any moment.
# * `aud` is a text or a list of texts; a list with anything else in it is rejected.

NOT_BEFORE_LEEWAY = timedelta(minutes=1)
MAX_HEADER = 4096
"""Bytes of a token's header: some issuers put their certificate there."""
MAX_TOKEN = 32 << 10
"""Bytes of a token: directories list hundreds of groups."""
_SECOND = timedelta(seconds=1)
_SHOWN_AUDIENCES, _MAX_AUDIENCE = 3, 64
"""Audiences of a token in a detail, and the characters of each."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_MAX_NUMBER = 32  # characters: seconds since 1970 have ten


@dataclass(frozen=True, slots=True)
class Expected:
    """Audiences and algorithms that the tokens of an issuer may have."""

    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]


def check(header: dict[str, Any], claims: Claims, expected: Expected, now: datetime) -> datetime:
    """Return the time at which the token expires. Raises TokenRefusedError or ClaimsRefusedError."""
    check_header(header, expected.algorithms)
    stated = audiences(claims)
    if not any(one in expected.audiences for one in stated):
        found = ", ".join(quoted(one[:_MAX_AUDIENCE]) for one in stated[:_SHOWN_AUDIENCES]) or "no audience"
        raise ClaimsRefusedError(WRONG_AUDIENCE, f"for {found}, wants audience {' or '.join(expected.audiences)}")
    expires, begins, _ = (_read_time(claims, name) for name in ("exp", "nbf", "iat"))
    check_texts(claims, "sub", "nonce", "at_hash")
    if expires is None:
        raise TokenRefusedError("missing-expiry", "the token has no expiry")
    if now > expires:
        raise TokenRefusedError("expired", f"expired {_whole_seconds(now - expires)} ago")
    if begins is not None and now + NOT_BEFORE_LEEWAY < begins:
        raise TokenRefusedError(
            "not-yet-valid", f"not valid for another {_whole_seconds(begins - now)}: compare the clocks"
        )
    return expires


def _read_time(claims: Claims, name: str) -> datetime | None:
    """Return the time in a claim. A number in quotes is a number to kube-apiserver, too, and null is none."""
    value = claims.get(name)
    if name == "iat" and value is None and name in claims:
        raise TokenRefusedError("malformed", "the token's iat is not a number of seconds")
    if isinstance(value, str) and len(value) <= _MAX_NUMBER and _NUMBER.fullmatch(value):
        claims = {name: float(value)}
    return time_claim(claims, name)


def _whole_seconds(duration: timedelta) -> str:
    """To the second, rounded up."""
    return format_duration(-(-duration // _SECOND) * _SECOND)


# One issuer of tokens: its configuration and the keys that it published.
#
# Rules kept here (docs/protocol/openid-connect.md):
# * Until its keys were fetched once, every token of the issuer is rejected as `provider-not-ready`.
# * Keys stay in use while the provider cannot be reached, for KEEP beyond their life.
# * A signature that no known key verifies makes the server fetch the keys again, because they may have been rotated: at most once
#   in HOLD for an issuer, however many tokens arrive. Requests during the fetch wait for its result; later ones are rejected.

KEEP = timedelta(hours=24)
"""ID tokens rarely live longer: an outage locks no user out, and a withdrawn key ends."""
HOLD = timedelta(seconds=10)
"""Longer than a fetch may take (REFRESH_SECONDS), so that every request that waited for it gets its result."""
REFRESH_SECONDS = 8.0


SUBJECT = Identification(username=Claim("sub"))
"""The subject is the user name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerConfig:
    """Configuration of an issuer. `ca_pem` empty: the machine's own roots verify it."""

    url: str
    audiences: tuple[str, ...]
    identification: Identification = SUBJECT
    discovery_url: str = ""
    ca_pem: bytes = b""
    algorithms: tuple[str, ...] = SIGNING_ALGORITHMS

    @property
    def expected(self) -> Expected:
        return Expected(self.audiences, self.algorithms)


class JwtIssuer:
    """One issuer in use. The runtime reports each fetch with `learn` or `fail`."""

    def __init__(self, config: IssuerConfig, target: str, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called after each change of the keys."""
        self.config = config
        self._changed = changed
        self.provider = OidcProvider(config.url, target, config.discovery_url)
        self.published: Published | None = None
        self.problem = "its keys have not been fetched yet"
        self.changes = 0
        """Number of changes of the keys. Verdicts from before the last change are not reused."""
        self._fetched_at: datetime | None = None
        self._fetch_began: datetime | None = None
        self._fetching = False

    def learn(self, published: Published, now: datetime) -> None:
        """Use these keys, fetched at `now`."""
        before, self.published = self.published, published
        self.problem = ""
        self._fetched_at = now
        if before is None or before.keys.digest != published.keys.digest:
            self.changes += 1
            self._changed()

    def fail(self, problem: str) -> None:
        """Note the reason of a failed fetch. The known keys stay in use."""
        self.problem = problem

    @property
    def known_until(self) -> datetime | None:
        """End of the time for which the published keys are in use; None where there are none."""
        if self.published is None or self._fetched_at is None:
            return None
        return self._fetched_at + self.published.life + KEEP

    def known(self, now: datetime) -> Published | None:
        """Return the published keys; None when they are too old or unknown."""
        until = self.known_until
        return None if until is None or now > until else self.published

    def is_stale(self, now: datetime) -> bool:
        """Return whether the life of the known keys has ended: they are to be fetched again."""
        return self.published is None or self._fetched_at is None or now - self._fetched_at > self.published.life

    def may_fetch(self, now: datetime) -> bool:
        """Return whether a token may make the server fetch the keys: a fetch is under way, or the last one is HOLD ago."""
        if not self._fetching and (self._fetch_began is None or not timedelta(0) <= now - self._fetch_began < HOLD):
            self._fetch_began = now
            self._fetching = True
        return self._fetching

    def fetch_ended(self) -> None:
        """Clear the mark of the fetch under way, whether it succeeded or failed."""
        self._fetching = False


# Distributed groups: a token names the service that holds them (OpenID Connect Core 1.0 section 5.6.2).
#
# Rules kept here (docs/protocol/openid-connect.md#verification):
# * Only the groups claim is looked for, and only when the token lacks it: `_claim_names` names a source, `_claim_sources` gives
#   its endpoint and perhaps an access token. A source without an endpoint is an aggregated one, and is ignored. Null and an empty
#   endpoint or access token are absent ones. A name of no source, or of one that is not there, rejects the token, as in go-oidc.
# * The source is read from tokens with a verified signature only, so that no other caller chooses a server to contact. The
#   endpoint must be https, and is reached under the trust of the issuer, with the access token as bearer token.
# * The response is a JWT of its own issuer, for one of the same audiences, and is verified like any other. Its keys are found
#   signer discovery, unless it is of the same issuer.
# * Any failure rejects the request: without its groups the user would escape the rules about them.


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """Service that holds the claim `name`."""

    name: str
    endpoint: str
    access_token: Secret | None = None


def source_of(name: str, claims: MappedClaims) -> ClaimSource | None:
    """Return the source of the claim; None when the claims hold it or name no source. Raises ClaimsRefusedError."""
    names, sources = claims.get("_claim_names"), claims.get("_claim_sources")
    if name in claims or names is None or (isinstance(names, dict) and name not in names):
        return None
    named = names[name] if isinstance(names, dict) else None
    if not isinstance(named, str) or not named:
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the token does not name the source of the claim {name} by a text")
    if not isinstance(sources, dict) or named not in sources:
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} is not among _claim_sources")
    source = sources[named]
    if not isinstance(source, dict | None):
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} is not an object")
    endpoint, token = ((source or {}).get(member) for member in ("endpoint", "access_token"))
    if endpoint in (None, ""):
        return None
    if not isinstance(endpoint, str) or https_url_problem(endpoint, query=True):
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} has no https URL as endpoint")
    if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the source of the claim {name} has an access token that is none")
    return ClaimSource(name, endpoint, Secret(token) if token else None)


def fetch(source: ClaimSource, issuer: JwtIssuer, now: datetime) -> Exchange[Any]:
    """Fetch the value of the claim. Raises ClaimsRefusedError."""
    try:
        return (yield from _fetch_verified(source, issuer, now))
    except (ProviderError, TokenRefusedError, ClaimsRefusedError) as error:
        raise ClaimsRefusedError(DISTRIBUTED_CLAIM, f"the claim {source.name}: {error}") from None


def _fetch_verified(source: ClaimSource, issuer: JwtIssuer, now: datetime) -> Exchange[Any]:
    token = source.access_token
    request = HttpRequest(
        issuer.provider.target,
        url=source.endpoint,
        headers=ACCEPT_JSON,
        timeout=REQUEST_SECONDS,
        max_bytes=MAX_TOKEN,
        authorization=None if token is None else Secret(b"Bearer " + token.reveal()),
    )
    response = yield from fetch_document("its source", request)
    text = response.body.decode("utf-8", "replace").strip()
    header, claims = decode_unverified(text, MAX_HEADER, MAX_TOKEN)
    check(header, claims, issuer.config.expected, now)
    signer = claims.get("iss")
    if not isinstance(signer, str) or https_url_problem(signer):
        raise TokenRefusedError("wrong-issuer", "the token of its source has no issuer that is an https URL")
    published = issuer.known(now) if signer == issuer.config.url else None
    if published is None:
        published = yield from discover(OidcProvider(signer, issuer.provider.target))
    published.keys.verify(text, header)
    if source.name not in claims:
        raise ProviderError("its source does not give it")
    return claims[source.name]


# ID tokens of OpenID Connect providers, and other signed tokens of issuers that the operator names.
#
# Rules kept here (docs/protocol/authentication.md#caching, docs/protocol/openid-connect.md#verification):
# 1. A bearer token that names no configured issuer is not mine. The issuer is read unverified for this only. A token that names
#    one is judged here in any form: without a signature, too long, with an unreadable header.
# 2. Checks without a key come first (`mooring.authn.oidc.authenticator`), then the signature, then the claims
#    (`mooring.authn.claims`).
# 3. A token of an issuer without known keys is rejected. A signature that no known key verifies makes the server fetch the keys,
#    once for all waiting requests and not again for a while (`mooring.authn.oidc.authenticator`). Then the token is judged again.
# 4. Distributed groups are fetched (`mooring.authn.oidc.authenticator`) and believed for TTL, as in kube-apiserver.
# 5. An accepted user is remembered by the SHA-256 of the token until the token expires, in a bounded table. A change of the
#    issuer's keys or of the configuration clears it, and so does a clock that went back.
# 6. What was accepted ends with the key that signed the token, once the issuer's keys are known without it, and with a change of
#    the configuration.
# 7. The user is valid for this server, as if the token named no audience: its audiences are the provider's names for its clients.

DISTRIBUTED_TTL = timedelta(seconds=10)
FETCH_SECONDS = 10.0
"""Seconds for a distributed claim: the source, and perhaps the discovery of its issuer."""
_ALIASES = {"https://accounts.google.com": "accounts.google.com"}
"""An issuer that does not write its own name in full in every token."""
_NOT_MINE = NotMine()
_NO_KEY = b"no known key"
"""Basis of a verdict about a signature that no known key verifies: that of no acceptance."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An accepted user, with the issuer and the number of changes of its keys."""

    user: UserInfo
    issuer: JwtIssuer
    changes: int


class OidcAuthenticator:
    """Judges bearers that are JWTs of a configured issuer."""

    name = "oidc"
    judges = SECRET

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._issuers: dict[str, JwtIssuer] = {}
        self._verified: VerifiedTokens[_Known] = VerifiedTokens(max_remembered)
        self._configurations = 0

    @property
    def issuers(self) -> tuple[JwtIssuer, ...]:
        return tuple(dict.fromkeys(self._issuers.values()))

    def replace(self, issuers: Iterable[JwtIssuer]) -> None:
        """Use these issuers and no others."""
        found = {issuer.config.url: issuer for issuer in issuers}
        self._issuers = found | {_ALIASES[url]: one for url, one in found.items() if url in _ALIASES}
        self._verified.clear()
        self._configurations += 1

    @property
    def _basis(self) -> bytes:
        return self._configurations.to_bytes(8)

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        if credentials.bearer is None or not self._issuers:
            return _NOT_MINE
        raw = credentials.bearer.reveal()
        known = self._verified.get(raw, now)
        if known is not None and known.changes == known.issuer.changes and known.issuer.known(now) is not None:
            return Accepted(known.user, basis=self._basis)
        text = raw.decode("utf-8", "surrogateescape")
        issuer = self._issuers.get(claimed_issuer(text))
        if issuer is None:
            return _NOT_MINE
        try:
            header, claims = decode_unverified(text, MAX_HEADER, MAX_TOKEN)
            return self._judge(issuer, text, header, claims, now, raw)
        except (TokenRefusedError, ClaimsRefusedError) as error:
            return Rejected(error.code, f"issuer {issuer.config.url}: {error}")

    def _judge(
        self,
        issuer: JwtIssuer,
        text: str,
        header: dict[str, Any],
        claims: Claims,
        now: datetime,
        raw: bytes,
    ) -> FirstVerdict:
        # First the checks that need no key: `none` and HMAC are rejected before a key is used.
        expires = check(header, claims, issuer.config.expected, now)
        if issuer.published is None:
            return Rejected(NOT_READY, f"issuer {issuer.config.url}: {issuer.problem}")
        try:
            published = issuer.known(now)
            # The provider was down for long, or this machine slept.
            if published is None:
                raise TokenRefusedError("unknown-key", "what it published last is too old to be believed")
            published.keys.verify(text, header)
        except TokenRefusedError:
            # The issuer may have published the key a moment ago, so the keys are fetched, at a limited rate: anyone can
            # send tokens with unknown keys.
            if not issuer.may_fetch(now):
                raise
            return Deferred(
                exchange=partial(_refetch_keys, issuer, issuer.published),
                key=issuer.config.url.encode(),
                deadline=REFRESH_SECONDS,
                # The token names this issuer, so it is not sent to other services.
                recognised=True,
                basis=_NO_KEY,
            )
        groups = issuer.config.identification.groups
        source = source_of(groups.name, claims) if isinstance(groups, Claim) else None
        if source is None:
            user = identify(claims, issuer.config.identification)
            self._remember(raw, user, issuer, now, expires)
            return Accepted(user, basis=self._basis)

        def found(verdict: Verdict, then: datetime) -> None:
            if isinstance(verdict, Accepted):
                # A distributed group may be withdrawn at any time, so this verdict is remembered for seconds only.
                self._remember(raw, verdict.user, issuer, then, min(expires, then + DISTRIBUTED_TTL))

        return Deferred(
            exchange=partial(_fetch_groups, issuer, claims, source, self._basis),
            key=hashlib.sha256(raw).digest(),
            deadline=FETCH_SECONDS,
            on_verdict=found,
            recognised=True,
            basis=self._basis,
        )

    def _remember(self, raw: bytes, user: UserInfo, issuer: JwtIssuer, now: datetime, until: datetime) -> None:
        # The configuration may have changed while the service was asked: a former issuer must not be remembered.
        if self._issuers.get(issuer.config.url) is issuer:
            self._verified.put(raw, _Known(user, issuer, issuer.changes), now, until)


def _refetch_keys(issuer: JwtIssuer, before: Published, now: datetime) -> Exchange[Verdict | None]:
    """Fetch the keys of an issuer because of a token. None: judge the token again."""
    try:
        issuer.learn((yield from renew(issuer.provider, before.jwks_uri)), now)
    except ProviderError as error:
        issuer.fail(str(error))
        return Rejected(KEYS_NOT_FETCHED, f"issuer {issuer.config.url}: {error}")
    finally:
        issuer.fetch_ended()
    return None


def _fetch_groups(
    issuer: JwtIssuer, claims: Claims, source: ClaimSource, basis: bytes, now: datetime
) -> Exchange[Verdict | None]:
    try:
        groups = yield from fetch(source, issuer, now)
        return Accepted(identify({**claims, source.name: groups}, issuer.config.identification), basis=basis)
    except ClaimsRefusedError as error:
        return Rejected(error.code, f"issuer {issuer.config.url}: {error}")
