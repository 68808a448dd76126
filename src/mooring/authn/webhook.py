"""The token webhook: a service that judges tokens by TokenReview."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import msgspec

from mooring.api.view import Views
from mooring.authn.credentials import SECRET, Credentials
from mooring.authn.reasons import TOKEN_TOO_LONG, WRONG_AUDIENCE, Code
from mooring.authn.verdict import Accepted, Deferred, FirstVerdict, NotMine, Rejected, Verdict
from mooring.authn.verdictcache import MAX_CACHE_TTL, VerdictCache
from mooring.errors import ConfigError, MooringError
from mooring.identity import UserInfo
from mooring.settings.declaration import DURATION, TEXT, Settings, duration_within, file_setting, setting
from mooring.trust.httpexchange import Exchange, HttpFailure, HttpRequest, HttpResponse, Wait

VERSIONS = ("v1beta1", "v1")


def _parse_version(text: str, key: str) -> str:
    if text not in VERSIONS:
        raise ConfigError(f'{key}: "{text}" is not known; give {" or ".join(VERSIONS)}')
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings(Settings):
    """Service that answers TokenReviews."""

    heading: ClassVar[str] = "Token webhook"

    authentication_token_webhook_config_file: str = file_setting("Kubeconfig of a service that answers TokenReviews.")
    authentication_token_webhook_version: str = setting(
        TEXT,
        default=VERSIONS[0],
        meaning=f"Version of the TokenReviews it is sent: {' or '.join(VERSIONS)}.",
        metavar="VERSION",
        parse=_parse_version,
    )
    authentication_token_webhook_cache_ttl: timedelta = setting(
        DURATION,
        default=timedelta(minutes=2),
        meaning="For how long its answers are remembered.",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for answers that would be remembered too long."""
        if self.authentication_token_webhook_config_file:
            duration_within(timedelta(0), MAX_CACHE_TTL)(
                self.authentication_token_webhook_cache_ttl, "authentication-token-webhook-cache-ttl"
            )


UNREACHABLE = Code("webhook-unreachable")
ERROR = Code("webhook-error")
BAD_ANSWER = Code("webhook-bad-answer")
REFUSED = Code("refused-by-webhook")
TOKEN_NOT_TEXT = Code("token-not-text")


# Bearer tokens that a service of the operator reviews: it receives a TokenReview over HTTPS and answers it.
#
# Rules kept here (docs/protocol/authentication.md#webhook, docs/protocol/authentication.md#caching):
# 1. Every bearer token that reaches the second stage is reviewed, unless it is too long or not text. The chain keeps back tokens
#    that another authenticator recognised and rejected.
# 2. The review carries the token and the audiences, in v1beta1 or v1 as configured. The answer must be of the same version. An
#    answer without kind and version is taken to be of that version, as in kube-apiserver.
# 3. A connection that broke, the statuses 500, 504 and 429, and any answer with Retry-After are tried again: STEPS times in all,
#    with growing pauses. Any other answer that is not a review is a rejection at once, and so is one with a value of a wrong
#    type.
# 4. `authenticated` needs a user name. Keys of extra in ASCII are put in lower case; two keys that become equal are a wrong
#    answer. With requested audiences, one of them must be among those of the answer; a webhook without audiences answers for
#    those of this server.
# 5. Not authenticated with an error text is a rejection. Without one it is not mine. A review in an answer of 4xx rejects,
#    whatever it says. Its error text, or the message of a Status, goes into the operator's record.
# 6. A decision of the webhook is remembered for TTL, a failure never; an error text counts as a failure. Rejections are
#    remembered apart, so that a storm of bad tokens evicts no good one.
# 7. Names are taken as they come, `system:masters` too: the operator who configures a webhook trusts it with every identity
#    (docs/threats/outside-services.md).

GROUP = "authentication.k8s.io"
TARGET = "webhook"
"""Target of every request: the webhook."""


STEPS = 5
FIRST_PAUSE = 0.5
GROWTH = 1.5
JITTER = 0.2
"""Pauses are up to a fifth longer or shorter, so that requests that failed together are not sent again together."""
MOST_PATIENCE = 10
"""Longest Retry-After in seconds: requests wait no longer."""
CALL_SECONDS = 10.0
DEADLINE = 30.0
"""Seconds for everything: what kube-apiserver gives all who wait for one token."""
MAX_TOKEN = 64 << 10
"""Bytes: a TokenReview can hold more than a header can, and no token has a tenth of it."""
MAX_ANSWER = 256 << 10
"""Bytes: the token comes back, and a user of 1 000 groups has 100 kB."""
MAX_TEXT = 256
"""Characters kept of an error text."""
PART = 6
"""Letters in a row that an error text must not have in common with the token."""
_RETRIED = (429, 500, 504)
_NOT_MINE = NotMine()
_HEADERS = (("content-type", "application/json"), ("accept", "application/json"))

