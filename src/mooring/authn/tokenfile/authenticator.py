"""Bearer tokens from a file.

Rules kept here (docs/protocol/authentication.md#token-file; the rows: `mooring.authn.userfile.rows`):
1. An empty token is skipped, and of two rows with one token the last counts; both are said in warnings.
2. A token nobody has is not mine: another authenticator may know it.
3. Tokens are kept as HMAC-SHA256 under a key of this process. So the lookup tells nothing by the time it takes, which nobody can
   choose, and memory holds no token. Who has none costs what everybody costs: one HMAC and one comparison.
4. A changed file replaces all rows at once, or none when it is wrong.
5. The token names no audience. Nothing is added to what the file says: `system:masters` is the operator's to give.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mooring.api.view import Views
from mooring.authn.authenticator import SECRET
from mooring.authn.credentials import Credentials
from mooring.authn.userfile.rows import rows
from mooring.authn.verdict import Accepted, NotMine, Verdict
from mooring.identity import UserInfo
from mooring.secret import Secret

KEY_BYTES = 32
_NOT_MINE = NotMine()


@dataclass(frozen=True, slots=True)
class _Holder:
    digest: bytes
    user: UserInfo


_NOBODY = _Holder(bytes(hashlib.sha256().digest_size), UserInfo(""))


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What one version of the file says, and what its owner should know."""

    holders: Mapping[bytes, _Holder] = field(repr=False)
    warnings: tuple[str, ...]


class TokenFileAuthenticator:
    """Judges bearers. `key`: KEY_BYTES of entropy. Knows nobody until `replace`."""

    name = "token-file"
    judges = SECRET

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._holders: Mapping[bytes, _Holder] = {}

    def replace(self, data: bytes) -> tuple[str, ...]:
        """From now on the file says this; what its owner should know. Raises ConfigError, and nothing has changed."""
        table = self.read(data)
        self.take(table)
        return table.warnings

    def take(self, table: TokenTable) -> None:
        """From now on the file says what was `read`."""
        self._holders = table.holders

    def read(self, data: bytes) -> TokenTable:
        """What a file says. Changes nothing, and so may run in a thread: a large file takes a second. Raises ConfigError."""
        holders: dict[bytes, _Holder] = {}
        warnings = []
        for row in rows(data, "token"):
            if not row.secret:
                warnings.append(f"line {row.line}: the token is empty, the line is skipped")
                continue
            digest = self._digest(row.secret)
            if digest in holders:
                warnings.append(f"line {row.line}: the token is in a line before, too; this line counts")
            holders[digest] = _Holder(digest, row.user)
        return TokenTable(holders, tuple(warnings))

    def authenticate(self, credentials: Credentials, views: Views, now: datetime, audiences: Sequence[str]) -> Verdict:
        if credentials.bearer is None:
            return _NOT_MINE
        digest = self._digest(credentials.bearer)
        holder = self._holders.get(digest, _NOBODY)
        if not hmac.compare_digest(holder.digest, digest):
            return _NOT_MINE
        return Accepted(holder.user)

    def _digest(self, token: Secret) -> bytes:
        return hmac.digest(self._key, token.reveal(), "sha256")
