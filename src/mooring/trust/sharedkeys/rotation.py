"""Rotation of the server token: the tokens that a row is sealed for, before and after.

Rules kept here (docs/adr/0054-rotation-of-the-server-token.md):
* The new token comes first and has no end. The one before it gets an end, which no later rotation moves back.
* Tokens whose end has passed are left out. Without a grace every former token is.
* A token that the row knows already is refused: its end could not be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.sharedkeys.envelope import MAX_WRAPS, TokenTerm

DEFAULT_GRACE = timedelta(hours=24)
"""Time for which the former token still works: a day of work to change what starts servers and joins machines."""
MAX_GRACE = timedelta(days=30)
"""A former token that works longer is a second server token that no list shows."""


class RotationRefusedError(ConfigError):
    """The new token, or the number of tokens, is not accepted."""


class KnownTokenError(RotationRefusedError):
    """The new token is the present one, or a former one."""


class TooManyTokensError(RotationRefusedError):
    """The most former tokens that a row may have work already."""


def check_grace(grace: timedelta) -> timedelta:
    """Return the grace. Raises ConfigError for one that is negative or too long."""
    if not timedelta() <= grace <= MAX_GRACE:
        raise ConfigError(f"the grace of the former token is 0 to {MAX_GRACE.days * 24} hours")
    return grace


def rotated(terms: Sequence[TokenTerm], new: Secret, grace: timedelta, now: datetime) -> tuple[TokenTerm, ...]:
    """Return the tokens after a rotation. Raises RotationRefusedError."""
    if any(one.token == new for one in terms):
        raise KnownTokenError(
            "the new server token is the present one, or one that was replaced lately; give another one"
        )
    seconds = int(now.timestamp())
    end = seconds + int(grace.total_seconds())
    former = [replace(one, until=min(one.until or end, end)) for one in terms if end > seconds]
    after = (TokenTerm(new, seconds), *unexpired(former, now))
    if len(after) > MAX_WRAPS:
        raise TooManyTokensError(
            f"{MAX_WRAPS} server tokens open the keys of this cluster already: wait until the grace of one ends, or end them all "
            "with --grace 0"
        )
    return after


def unexpired(terms: Iterable[TokenTerm], now: datetime) -> tuple[TokenTerm, ...]:
    """Return the tokens that work now."""
    return tuple(one for one in terms if not 0 < one.until <= now.timestamp())