T = TypeVar("T")
OnVerdict = Callable[[Verdict, datetime], None]


@dataclass(frozen=True, slots=True)
class Question:
    """One review and what its answer must fit. `implicit`: the audiences of a webhook that names none."""

    token: str
    wanted: tuple[str, ...]
    implicit: tuple[str, ...]
    version: str

    def body(self) -> bytes:
        """The TokenReview. Raises UnicodeEncodeError for what is not text."""
        spec: dict[str, Any] = {"token": self.token}
        if self.wanted:
            spec["audiences"] = self.wanted
        return msgspec.json.encode({"kind": "TokenReview", "apiVersion": f"{GROUP}/{self.version}", "spec": spec})


class WebhookAuthenticator:
    """Judges every bearer token in the second stage. `key`: entropy for the cache. `on_verdict` receives every verdict of the
    webhook.
    """

    name = "webhook"
    judges = SECRET

    def __init__(
        self, version: str, implicit: Sequence[str], ttl: timedelta, key: bytes, on_verdict: OnVerdict
    ) -> None:
        self._version = version
        self._implicit = tuple(implicit)
        self._ttl = ttl
        self._key = key
        self._on_verdict = on_verdict
        self._generation = 0
        self.forget()

    def forget(self) -> None:
        """Clear the remembered verdicts: another service answers now. Verdicts under way are neither remembered nor shared."""
        self._generation += 1
        self._accepted = VerdictCache(self._key, self._ttl)
        self._refused = VerdictCache(self._key, timedelta(0), self._ttl)

    def authenticate(
        self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]
    ) -> FirstVerdict:
        if credentials.bearer is None:
            return _NOT_MINE
        raw = credentials.bearer.reveal()
        if len(raw) > MAX_TOKEN:
            return NotMine(TOKEN_TOO_LONG)
        place = self._accepted.place(
            self._generation.to_bytes(8), raw, *(audience.encode("utf-8", "surrogatepass") for audience in audiences)
        )
        kept = self._accepted.get(place, now) or self._refused.get(place, now)
        if kept is not None:
            return kept
        try:
            question = Question(raw.decode(), tuple(audiences), self._implicit, self._version)
            body = question.body()
        except UnicodeError:
            return NotMine(TOKEN_NOT_TEXT)
        # Kept by reference: a verdict under way is not remembered after `forget`, which makes new caches.
        accepted, refused = self._accepted, self._refused

        def found(verdict: Verdict, then: datetime) -> None:
            self._on_verdict(verdict, then)
            if isinstance(verdict, Accepted):
                accepted.put(place, verdict, then)
            elif isinstance(verdict, NotMine) or verdict.reason == WRONG_AUDIENCE:
                refused.put(place, verdict, then)

        return Deferred(exchange=partial(_exchange, question, body), key=place, deadline=DEADLINE, on_verdict=found)


def _exchange(question: Question, body: bytes, now: datetime) -> Exchange[Verdict | None]:
    """Send the review, and again after failures that may pass (rule 3)."""
    pause, tries = FIRST_PAUSE, 1
    call = HttpRequest(TARGET, "POST", headers=_HEADERS, body=body, timeout=CALL_SECONDS, max_bytes=MAX_ANSWER)
    answer = yield call
    while tries < STEPS and (retry_after := _retry_after(answer)) is not None:
        yield Wait(max(pause, retry_after), JITTER)
        pause *= GROWTH
        tries += 1
        answer = yield call
    after = f" ({tries} times)" if tries > 1 else ""
    if not isinstance(answer, HttpResponse):
        return Rejected(UNREACHABLE, (answer.text if answer else "no answer") + after)
    if not 200 <= answer.status <= 206:
        return _judge_status(answer, question, after)
    try:
        return read_answer(answer.body, question)
    except _BadAnswerError as error:
        return Rejected(BAD_ANSWER, str(error))


def _retry_after(answer: HttpResponse | HttpFailure | None) -> float | None:
    """Return the least seconds after which the request is sent again; None when it is not."""
    if not isinstance(answer, HttpResponse):
        return 0 if answer is not None and answer.broken else None
    if answer.status < 400:
        return None
    header = answer.headers.get("retry-after", "")
    if not (header.isascii() and header.isdigit()):
        return 0 if answer.status in _RETRIED else None
    seconds = int(header[:6])
    return None if seconds > MOST_PATIENCE else seconds / (1 - JITTER)  # a pause may be this much shorter


