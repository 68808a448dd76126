"""Bootstrap token: the grammar of `id.secret`, generation from entropy, usages and groups.

Rules kept here (docs/protocol/bootstrap-tokens.md):
* A token is 6 + 1 + 16 characters: id, dot, secret, both of `[a-z0-9]`. A trailing newline is an error.
* The id is public and may be printed. The secret half is a `Secret`. No error repeats any part of the input: a token with one
  wrong character still gives away nearly the whole secret.
* Generation draws each character uniformly: bytes that would favour some characters are discarded and drawn again.
* Groups need the `authentication` usage and must match the pattern; unknown usages are listed sorted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mooring.errors import ConfigError
from mooring.secret import Secret

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 6
SECRET_LENGTH = 16

USAGE_SIGNING = "signing"
USAGE_AUTHENTICATION = "authentication"
USAGES = (USAGE_SIGNING, USAGE_AUTHENTICATION)
"""Known usages, in the order Kubernetes lists them."""

DEFAULT_GROUPS = ("system:bootstrappers:kubeadm:default-node-token",)
"""Groups of a token for which none are given."""
GROUP_PATTERN = r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z"
"""Kubernetes' pattern in Go's grammar, for messages. `_GROUP` is the same pattern in Python's grammar."""

MAX_DRAWS = 64
"""Calls of an entropy source for one token; a sound source needs more than five about once in 10^7 tokens."""

_ID = re.compile(r"[a-z0-9]{6}")
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_ENDING = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{6}\.[A-Za-z0-9]{16}(?![\w-]|\.\w)")
_K3S = re.compile(r"[Kk]10|:(?:server|node):")
_GROUP = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")
_PLACEHOLDERS = {
    "${NAME}": r"\$\{[^{}]*\}",
    "$(command)": r"\$\([^()]*\)",
    "{{ name }}": r"\{\{[^{}]*\}\}",
    "<% name %>": r"<%[^<>]*%>",
    "$NAME": r"(?<![^.:])\$\$?[A-Za-z_][A-Za-z0-9_]*(?:\{[^{}]*\})?(?![^.:])",
    "<name>": r"(?<![^.:])<<?[^<>]*>>?(?![^.:])",
    "%NAME%": r"(?<![^.:])%%?[A-Za-z_][A-Za-z0-9_]*%%?(?![^.:])",
    "%(name)s": r"(?<![^.:])%\([^()]*\)s?(?![^.:])",
    "{name}": r"(?<![^.:])[#%]?\{[^{}]*\}#?(?![^.:])",
    "((name))": r"(?<![^.:])\(\([^()]*\)\)(?![^.:])",
    "[name]": r"(?<![^.:])\[\[?[A-Za-z_ -]*\]\]?(?![^.:])",
    "`command`": r"(?<![^.:])`[^`]*`(?![^.:])",
    "@NAME@": r"(?<![^.:])@@?[A-Za-z_][A-Za-z0-9_]*@@?(?![^.:])",
    "__NAME__": r"(?<![^.:])__[A-Za-z_][A-Za-z0-9_]*__(?![^.:])",
    "${NAME, {{ name or <name without its end": r"(?<![^.:])(?:\$\{|\$\(|\{\{|<%?=?)[A-Za-z_ -]+(?![^.:])",
    "xxxxxx.xxxxxxxxxxxxxxxx": r"(?<!\w)(?i:x{6}\.x{16})(?!\w)",
}
"""Placeholders of shells, templates and documentation. Those with one character at each end may be a part of a password, and are
recognized only as a complete part of a token."""
_PLACEHOLDER = re.compile("|".join(f"({form})" for form in _PLACEHOLDERS.values()))
_UNIFORM = 256 - 256 % len(ALPHABET)


class TokenError(ConfigError):
    """A token, or the Secret that holds one, breaks a rule. The message never contains the token's secret."""


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """A well-formed token. Printing one shows its id only."""

    id: str
    secret: Secret

    def reveal(self) -> str:
        """Return the full text `id.secret`. Never log it."""
        return f"{self.id}.{self.secret.reveal().decode('ascii')}"

    def __str__(self) -> str:
        return f"{self.id}.(redacted)"


def is_token_id(text: str) -> bool:
    """Return True when `text` is exactly a token id."""
    return _ID.fullmatch(text) is not None


def looks_like_token(text: str) -> bool:
    """Return True when `text` has the form of a token, so that it must not be printed."""
    return _TOKEN.fullmatch(text) is not None


def ends_in_token(text: str) -> bool:
    """Return True when a text has the form of a token in it, in any case, at the end of a name.

    In front of a further label it may be a host and its domain. No top-level domain has 16 letters and digits.
    """
    return _ENDING.search(text) is not None


