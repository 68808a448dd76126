"""Bearer tokens from a file.

Rules kept here (docs/protocol/authentication.md#token-file; rows: `mooring.authn.userfile.rows`):
1. An empty token is skipped, and of two rows with one token the last counts; both cause warnings.
2. An unknown token is not mine: another authenticator may know it.
3. Tokens are kept as HMAC-SHA256 under a key of this process, so that memory holds no token and the time of a lookup reveals
   none. Known and unknown tokens cost the same: one HMAC and one comparison.
4. A changed file replaces all rows at once, or none when it is wrong.
5. The token names no audience. The groups of the file are used unchanged, `system:masters` too.
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
from mooring.authn.userfile.rows import rows, warn_of_form
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
    """Content of one version of the file, and warnings for its owner."""

    holders: Mapping[bytes, _Holder] = field(repr=False)
    warnings: tuple[str, ...]


class TokenFileAuthenticator:
    """Judges bearer tokens. `key`: KEY_BYTES of entropy. Without users until `replace`."""

    name = "token-file"
    judges = SECRET

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._holders: Mapping[bytes, _Holder] = {}

    def replace(self, data: bytes) -> tuple[str, ...]:
        """Use this content of the file and return warnings for its owner. After ConfigError nothing has changed."""
        table = self.read(data)
        self.take(table)
        return table.warnings

    def take(self, table: TokenTable) -> None:
        """Use content that `read` returned."""
        self._holders = table.holders

    def read(self, data: bytes) -> TokenTable:
        """Parse the content of a file. May run in a thread, because a large file takes a second. Raises ConfigError."""
        holders: dict[bytes, _Holder] = {}
        warnings = warn_of_form(data, "token")
        for row in rows(data, "token"):
            if row.warning:
                warnings.append(row.warning)
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