def _judge_status(answer: HttpResponse, question: Question, after: str) -> Rejected:
    """Return the rejection for an answer without success. Some services send the review of a refused token with 401."""
    try:
        body = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    said: dict[str, Any] = body if isinstance(body, dict) else {}
    kind, status = said.get("kind"), said.get("status")
    review = status if kind == "TokenReview" and isinstance(status, dict) else None
    error = review.get("error") if review is not None else said.get("message") if kind == "Status" else None
    found = _redact(error, question.token) if isinstance(error, str) else ""
    if review is not None and 400 <= answer.status < 500 and review.get("authenticated") is not True:
        return Rejected(REFUSED, f"it answers {answer.status}{after} with a review: {found or 'without an error text'}")
    shown = f'; it says "{found}"' if found else ""
    return Rejected(ERROR, _status_error(answer.status) + after + shown)


def _status_error(status: int) -> str:
    if status in (401, 403):
        return f"it answers {status}: it does not let this server ask; look at the user in its kubeconfig"
    if 300 <= status < 400:
        return f"it answers {status}, and redirects are not followed"
    return f"it answers {status}"


class _BadAnswerError(MooringError):
    """The answer is not a TokenReview. The text does not repeat its content."""


def read_answer(body: bytes, question: Question) -> Verdict:
    """Return the verdict of this TokenReview. Raises _BadAnswerError."""
    try:
        review = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _BadAnswerError("it is not JSON") from None
    review = _check_type(review, dict, "the answer", "an object") or {}
    for field, wanted in (("kind", "TokenReview"), ("apiVersion", f"{GROUP}/{question.version}")):
        if (_check_type(review.get(field), str, field, "a text") or wanted) != wanted:
            raise _BadAnswerError(f"{field} is not {wanted}")
    status = _check_type(review.get("status"), dict, "status", "an object")
    if status is None:
        raise _BadAnswerError("it has no status")
    error = _check_type(status.get("error"), str, "status.error", "a text") or ""
    user = _check_type(status.get("user"), dict, "status.user", "an object") or {}
    audiences_named = _check_texts(status.get("audiences"), "status.audiences")
    if not _check_type(status.get("authenticated"), bool, "status.authenticated", "true or false"):
        return Rejected(REFUSED, _redact(error, question.token)) if error else _NOT_MINE
    found = _read_user(user)
    valid = tuple(audience for audience in question.wanted if audience in (audiences_named or question.implicit))
    if question.wanted and not valid:
        return Rejected(
            WRONG_AUDIENCE,
            _redact(f"good for {', '.join(audiences_named)}", question.token) if audiences_named else "it names none",
        )
    return Accepted(found, valid)


def _read_user(user: Mapping[str, Any]) -> UserInfo:
    name = _check_type(user.get("username"), str, "status.user.username", "a text")
    if not name:
        raise _BadAnswerError("status.user.username is missing")
    extra: dict[str, tuple[str, ...]] = {}
    for key, values in (_check_type(user.get("extra"), dict, "status.user.extra", "an object") or {}).items():
        extra[key] = _check_texts(values, "a value of status.user.extra")
    uid = _check_type(user.get("uid"), str, "status.user.uid", "a text") or ""
    groups = tuple(dict.fromkeys(_check_texts(user.get("groups"), "status.user.groups")))
    return UserInfo(name, uid, groups, MappingProxyType(extra))


def _check_type(value: Any, kind: type[T], what: str, wanted: str) -> T | None:
    """`value`, or None when it is absent or null."""
    if value is not None and not isinstance(value, kind):
        raise _BadAnswerError(f"{what} is not {wanted}")
    return value


def _check_texts(value: Any, what: str) -> tuple[str, ...]:
    values = ["" if one is None else one for one in _check_type(value, list, what, "a list") or []]
    if not all(isinstance(one, str) for one in values):
        raise _BadAnswerError(f"{what} is not a list of texts")
    return tuple(values)


def _redact(text: str, token: str) -> str:
    """Return a text that may stand in the operator's record: bounded, printable, and without parts of the token."""
    kept = text.replace(token, "[token]")[: 2 * MAX_TEXT]
    parts = (start for start in range(len(kept) - PART + 1) if kept[start : start + PART] in token)
    hidden = {place for start in parts for place in range(start, start + PART)}
    shown = ("*" if at in hidden else one if one.isprintable() else " " for at, one in enumerate(kept))
    kept = "".join(shown)
    return kept if len(kept) <= MAX_TEXT else kept[: MAX_TEXT - 1] + "…"
