"""k3s's join tokens: their grammar (K10), their damage, and the lines of files that hold one."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import (
    BootstrapToken,
    looks_like_token,
    missing_part,
    parse_token_id,
    unfilled_placeholder,
)
from mooring.trust.bootstraptoken.token import parse_token as parse_bootstrap_token

# Damage of a K10 token that k3s would read as a weaker credential: a password without a hash.
#
# With such a password the CA of whatever server answers is trusted, and the whole text is sent to it. A text is damaged when it has
# a whole token that is not at its beginning, when it has the hash of one and not its form, when it is the end of one, when it is
# nearly a bootstrap token or has the pin of a CA, or when it has what no person types as a password: a byte order mark, a line
# break, a NUL, blanks alone. Messages say what stands before a token, and repeat no other text: it may be a part of the secret.

MISPLACED_HASH = (
    "it has the hash of a CA, and not the form of a whole token: K10, the 64 digits of the hash, :: and the rest"
)
END_ALONE = "it is the end of a whole token, without the hash of the CA: give the whole token, which begins with K10"

NEARLY_BOOTSTRAP = (
    "it is a damaged bootstrap token: the form is 6 characters, one dot, 16 characters, only a-z and 0-9, nothing before "
    "or after"
)
PIN = "it is the pin of a CA, and not a token: give the token"

_WHOLE = re.compile(rb"K10[0-9A-Fa-f]{64}::")
_WHOLE_LOWERED = re.compile(rb"k10[0-9A-Fa-f]{64}::")
_HASH_IN_TOKEN = re.compile(
    rb"[0-9A-Fa-f]{32,}::|[0-9A-Fa-f]{64}:"
    rb"|[0-9A-Fa-f]{32,}(?:%3[Aa]|[^0-9A-Za-z])*(?:(?:server|node)(?:%3[Aa]|[^0-9A-Za-z])|[a-z0-9]{6}\.[a-z0-9]{16}\Z)"
)
"""A hash, also one that lost digits, before the separator, also one that lost a colon, or is written otherwise."""
_BOOTSTRAP = re.compile(rb"[a-z0-9]{6}\.[a-z0-9]{16}")
_NEARLY_BOOTSTRAP = re.compile(
    rb"(?i:(?<![\w.-])[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]))"
    rb"|\A\W*[a-z0-9]{6,7}[.:,; \t]{1,2}[a-z0-9]{16,17}\W*\Z"
)
"""A bootstrap token with quotes, blanks, a key or capital letters, and one with another separator or one character too many."""
_PIN = re.compile(rb"(?i)sha256[:=][0-9a-f]{64}")
_HASH_IN_USER = re.compile(rb"[0-9A-Fa-f]{32,}")
_END = re.compile(
    rb"\A(?:(?:(?:(?:(?:s?e)?r)?v)?e)?r|(?:(?:n?o)?d)?e)?:|:(?:server|node):|:[a-z0-9]{6}\.[a-z0-9]{16}\Z"
)
"""End of a whole token behind the hash, from any character of the separator or the user on: the hash is lost, or too much of it."""
_DIGITS = re.compile(rb"[0-9A-Fa-f]{0,64}:?")
_BEGINNINGS = (b"K", b"K1")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_USERS = (b"", b"server", b"node")
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]")
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_BEFORE = re.compile(
    rb"(?P<mark>\xef\xbb\xbf)"
    rb"|(?P<quote>[\"'`]|\xe2\x80[\x98-\x9f])"
    rb"|(?P<line>[\r\n]+)"
    rb"|(?P<blank>[ \t\v\f]+|\xc2\xa0|\xe2\x80\x8b)"
    rb"|(?P<key>(?i:export|K3S_(?:AGENT_)?TOKEN|MOORING_(?:SERVER_|AGENT_)?TOKEN|(?:agent-|server-)?token|--token)(?:[ \t]*[=:])?)"
    rb"|(?P<other>.)",
    re.DOTALL,
)
_NAMES = {
    "mark": "a byte order mark",
    "quote": "a quotation mark",
    "line": "a line break",
    "blank": "a blank",
    "other": "other text",
}


def damage(data: bytes) -> str:
    """Return what is wrong with a text that does not begin with `K10`; "" when it can be a password or a bootstrap token."""
    if found := _WHOLE.search(data):
        return f"a whole token begins with K10: remove {_standing_before(data[: found.start()])} before it"
    if _WHOLE_LOWERED.search(data):
        return "a whole token begins with K10, with a capital letter"
    if _is_base64(data):
        return "this is a token in base64: decode it"
    if _HASH_IN_TOKEN.search(data):
        return MISPLACED_HASH
    if _END.search(data):
        return END_ALONE
    if data.startswith(_BYTE_ORDER_MARKS) or b"\0" in data:
        return "the text begins with a byte order mark, or has a NUL: write it as UTF-8 without one"
    if b"\n" in data or b"\r" in data:
        return "a token is one line: remove the line break, and what is not the token"
    if data in _BEGINNINGS:
        return f"it is the beginning of a whole token{cut_off(b'')}"
    if not data.strip():
        return "the text is blank"
    if _PIN.search(data):
        return PIN
    missing = missing_part(data.decode("ascii", "replace")) if b"." in data else ""
    return f"it is a part of a bootstrap token: {missing}" if missing else _nearly_bootstrap(data)


def cut_off(rest: bytes) -> str:
    """Return which part is missing in a whole token that k3s refuses; `rest` is the text behind `K10`."""
    ca_hash, separator, credential = rest.partition(b"::")
    digits = len(ca_hash.removesuffix(b":"))
    if not separator:
        if _DIGITS.fullmatch(rest):
            return f": the hash of the CA has {digits} of 64 digits, and :: and the credential behind it are missing"
        return ": the hash of the CA and :: are missing"
    if _DIGITS.fullmatch(ca_hash) and 0 < digits < 64:
        return f": the hash of the CA has {digits} of 64 digits"
    if len(ca_hash) not in (0, 64):
        return ": K10 is followed by the 64 digits of the hash of the CA and ::"
    if not credential.strip(b":"):
        return ": the user and the password, or the bootstrap token, behind :: are missing"
    if credential.endswith(b":"):
        return ": the password behind the user is missing"
    return ": the password is missing, or a part of the bootstrap token behind ::"


def damage_without_hash(credential: bytes) -> str:
    """Return what is wrong with what stands behind `K10`, or `K10::`, in a text without a hash; "" when nothing is."""
    user, _, password = credential.partition(b":")
    if _WHOLE.search(credential) or _HASH_IN_USER.search(user):
        return MISPLACED_HASH
    if _END.search(password if user in _USERS else credential):
        return END_ALONE
    return "" if user in _USERS else _nearly_bootstrap(credential)


def _nearly_bootstrap(data: bytes) -> str:
    return NEARLY_BOOTSTRAP if _NEARLY_BOOTSTRAP.search(data) and not _BOOTSTRAP.fullmatch(data) else ""


def _standing_before(text: bytes) -> str:
    names: dict[str, None] = {}
    for found in _BEFORE.finditer(text):
        kind = str(found.lastgroup)
        names[f'"{found[0].decode()}"' if kind == "key" else _NAMES[kind]] = None
    return " and ".join(names)


def _is_base64(data: bytes) -> bool:
    """Return True for base64 that has a token, also without padding, cut, over several lines, or behind a key or a quote."""
    # For the padding, so that no end is lost.
    text = _NOT_BASE64.sub(b"", data.translate(_STANDARD)) + b"AAA"
    groups = (text[start : start + (len(text) - start) // 4 * 4] for start in range(4))
    decoded = map(base64.b64decode, groups)
    return any(_WHOLE.search(text) or _BOOTSTRAP.search(text) for text in decoded)


# K10 token: the grammar of k3s's join tokens, which carry the hash of a CA beside a password or a bootstrap token.
#
# Rules kept here (docs/protocol/k3s.md#tokens; what k3s itself accepts, with its error texts):
# * `K10<hash>::<user>:<password>` and `K10<hash>::<id>.<secret>`. The hash has 64 bytes or none, and its alphabet is not checked.
# * A text without the prefix `K10` is a bootstrap token when it has the form of one, and otherwise the password of no user.
# * A text with the prefix is never a password, even when the person who chose it meant one: `K10xyz` is `invalid token format`.
# * After the prefix the first `::` ends the hash, and the first `:` of the rest ends the user, so that a password may contain
#   both.
# * Without `::` there is no hash: `K10user:pass` is a user and a password.
# * A text that has a whole token with a hash, but not at its beginning, or the hash of one in another place, is refused: k3s
#   reads it as a password, and drops the hash (`mooring.trust.k3s.token`).
# * A text with the placeholder of a template or a shell is refused, and so are the beginning or the end of a token, where it
#   cannot be a password, a text that is nearly a bootstrap token, and the pin of a CA.
# * The password is a Secret. A text that was read otherwise than it was meant may have a part of a password in place of the hash
#   or the user: neither is printed unless it is a digest or a user that k3s knows.

PREFIX = "K10"
HASH_LENGTH = 64
"""Hexadecimal digits of a SHA-256."""
SERVER, NODE = "server", "node"
"""User names that k3s gives to the two static passwords: servers replace the user of a token by the first, agents by the second."""

DEFAULT_GROUPS = ("system:bootstrappers:k3s:default-node-token",)
"""Groups of a bootstrap token of k3s's format for which none are given."""

