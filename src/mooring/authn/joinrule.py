"""Identity tokens of joining machines: a join rule names their issuer, their audience and their claims.

Rules kept here (docs/join-by-identity-token.md):
1. A bearer token whose issuer and audience no rule names is not mine. So one issuer may serve people, by the authenticator `oidc`,
   and machines. The issuer is read unverified for this only.
2. Checks that need no key come first, then the signature, then the claims: no expression sees what nobody signed. The checks are
   those of ID tokens (`mooring.authn.oidc.authenticator`).
3. The rules come from the view, at each request: one that was changed or deleted counts at once. The first that fits, by its name,
   lets the machine in. One that cannot be read lets nobody in.
4. Keys come from the rule itself, or are fetched when a token needs them: before the first one, after their life, and when no known
   key verifies a token, at most once in a while. Keys that are known stay in use while the issuer is away, for a bounded time.
5. The user is `system:joinrule:<rule>` with the groups of a bootstrap token. Its attributes say what the gates judge again when a
   certificate is requested, approved and signed (`mooring.trust.joinrule.JoinIdentity`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from mooring.api.mooring.joinrule import PLURAL
from mooring.api.view import View, ViewFollower, Views
from mooring.apimachinery.schema import Obj
from mooring.authn.cel import CLAIMS, TEXT, TRUTH, CelError, CelFailedError, Expression, compile_expression
from mooring.authn.claims import ClaimsRefusedError
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.oidc.authenticator import (
    KEYS_NOT_FETCHED,
    MAX_HEADER,
    MAX_TOKEN,
    NOT_READY,
    REFRESH_SECONDS,
    Expected,
    IssuerConfig,
    JwtIssuer,
    Published,
    check,
    discover,
)
from mooring.authn.oidc.settings import SIGNING_ALGORITHMS
from mooring.authn.reasons import WRONG_AUDIENCE, Code
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import MAX_REMEMBERED, VerifiedTokens
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import BOOTSTRAPPERS, JOIN_RULE_PREFIX, UserInfo
from mooring.pki.errors import TokenRefusedError
from mooring.pki.jwt.token import Claims, audiences, claimed_issuer, decode_unverified
from mooring.trust.bootstraptoken.token import DEFAULT_GROUPS
from mooring.trust.bootstraptoken.tokensecret import NETWORK_NOT_ALLOWED
from mooring.trust.httpexchange import Exchange
from mooring.trust.joinrule import (
    AUTHENTICATOR,
    MAX_TEXT,
    JoinIdentity,
    JoinRule,
    JoinRuleError,
    checked_name,
    fits,
    node_name_from,
    read_rule,
    unique_value,
    use_of,
)
from mooring.trust.oidc.discovery import ProviderError

CLAIMS_NOT_ALLOWED = Code("claims-not-allowed")
RULE_ENDED = Code("join-rule-ended")

KUBE_SYSTEM = "kube-system"
SHOWN_RULES = 3
"""Rules whose reasons a detail has."""
_FOR_EVER = timedelta(days=36_500)
_NOT_MINE = NotMine()
_NO_KEY = b"no known key"


_Place = tuple[str, str, bytes, bytes]
"""Issuer, URL of its discovery document, CAs, and the digest of keys that the rule holds."""


def _place(rule: JoinRule) -> _Place:
    return rule.issuer, rule.discovery_url, rule.ca_pem, rule.keys.digest if rule.keys is not None else b""


@dataclass(frozen=True, slots=True)
class _Known:
    """The verdict about a token whose signature was verified. `table` and `changes` are those that it follows from."""

    rule: JoinRule
    user: UserInfo
    issuer: JwtIssuer
    table: int
    changes: int


@dataclass(frozen=True, slots=True)
class CompiledJoinRule:
    """A rule with its compiled expressions."""

    rule: JoinRule
    conditions: tuple[Expression, ...]
    node_name: Expression | None


def compile_rule(rule: JoinRule) -> CompiledJoinRule:
    """Return the rule with its expressions. Raises CelError."""
    conditions = tuple(compile_expression(text, CLAIMS, TRUTH) for text in rule.expressions)
    named = rule.node_name_expression
    return CompiledJoinRule(rule, conditions, compile_expression(named, CLAIMS, TEXT) if named else None)


def identify(compiled: CompiledJoinRule, claims: Claims, expires: datetime) -> JoinIdentity:
    """Return what a rule makes of the claims of a verified token. Raises JoinRuleError for claims that do not fit."""
    rule = compiled.rule
    for condition in rule.conditions:
        if not condition.expression and not fits(condition, claims):
            raise JoinRuleError(f"the claim {condition.claim} does not fit")
    try:
        for expression in compiled.conditions:
            if expression.evaluate(claims) is not True:
                raise JoinRuleError(f"{expression.text} is false")
        named = compiled.node_name.evaluate(claims) if compiled.node_name is not None else ""
    except CelFailedError as error:
        raise JoinRuleError(str(error)) from None
    if not isinstance(named, str):
        raise JoinRuleError("the expression of the node's name gives no text")
    name = checked_name(named) if compiled.node_name is not None else ""
    subject = claims.get("sub")
    return JoinIdentity(
        rule=rule.name,
        digest=rule.digest,
        issuer=rule.issuer,
        subject=subject[:MAX_TEXT] if isinstance(subject, str) else "",
        use=use_of(rule.issuer, unique_value(rule.unique_claim, claims)),
        node_name=node_name_from(rule.node_name, claims) if rule.node_name else name,
        expires=expires,
    )


def user_of(identity: JoinIdentity) -> UserInfo:
    """Return the user that the holder of a token is."""
    groups = tuple(sorted({BOOTSTRAPPERS, *DEFAULT_GROUPS}))
    return UserInfo(JOIN_RULE_PREFIX + identity.rule, groups=groups, extra=identity.extra())


class JoinRules:
    """The rules of a view, by issuer. `table` grows with each change of them; `problems` are those of rules that let nobody in."""

    def __init__(self) -> None:
        self.table = 0
        self.problems: dict[str, str] = {}
        self._follower = ViewFollower()
        self._rules: dict[str, CompiledJoinRule] = {}
        self._by_issuer: dict[str, list[CompiledJoinRule]] = {}

    @property
    def all(self) -> Iterator[JoinRule]:
        """Every rule that can be read."""
        return (one.rule for one in self._rules.values())

    def of(self, issuer: str, view: View) -> Sequence[CompiledJoinRule]:
        """Return the rules of an issuer, by their names."""
        changes = self._follower.changes(view)
        if changes is not None:
            starts_over, objects = changes
            if starts_over:
                self._rules, self.problems = {}, {}
            for (_, name), obj in objects:
                self._take(name, obj)
            self._by_issuer = {}
            for name in sorted(self._rules):
                self._by_issuer.setdefault(self._rules[name].rule.issuer, []).append(self._rules[name])
        return self._by_issuer.get(issuer, ())

    def _take(self, name: str, obj: Any) -> None:
        before = self._rules.get(name)
        self.problems.pop(name, None)
        if obj is None or obj["metadata"].get("deletionTimestamp"):
            self._rules.pop(name, None)
            self.table += 1
            return
        try:
            rule = read_rule(obj)
            # A use of the rule changes its status alone.
            if before is None or before.rule != rule:
                self._rules[name] = compile_rule(rule)
                self.table += 1
        except (JoinRuleError, CelError) as error:
            self._rules.pop(name, None)
            self.problems[name] = str(error)
            self.table += 1


class JoinRuleAuthenticator:
    """Judges bearers that are JWTs of an issuer that a join rule names, for its audience."""

    name = AUTHENTICATOR
    judges = SECRET

    def __init__(
        self,
        target_for: Callable[[str, bytes], str],
        changed: Callable[[], None] = lambda: None,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        """`target_for` returns the name of the target for a URL and its CAs, or raises ConfigError for CAs that cannot be used.

        `changed` is called after a change of keys.
        """
        self.rules = JoinRules()
        self._target_for = target_for
        self._changed = changed
        self._issuers: dict[_Place, JwtIssuer] = {}
        self._table = 0
        self._verified: VerifiedTokens[_Known] = VerifiedTokens(max_remembered)

    @property
    def issuers(self) -> Sequence[JwtIssuer]:
        """Issuers whose keys are in use, or were requested."""
        return tuple(self._issuers.values())

    def unready(self) -> list[Obj]:
        """Return the issuers of rules that did not give their keys, each with the reason and the end of the known keys' use."""
        used = set(map(_place, self.rules.all))
        return [
            {
                "issuer": issuer.config.url,
                "problem": issuer.problem,
                "keysKnownUntil": rfc3339(issuer.known_until) if issuer.known_until is not None else "",
            }
            for place, issuer in self._issuers.items()
            if issuer.problem and place in used
        ]

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        if credentials.bearer is None:
            return _NOT_MINE
        raw = credentials.bearer.reveal()
        text = raw.decode("utf-8", "surrogateescape")
        named = self.rules.of(claimed_issuer(text), views[PLURAL]) if "." in text else ()
        if not named:
            return _NOT_MINE
        known, basis = self._verified.get(raw, now), _NO_KEY
        if known is not None and (known.table, known.changes) == (self.rules.table, known.issuer.changes):
            verdict = _judge_limits(known.rule, known.user, credentials, now)
            if isinstance(verdict, Accepted):
                if not known.issuer.is_stale(now):
                    return verdict
                # After their life the keys are fetched again, because one may have been withdrawn. Until then a running watch of
                # the machine goes on: the keys that are known have verified its token.
                basis = verdict.basis
        try:
            header, claims = decode_unverified(text, MAX_HEADER, MAX_TOKEN)
            wanted = [(one, stated) for one in named if (stated := _audience(one.rule, claims, views))]
            if not wanted:
                return NotMine(WRONG_AUDIENCE)
            expires = check(header, claims, Expected(tuple(stated for _, stated in wanted), SIGNING_ALGORITHMS), now)
            first = self._judge(raw, header, claims, [one for one, _ in wanted], expires, credentials, now)
            return replace(first, basis=basis) if isinstance(first, Deferred) else first
        except (TokenRefusedError, ClaimsRefusedError) as error:
            return Rejected(error.code, str(error))

    def _judge(
        self,
        raw: bytes,
        header: dict[str, Any],
        claims: Claims,
        rules: Sequence[CompiledJoinRule],
        expires: datetime,
        credentials: Credentials,
        now: datetime,
    ) -> FirstVerdict:
        """Return the verdict of the first rule that fits. Raises TokenRefusedError where no key of an issuer verifies the token."""
        refusals: list[Rejected] = []
        verified: dict[JwtIssuer, Deferred | Rejected | None] = {}
        first: Deferred | Rejected | None = None
        for one in rules:
            try:
                issuer = self._issuer(one.rule, now)
            except ConfigError as error:
                # OpenSSL takes less than the validation of a rule. The next rule may have another CA.
                refusals.append(Rejected(NOT_READY, f"join rule {one.rule.name}: {error}"))
                continue
            if issuer not in verified:
                verified[issuer] = self._verify(issuer, raw.decode("utf-8", "surrogateescape"), header, now)
            if verified[issuer] is not None:
                # Another rule may have other keys for this issuer.
                first = first or verified[issuer]
                continue
            try:
                identity = identify(one, claims, expires)
            except JoinRuleError as error:
                refusals.append(Rejected(CLAIMS_NOT_ALLOWED, f"join rule {one.rule.name}: {error}"))
                continue
            user = user_of(identity)
            verdict = _judge_limits(one.rule, user, credentials, now)
            if isinstance(verdict, Accepted):
                self._verified.put(raw, _Known(one.rule, user, issuer, self.rules.table, issuer.changes), now, expires)
                return verdict
            refusals.append(verdict)
        return first or Rejected(refusals[-1].reason, "; ".join(one.detail for one in refusals[-SHOWN_RULES:]))

    def _issuer(self, rule: JoinRule, now: datetime) -> JwtIssuer:
        """Return the keys of a rule's issuer, as the rule finds them."""
        if self._table != self.rules.table:
            self._table = self.rules.table
            used = set(map(_place, self.rules.all))
            self._issuers = {place: issuer for place, issuer in self._issuers.items() if place in used}
        place = _place(rule)
        issuer = self._issuers.get(place)
        if issuer is None:
            config = IssuerConfig(url=rule.issuer, audiences=(), discovery_url=rule.discovery_url, ca_pem=rule.ca_pem)
            target = self._target_for(rule.issuer, rule.ca_pem) if rule.keys is None else ""
            issuer = self._issuers[place] = JwtIssuer(config, target, self._changed)
            if rule.keys is not None:
                issuer.learn(Published(rule.keys, "", _FOR_EVER), now)
        return issuer

    def _verify(
        self, issuer: JwtIssuer, text: str, header: Mapping[str, Any], now: datetime
    ) -> Deferred | Rejected | None:
        """Return None for a token that a known key verifies, else the fetch that may change that, or why not."""
        published = issuer.known(now)
        refusal = Rejected(NOT_READY, f"issuer {issuer.config.url}: {issuer.problem}")
        if published is not None and not (issuer.is_stale(now) and issuer.may_fetch(now)):
            try:
                published.keys.verify(text, header)
                return None
            except TokenRefusedError as error:
                refusal = Rejected(error.code, f"issuer {issuer.config.url}: {error}")
            if not published.jwks_uri:
                return refusal
        if not issuer.may_fetch(now):
            return refusal
        return Deferred(
            exchange=partial(_fetch, issuer),
            key=f"{issuer.config.url} {issuer.provider.target} {issuer.config.discovery_url}".encode(),
            deadline=REFRESH_SECONDS,
            # The token names this issuer and an audience of the rule, so it is not sent to other services.
            recognised=True,
        )


