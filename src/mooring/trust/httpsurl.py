"""Check of https URLs that a configuration, a provider or a token names."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_https(text: str) -> bool:
    """Return whether the scheme of a URL is https, in any case (RFC 3986 3.1)."""
    return text[:8].lower() == "https://"


def https_url_problem(text: str, *, query: bool = False, fragment: bool = False) -> str:
    """Return the reason why `text` is not an https URL with a host and without user name; "" when it is one.

    A query and a fragment are refused unless `query` and `fragment` allow them.
    """
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return "it is not a URL"
    if parts.scheme != "https":
        return "the scheme must be https"
    if not has_host or not text.isascii() or not text.isprintable() or " " in text:
        return "it is not a URL"
    if "@" in parts.netloc:
        return "it must not contain a user name or a password"
    if "?" in text.partition("#")[0] and not query:
        return "it must not contain a query"
    return "it must not contain a fragment" if "#" in text and not fragment else ""
