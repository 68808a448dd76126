"""Texts of alternative names and name constraints: which of them Go reads (`url.Parse`, `domainNameValid`, `parseRFC2821Mailbox`).

Rules kept here: nothing is decoded, and no text is judged good. A certificate with another text is none that Go reads.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address, ip_address

_PORT = r"(?::[0-9]*)?"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ESCAPED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_USER = re.compile(r"[A-Za-z0-9._~!$&'()*+,;=:@%-]*")
_HOST = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:<>\"\]-]|%25)*")
_LITERAL = re.compile(rf"\[([0-9A-Fa-f:.]*)\]{_PORT}")
_ANY_PORT = re.compile(_PORT)
_STRICT = ("http", "https")
"""Schemes whose host has one colon at most."""
_VISIBLE = re.compile(r"[!-~]*")
_ATOMS = re.compile(r"((?:\\[\x00-\x7f]|[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-])+)@(.*)", re.DOTALL)
_QUOTED = re.compile(
    r'"(?:[\x01-\x08\x0b\x0c\x0e-\x21\x23-\x5b\x5d-\x7f]|\\[\x01-\x09\x0b\x0c\x0e-\x7f])*"@(.*)', re.DOTALL
)


def is_domain(text: str) -> bool:
    """Return whether a text is a DNS name, for Go: visible characters in labels that are not empty. The empty one is."""
    return not text or (bool(_VISIBLE.fullmatch(text)) and "" not in text.split("."))


def is_domain_constraint(text: str) -> bool:
    """Return whether a text is a DNS name, which may begin with a dot."""
    return is_domain(text[1:] or ".") if text.startswith(".") else is_domain(text)


def is_uri_constraint(text: str) -> bool:
    """Return whether a text limits the hosts of URIs: a DNS name and no IP address."""
    try:
        ip_address(text)
    except ValueError:
        return is_domain_constraint(text)
    return False


def is_email_constraint(text: str) -> bool:
    """Return whether a text limits email addresses: one address, or the domain of them."""
    if "@" not in text:
        return is_domain_constraint(text)
    if text.startswith('"'):
        quoted = _QUOTED.fullmatch(text)
        return quoted is not None and is_domain(quoted[1])
    found = _ATOMS.fullmatch(text)
    return found is not None and "" not in re.sub(r"(?s)\\(.)", r"\1", found[1]).split(".") and is_domain(found[2])


def is_uri(text: str) -> bool:
    """Return whether a text is a URI, or a relative reference."""
    text, _, fragment = text.partition("#")
    if _CONTROL.search(text) or not _ESCAPED.fullmatch(fragment) or text.startswith(":"):
        return False
    scheme = _SCHEME.match(text)
    rest = (text[scheme.end() :] if scheme else text).partition("?")[0]
    if not rest.startswith("/"):
        return bool(scheme) or (":" not in rest.partition("/")[0] and bool(_ESCAPED.fullmatch(rest)))
    if rest.startswith("//") and (scheme or not rest.startswith("///")):
        authority, slash, path = rest[2:].partition("/")
        if not _is_authority(authority, scheme[1].lower() if scheme else ""):
            return False
        rest = slash + path
    return bool(_ESCAPED.fullmatch(rest))


def _is_authority(text: str, scheme: str) -> bool:
    user, _, host = text.rpartition("@")
    if not _USER.fullmatch(user) or not _ESCAPED.fullmatch(user):
        return False
    if "[" in host:
        return _is_literal(host)
    _, colon, port = host.partition(":") if scheme in _STRICT else host.rpartition(":")
    return bool(_ANY_PORT.fullmatch(colon + port if colon else "")) and bool(_HOST.fullmatch(host)) and is_domain(host)


def _is_literal(host: str) -> bool:
    """Return whether a host is an IPv6 address in brackets. One with a zone, which Go reads, names an interface of one machine."""
    found = _LITERAL.fullmatch(host)
    try:
        return found is not None and bool(IPv6Address(found[1]))
    except ValueError:
        return False
