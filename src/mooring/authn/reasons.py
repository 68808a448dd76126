"""Reason codes: why a request was rejected, for the operator. Their meaning and remedy are the rows of reasons.toml.

Rules kept here:
* A code that one authenticator gives is a constant of its file, the others are here. All are made by `Code`, which is how a test
  finds them: each code has a row, and each row a code that is given (law 10). A custom authenticator may give codes of its own,
  which have no row.
* Sentences are for the operator: `mooring auth explain` and docs/reference/refusals.md show them. None of them reaches the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import get_data
from types import MappingProxyType
from typing import NewType

Code = NewType("Code", str)
"""A reason code, e.g. `unknown-ca`."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Meaning of a code, and what to do about it. `remedy` is empty when there is nothing to do."""

    meaning: str
    remedy: str = ""


@cache  # read when a person asks: the codes alone are needed to judge a request
def reasons() -> Mapping[str, Reason]:
    """Return every reason code that an authenticator of this server can give, but for those of custom authenticators."""
    import tomllib  # most programs judge, and explain nothing

    text = get_data(__name__, "reasons.toml")
    assert text is not None
    return MappingProxyType({code: Reason(**row) for code, row in tomllib.loads(text.decode()).items()})


NOTHING_OFFERED = Code("nothing-offered")
NOT_ASKED = Code("not-asked")
UNKNOWN_TOKEN = Code("unknown-token")
UNKNOWN_PASSWORD = Code("unknown-password")
UNKNOWN_CREDENTIAL = Code("unknown-credential")
WRONG_AUDIENCE = Code("wrong-audience")
UNDECIDED = Code("undecided")
TIMED_OUT = Code("timed-out")
FAILED = Code("failed")
TOO_BUSY = Code("too-busy")
GUESSING = Code("too-many-guesses")
UNKNOWN_CA = Code("unknown-ca")
MALFORMED_CLAIMS = Code("malformed-claims")
RESERVED_NAME = Code("reserved-name")
TOKEN_TOO_LONG = Code("token-too-long")
TOKEN_REPEATED = Code("token-repeated")
TOKEN_NOT_BASE64URL = Code("token-not-base64url")
TOKEN_NOT_UTF8 = Code("token-not-utf8")
NO_OTHER_SUBPROTOCOL = Code("no-other-subprotocol")
UNREADABLE = Code("object-unreadable")
NOT_UTF8 = Code("name-not-utf8")
