"""Agent tokens of a cluster: what a rotation leaves of them, their file, and what the fingerprint of the keys has of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509.authority import self_signed_ca
from mooring.secret import Secret
from mooring.trust.k3s.acceptedtokens import MAX_FORMER, FormerToken, digest
from mooring.trust.sharedkeys.keyset import SharedKeySet
from mooring.trust.sharedkeys.servertoken import (
    NAME,
    AgentRotationRefusedError,
    AgentTerm,
    AgentTokens,
    decode_agent_tokens,
    encode_agent_tokens,
    public_part,
    rotated,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
HOUR = timedelta(hours=1)
OLD, NEW, THIRD, SERVER = (Secret(text * 16) for text in ("o", "n", "t", "s"))


def term(name: str, token: Secret, created: int = 0, until: int = 0) -> AgentTerm:
    return AgentTerm(name, digest(token), created, until)


FIRST = term("new", NEW, SECONDS)

CASES: dict[str, tuple[list[AgentTerm], timedelta, list[AgentTerm]]] = {
    "the former token gets an end": ([term("a", OLD, 5)], HOUR, [FIRST, term("a", OLD, 5, SECONDS + 3600)]),
    "an end that was set is not moved back": (
        [term("a", OLD, 5), term("b", THIRD, 4, SECONDS + 60)],
        HOUR,
        [FIRST, term("a", OLD, 5, SECONDS + 3600), term("b", THIRD, 4, SECONDS + 60)],
    ),
    "without a grace every former token ends now": (
        [term("a", OLD, 5), term("b", THIRD, 4, SECONDS + 60)],
        timedelta(),
        [FIRST, term("a", OLD, 5, SECONDS), term("b", THIRD, 4, SECONDS)],
    ),
    "a token that has ended keeps its end": (
        [term("a", OLD, 5), term("b", THIRD, 4, SECONDS - 60)],
        HOUR,
        [FIRST, term("a", OLD, 5, SECONDS + 3600), term("b", THIRD, 4, SECONDS - 60)],
    ),
    "the first token of all": ([], HOUR, [FIRST]),
}


@pytest.mark.parametrize(("before", "grace", "after"), CASES.values(), ids=CASES)
def test_tokens_after_a_rotation(before: list[AgentTerm], grace: timedelta, after: list[AgentTerm]) -> None:
    found = rotated(before, NEW, "new", [digest(SERVER)], grace, NOW)
    assert (found.token, list(found.terms)) == (NEW, after)
    assert found.former == tuple(FormerToken(one.sha256, datetime.fromtimestamp(one.until, UTC)) for one in after[1:])
    assert decode_agent_tokens(encode_agent_tokens(found).reveal()) == found


@pytest.mark.parametrize(
    ("before", "new", "reason"),
    [
        ([term("a", NEW)], NEW, "the present one"),
        ([term("a", OLD), term("b", NEW, 0, SECONDS - 5)], NEW, "one that was replaced"),
        ([term("a", OLD)], SERVER, "is a server token"),
    ],
    ids=["present", "former and over", "a server token"],
)
def test_a_new_token_that_is_known_is_refused(before: list[AgentTerm], new: Secret, reason: str) -> None:
    with pytest.raises(AgentRotationRefusedError, match=reason) as raised:
        rotated(before, new, "new", [digest(SERVER)], HOUR, NOW)
    assert new.reveal().decode() not in str(raised.value)


def test_no_former_token_that_works_is_dropped_and_those_that_are_over_are() -> None:
    former = [term(f"{n}", Secret(f"token-number-{n:04}"), 1, SECONDS + 1 + n) for n in range(MAX_FORMER)]
    with pytest.raises(AgentRotationRefusedError, match="16 former agent tokens work already"):
        rotated([term("a", OLD), *former], NEW, "new", [], HOUR, NOW)
    assert len(rotated(former, NEW, "new", [], HOUR, NOW).terms) == MAX_FORMER + 1
    over = [replace(one, until=SECONDS - n) for n, one in enumerate(former)]
    kept = rotated([term("a", OLD), *over], NEW, "new", [], HOUR, NOW).terms
    assert [one.id for one in kept] == ["new", "a", *(one.id for one in over[:-1])]


def test_a_token_shows_in_no_repr_and_a_former_one_not_in_the_file() -> None:
    tokens = rotated([term("a", OLD)], NEW, "new", [], HOUR, NOW)
    for secret in (OLD, NEW):
        assert secret.reveal().decode() not in repr(tokens)
        assert repr(digest(secret)) not in repr(tokens)
    assert OLD.reveal() not in encode_agent_tokens(tokens).reveal()


def test_the_fingerprint_has_nothing_that_tests_a_guess_of_a_token() -> None:
    terms = (term("new", NEW, 7), term("a", OLD, 3, 9))
    public = public_part(encode_agent_tokens(AgentTokens(NEW, terms)).reveal())
    assert json.loads(public) == [["new", 7, 0], ["a", 3, 9]]


def test_a_rotation_changes_the_fingerprint_of_the_keys_and_another_token_alone_does_not() -> None:
    key = generate_key()
    ca = self_signed_ca(key, "k", NOW, 1).certificate_pem
    keys = SharedKeySet.of({"ca.crt": Secret(ca), "ca.key": Secret(private_key_pem(key))})
    first, second = (
        keys.with_file(NAME, encode_agent_tokens(AgentTokens(token, (term("new", token, 7),)))) for token in (NEW, OLD)
    )
    assert first.fingerprint == second.fingerprint != keys.fingerprint
    later = rotated([term("new", NEW, 7)], THIRD, "later", [], HOUR, NOW)
    assert first.with_file(NAME, encode_agent_tokens(later)).fingerprint != first.fingerprint
    assert first.with_file(NAME, None) == keys
    with pytest.raises(ConfigError, match=r"^agent-tokens\.json: "):
        keys.with_file(NAME, Secret(b"{}"))


GOOD: dict[str, Any] = json.loads(
    encode_agent_tokens(AgentTokens(NEW, (term("new", NEW, 7), term("a", OLD, 3, 9)))).reveal()
)


def changed(edit: Callable[[dict[str, Any]], object]) -> bytes:
    found = json.loads(json.dumps(GOOD))
    edit(found)
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        changed(lambda one: one.update(later=1)),
        changed(lambda one: one.update(token="")),
        changed(lambda one: one.update(token="abcdef.0123456789abcdef")),
        changed(lambda one: one.update(token="another-token-than-that")),
        changed(lambda one: one.update(terms=[])),
        changed(lambda one: one["terms"].reverse()),
        changed(lambda one: one["terms"][1].update(until=0)),
        changed(lambda one: one["terms"][1].update(until=1 << 60)),
        changed(lambda one: one["terms"][1].update(sha256="zz")),
        changed(lambda one: one.update(terms=one["terms"] + one["terms"][1:] * MAX_FORMER)),
    ],
    ids=[
        "an empty file", "a list", "an unknown field", "no token", "a bootstrap token", "the digest of another token",
        "no terms", "a former token first", "two present tokens", "an end beyond all time", "no digest", "too many",
    ],
)  # fmt: skip
def test_a_damaged_file_is_a_clear_error_without_a_token(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^agent-tokens\.json: it has no agent tokens$"):
        decode_agent_tokens(data)
