"""Damage of a K10 token that k3s would read as a weaker credential: a password without a hash.

With such a password the CA of whatever server answers is trusted, and the whole text is sent to it. A text is damaged when it has a
whole token that is not at its beginning, when it has the hash of one and not its form, when it is the end of one, when it is nearly
a bootstrap token or has the pin of a CA, or when it has what no person types as a password: a byte order mark, a line break, a NUL,
blanks alone. Messages say what stands before a token, and repeat no other text: it may be a part of the secret.
"""

from __future__ import annotations

import base64
import re

from mooring.trust.bootstraptoken.token import missing_part

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
_HASH = re.compile(
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
    if _HASH.search(data):
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
    text = _NOT_BASE64.sub(b"", data.translate(_STANDARD)) + b"AAA"  # for the padding, so that no end is lost
    groups = (text[start : start + (len(text) - start) // 4 * 4] for start in range(4))
    decoded = map(base64.b64decode, groups)
    return any(_WHOLE.search(text) or _BOOTSTRAP.search(text) for text in decoded)