_PREFIX = PREFIX.encode()
_HASH = re.compile(r"[0-9a-f]{64}")


class TokenFormatError(ConfigError):
    """The text is not a token that k3s accepts. The message begins with k3s's where k3s refuses it, and repeats no part of it."""


@dataclass(frozen=True, slots=True, repr=False)
class K3sToken:
    """A parsed token: either a bootstrap token, or a user, which may be empty, and a password. The hash may be empty."""

    ca_hash: str
    username: str
    password: Secret | None
    bootstrap: BootstrapToken | None

    @property
    def credential(self) -> Secret:
        """Return the part after the hash: `<user>:<password>` or `<id>.<secret>`."""
        if self.bootstrap is not None:
            return Secret(self.bootstrap.reveal())
        password = self.password.reveal() if self.password is not None else b""
        return Secret(self.username.encode("utf-8", "surrogateescape") + b":" + password)

    def as_user(self, username: str) -> K3sToken:
        """Return the same token for another user: `node` for an agent, `server` for a server. A bootstrap token has no user."""
        return self if self.bootstrap is not None else replace(self, username=username)

    def __repr__(self) -> str:
        ca_hash = self.ca_hash if not self.ca_hash or is_digest(self.ca_hash) else "(no digest)"
        if self.bootstrap is not None:
            return f"K3sToken({ca_hash}::{self.bootstrap})"
        username = self.username if self.username in ("", SERVER, NODE) else "(other user)"
        return f"K3sToken({ca_hash}::{username}:(redacted))"

    __str__ = __repr__


