"""Rotation of the server token: which tokens a row is sealed for afterwards."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.sharedkeys.envelope import TokenTerm
from mooring.trust.sharedkeys.serverjoin import KnownTokenError, TooManyTokensError, check_grace, rotated, unexpired

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SECONDS = int(NOW.timestamp())
OLD, NEW, THIRD = Secret("o" * 16), Secret("n" * 16), Secret("t" * 16)
HOUR = timedelta(hours=1)

CASES = {
    "the former token gets an end": (
        [TokenTerm(OLD, 5)],
        HOUR,
        [TokenTerm(NEW, SECONDS), TokenTerm(OLD, 5, SECONDS + 3600)],
    ),
    "without a grace the new token is alone": (
        [TokenTerm(OLD, 5), TokenTerm(THIRD, 4, SECONDS + 60)],
        timedelta(),
        [TokenTerm(NEW, SECONDS)],
    ),
    "an end that was set is not moved back": (
        [TokenTerm(OLD, 5), TokenTerm(THIRD, 4, SECONDS + 60)],
        HOUR,
        [TokenTerm(NEW, SECONDS), TokenTerm(OLD, 5, SECONDS + 3600), TokenTerm(THIRD, 4, SECONDS + 60)],
    ),
    "a shorter grace ends earlier tokens, too": (
        [TokenTerm(OLD, 5), TokenTerm(THIRD, 4, SECONDS + 7200)],
        HOUR,
        [TokenTerm(NEW, SECONDS), TokenTerm(OLD, 5, SECONDS + 3600), TokenTerm(THIRD, 4, SECONDS + 3600)],
    ),
    "a token whose end has passed is left out": (
        [TokenTerm(OLD, 5), TokenTerm(THIRD, 4, SECONDS)],
        HOUR,
        [TokenTerm(NEW, SECONDS), TokenTerm(OLD, 5, SECONDS + 3600)],
    ),
    "the first token of all": ([], HOUR, [TokenTerm(NEW, SECONDS)]),
}


@pytest.mark.parametrize(("before", "grace", "after"), CASES.values(), ids=CASES)
def test_tokens_after_a_rotation(before: list[TokenTerm], grace: timedelta, after: list[TokenTerm]) -> None:
    assert list(rotated(before, NEW, grace, NOW)) == after


@pytest.mark.parametrize("known", [TokenTerm(NEW), TokenTerm(NEW, 5, SECONDS + 5)], ids=["present", "former"])
def test_a_token_that_the_row_knows_is_refused(known: TokenTerm) -> None:
    with pytest.raises(KnownTokenError, match="give another one"):
        rotated([TokenTerm(OLD), known], NEW, HOUR, NOW)


def test_a_row_has_no_more_tokens_than_a_reader_tries() -> None:
    before = [TokenTerm(Secret(f"token-number-{number:04}"), 1, SECONDS + 9 if number else 0) for number in range(4)]
    with pytest.raises(TooManyTokensError, match="4 server tokens open the keys of this cluster already"):
        rotated(before, NEW, HOUR, NOW)
    assert len(rotated(before[1:], NEW, HOUR, NOW)) == 4
    assert len(rotated(before, NEW, timedelta(), NOW)) == 1


def test_expired_tokens_are_left_out() -> None:
    present, future = TokenTerm(NEW), TokenTerm(OLD, 0, SECONDS + 1)
    assert unexpired([present, future, TokenTerm(THIRD, 0, SECONDS)], NOW) == (present, future)


@pytest.mark.parametrize("grace", [timedelta(), HOUR, timedelta(days=30)], ids=str)
def test_an_accepted_grace(grace: timedelta) -> None:
    assert check_grace(grace) == grace


@pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(days=31)], ids=str)
def test_a_refused_grace(grace: timedelta) -> None:
    with pytest.raises(ConfigError, match="0 to 720 hours"):
        check_grace(grace)