def has_token_of(text: str, token_id: str) -> bool:
    """Return True when a text has the form of a token with this id in it, at any place and in any case."""
    return any(found[1] == token_id for found in _TOKEN.finditer(text.lower()))


def may_hold_token(text: str) -> bool:
    """Return True when a text that is wrong in its place may have a bootstrap token or a token of k3s in it, damaged or not."""
    return ends_in_token(text) or _K3S.search(text) is not None


def unfilled_placeholder(text: str) -> str:
    """Return why a text with a placeholder cannot be a token; "" without one. Its name is not repeated."""
    found = _PLACEHOLDER.search(text)
    if found is None:
        return ""
    form = list(_PLACEHOLDERS)[(found.lastindex or 0) - 1]
    return f"it has a placeholder of the form {form}, and not the value: the variable or the template was not filled in"


def missing_part(text: str) -> str:
    """Return what a bootstrap token lacks whose beginning or end was cut off; "" for every other text."""
    id_, dot, secret = text.partition(".")
    if not text.isascii() or not (id_ + secret).isalnum() or (id_ + secret) != (id_ + secret).lower():
        return ""
    if not dot:
        return "" if len(id_) > ID_LENGTH else f"the dot and the {SECRET_LENGTH} characters behind it are missing"
    if len(id_) == ID_LENGTH and len(secret) < SECRET_LENGTH:
        return f"{SECRET_LENGTH - len(secret)} of the {SECRET_LENGTH} characters behind the dot are missing"
    if len(id_) < ID_LENGTH and len(secret) == SECRET_LENGTH:
        return f"{ID_LENGTH - len(id_)} of the {ID_LENGTH} characters before the dot are missing"
    return ""


def parse_token(text: str) -> BootstrapToken:
    """Return the token in `text`, which holds nothing else. Raises TokenError."""
    match = _TOKEN.fullmatch(text)
    if not text:
        raise TokenError("the bootstrap token is empty: the file or the variable that was to hold it has nothing")
    if match is None:
        if problem := unfilled_placeholder(text):
            raise TokenError(f"the bootstrap token cannot be used: {problem}")
        missing = missing_part(text)
        raise TokenError(
            "the bootstrap token is not of the form abcdef.0123456789abcdef: "
            "6 characters, one dot, 16 characters, only a-z and 0-9, nothing before or after"
            + (missing and f"; {missing}")
        )
    return BootstrapToken(match[1], Secret(match[2]))


def parse_token_id(text: str) -> str:
    """Return the id in `text`, which is an id or a whole token. Raises TokenError."""
    if is_token_id(text):
        return text
    try:
        return parse_token(text).id
    except TokenError:
        raise TokenError(
            "not a bootstrap token id (6 characters of a-z and 0-9) and not a whole token (id, dot, 16 characters)"
        ) from None


def generate_token(entropy: Callable[[int], bytes]) -> BootstrapToken:
    """Return a new token. `entropy(n)` returns n unpredictable bytes. Every character is uniform over the 36."""
    wanted = ID_LENGTH + SECRET_LENGTH
    drawn: list[str] = []
    for _ in range(MAX_DRAWS):
        drawn += [ALPHABET[byte % len(ALPHABET)] for byte in entropy(wanted - len(drawn)) if byte < _UNIFORM]
        if len(drawn) == wanted:
            return BootstrapToken("".join(drawn[:ID_LENGTH]), Secret("".join(drawn[ID_LENGTH:])))
    raise TokenError("the entropy source gives no usable bytes: no token was made")


def validate_usages(usages: Collection[str]) -> None:
    """Raise TokenError that lists every unknown usage, sorted."""
    unknown = sorted(set(usages) - set(USAGES))
    if unknown:
        raise TokenError(f"invalid bootstrap token usage {','.join(unknown)}: valid usages are {','.join(USAGES)}")


def validate_group(group: str) -> None:
    """Raise TokenError unless a bootstrap token may grant `group`."""
    if _GROUP.fullmatch(group) is None:
        raise TokenError(f'bootstrap group "{group}" is invalid: it must match {GROUP_PATTERN}')


def default_groups(usages: Collection[str], groups: tuple[str, ...] = DEFAULT_GROUPS) -> tuple[str, ...]:
    """Return the `groups` of a token for which none were given: none without the usage authentication."""
    return groups if USAGE_AUTHENTICATION in usages else ()


def validate_groups(usages: Collection[str], groups: Sequence[str]) -> None:
    """Raise TokenError unless a token with these `usages` may grant `groups`."""
    if groups and USAGE_AUTHENTICATION not in usages:
        raise TokenError(f'token groups cannot be given unless the usages include "{USAGE_AUTHENTICATION}"')
    for group in groups:
        validate_group(group)