def is_digest(text: str) -> bool:
    """Return True when the hash of a token can be that of a CA: 64 hexadecimal digits, in lower case."""
    return _HASH.fullmatch(text) is not None


def has_prefix(text: str) -> bool:
    """Return True when the text is read as the whole form, and never as a password."""
    return text.startswith(PREFIX)


def parse_token(text: str | bytes) -> K3sToken:
    """Return the token in a text, as k3s reads it. Raises TokenFormatError."""
    try:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise TokenFormatError("invalid token format") from None
    if not data:
        raise TokenFormatError("token must not be empty")
    has_prefix = data.startswith(_PREFIX)
    if problem := unfilled_placeholder(data.removeprefix(_PREFIX).decode("ascii", "replace")):
        raise TokenFormatError(problem)
    if not has_prefix:
        if problem := damage(data):
            raise TokenFormatError(problem)
        data = _PREFIX + (b"::" if _bootstrap_token(data) else b":::") + data
    ca_hash, separator, credential = data.removeprefix(_PREFIX).partition(b"::")
    if not separator:
        ca_hash, credential = b"", ca_hash
    if len(ca_hash) not in (0, HASH_LENGTH):
        raise TokenFormatError(f"invalid token CA hash length{cut_off(data.removeprefix(_PREFIX))}")
    digest = ca_hash.decode("utf-8", "surrogateescape")
    if bootstrap := _bootstrap_token(credential):
        return K3sToken(digest, "", None, bootstrap)
    username, _, password = credential.partition(b":")
    if not password:
        raise TokenFormatError(f"invalid token format{cut_off(data.removeprefix(_PREFIX))}")
    if has_prefix and not digest and (problem := damage_without_hash(credential)):
        raise TokenFormatError(problem)
    return K3sToken(digest, username.decode("utf-8", "surrogateescape"), Secret(password), None)