def _fetch(issuer: JwtIssuer, now: datetime) -> Exchange[Verdict | None]:
    """Fetch the keys of an issuer because of a token. None: judge the token again."""
    try:
        issuer.learn((yield from discover(issuer.provider)), now)
    except ProviderError as error:
        issuer.fail(str(error))
        if issuer.known(now) is None:
            return Rejected(KEYS_NOT_FETCHED, f"issuer {issuer.config.url}: {error}")
    finally:
        issuer.fetch_ended()
    return None


def _judge_limits(rule: JoinRule, user: UserInfo, credentials: Credentials, now: datetime) -> Accepted | Rejected:
    """Return the verdict about a token that fits a rule. Its limits are judged each time."""
    if rule.has_ended(now):
        return Rejected(RULE_ENDED, f"join rule {rule.name}: it has ended")
    if rule.restrictions.networks and not rule.restrictions.allows_address(credentials.source):
        allowed = ", ".join(map(str, rule.restrictions.networks))
        return Rejected(
            NETWORK_NOT_ALLOWED, f"join rule {rule.name}: used from {credentials.source}, and it is for {allowed}"
        )
    return Accepted(user, basis=rule.digest.encode())


def _audience(rule: JoinRule, claims: Claims, views: Views) -> str:
    """Return the audience of a rule that a token has; "" for none. By default it is the id of the cluster."""
    wanted: Iterator[str] | tuple[str, ...] = rule.audiences
    if not wanted:
        namespace = views["namespaces"].get(KUBE_SYSTEM)
        wanted = (str(namespace["metadata"].get("uid", "")),) if namespace is not None else ()
    stated = audiences(claims)
    return next((one for one in wanted if one and one in stated), "")