def bootstrap_token_id(text: str) -> str:
    """Return the id in a text: an id, a bootstrap token, or the whole form of one. Raises ConfigError."""
    if not has_prefix(text):
        return parse_token_id(text)
    token = parse_token(text)
    if token.bootstrap is None:
        raise TokenFormatError("not a bootstrap token but a password, which is no object of the cluster and has no id")
    return token.bootstrap.id


def format_token(ca_hash: str, credential: Secret | BootstrapToken | K3sToken) -> Secret:
    """Return the whole form with this hash. A credential is `<user>:<password>`, or a token; an empty one gives an empty text.

    Raises TokenFormatError for a hash that is not a digest, with which no client could verify a server.
    """
    if isinstance(credential, K3sToken):
        credential = credential.credential
    elif isinstance(credential, BootstrapToken):
        credential = Secret(credential.reveal())
    if not credential:
        return credential
    if not is_digest(ca_hash):
        raise TokenFormatError("the hash of a CA in a token is 64 hexadecimal digits, in lower case")
    return Secret(f"{PREFIX}{ca_hash}::".encode() + credential.reveal())


def password_credential(username: str, password: Secret) -> Secret:
    """Return `<user>:<password>`, the credential of a server token or an agent token."""
    return K3sToken("", username, password, None).credential


def _bootstrap_token(data: bytes) -> BootstrapToken | None:
    text = data.decode("ascii", "replace")
    return parse_bootstrap_token(text) if looks_like_token(text) else None


# Token lines of files that a k3s agent is configured by: environment files and config.yaml.
#
# Rules kept here (docs/protocol/k3s.md#token-on-the-disk-of-an-agent):
# * `K3S_TOKEN=…` (systemd's EnvironmentFile and shell files, with or without `export` and quotes) and `token: …` or `t: …`
#   (config.yaml, with or without quotes and a comment behind) hold a token. A line is blanked only when it holds the token that
#   was used. All else stays, and so does the comment, unless the token is in it, too.
# * Other lines are not rewritten: a quoted key, a block, a flow mapping. `lines_with_token` finds the token in them.
# * A token has several forms: the whole one, and what stands behind the hash. Each is given as a Secret.

_LINE = re.compile(rb"(?m)^([ \t]*(?:(?:export[ \t]+)?K3S_TOKEN=|t(?:oken)?\+?:))([^\r\n]*)")
_QUOTES = (b"'", b'"')
_CONTINUED = re.compile(rb"\\\r?\n[ \t]*")
"""End of a line that goes on with the next one, in a shell, a unit of systemd, and a quoted text of YAML."""


def blank_token_lines(text: bytes, forms: Sequence[Secret]) -> bytes:
    """Return the text with an empty value in each line that holds the token in one of its forms."""

    def is_token(value: bytes) -> bool:
        return any(form.matches(_unquoted(value)) for form in forms)

    def blank(match: re.Match[bytes]) -> bytes:
        is_yaml, value = match[1].endswith(b":"), match[2].strip(b" \t")
        bare, mark, comment = value.partition(b" #") if is_yaml else (value, b"", b"")
        if is_token(value):
            mark = comment = b""
        elif not is_token(bare.rstrip(b" \t")):
            return match[0]
        kept = mark + comment if not any(form.reveal() in comment for form in forms) else b""
        return match[1] + (b" " if is_yaml else b"") + b'""' + kept

    return _LINE.sub(blank, text)


def lines_with_token(text: bytes, forms: Sequence[Secret]) -> tuple[int, ...] | None:
    """Return the numbers of the lines that hold the token; none when it is spread over several lines. None: it is not there.

    A form is found as a whole word: a short one is a part of other words by chance. Text in UTF-16 is searched as well.
    """
    text = text.replace(b"\0", b"")
    words = re.compile(b"|".join(rb"(?<![\w-])" + re.escape(form.reveal()) + rb"(?![\w-])" for form in forms))
    if lines := tuple(number for number, line in enumerate(text.split(b"\n"), start=1) if words.search(line)):
        return lines
    return () if words.search(_CONTINUED.sub(b"", text)) else None


def _unquoted(value: bytes) -> bytes:
    is_quoted = len(value) > 1 and value[:1] == value[-1:] and value[:1] in _QUOTES
    return value[1:-1] if is_quoted else value
