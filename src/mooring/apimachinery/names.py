"""Names of objects, labels and keys: their validation, generated names, and UUIDs."""

from __future__ import annotations

import re
from collections.abc import Callable

# Validation of object names, label keys and values, qualified names and ConfigMap keys; generated names.
#
# Rules kept here:
# * Every function returns one clause for each broken rule, in the words of Kubernetes (clients compare them). An empty list means
#   that the text is allowed. Whole texts are matched: a trailing newline is never allowed.
# * Lengths are counted in UTF-8 bytes, as Go counts them.
# * A generated name is at most 58 bytes of the base and five random characters of an alphabet without vowels and similar
#   characters, so that no word appears by chance.
#
# Sources: RFC 1035 section 2.3.1; RFC 1123 section 2.1; docs/protocol/objects.md#names, docs/protocol/secrets-and-configmaps.md;
# k8s.io/apimachinery util/validation and k8s.io/apiserver storage/names for the clauses and constants.

LABEL_MAX = 63
"""RFC 1123 label, label value, and the name part of a qualified name."""
SUBDOMAIN_MAX = 253
"""RFC 1123 subdomain: the longest name that fits a DNS message."""

GENERATED_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
GENERATED_LENGTH = 5
GENERATED_BASE_MAX = LABEL_MAX - GENERATED_LENGTH
"""Bytes of the base of a generated name: base and suffix fit a DNS label."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED_NAME = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = f"({_QUALIFIED_NAME})?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"

_label = re.compile(_LABEL).fullmatch
_subdomain = re.compile(_SUBDOMAIN).fullmatch
_qualified_name = re.compile(_QUALIFIED_NAME).fullmatch
_label_value = re.compile(_LABEL_VALUE).fullmatch
_config_key = re.compile(_CONFIG_KEY).fullmatch


def _pattern(rule: str, pattern: str, *examples: str) -> str:
    """Return the clause for a text that does not match: the rule, examples, and the pattern."""
    quoted_examples = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {quoted_examples}regex used for validation is '{pattern}')"


_NOT_A_LABEL = _pattern(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character",
    _LABEL,
    "my-name",
    "123-abc",
)
_NOT_A_SUBDOMAIN = _pattern(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
    _SUBDOMAIN,
    "example.com",
)
_NOT_A_QUALIFIED_NAME = _pattern(
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
    _QUALIFIED_NAME,
    "MyName",
    "my.name",
    "123-abc",
)
_NOT_A_LABEL_VALUE = _pattern(
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    "and must start and end with an alphanumeric character",
    _LABEL_VALUE,
    "MyValue",
    "my_value",
    "12345",
)
_NOT_A_CONFIG_KEY = _pattern(
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
    _CONFIG_KEY,
    "key.name",
    "KEY_NAME",
    "key-name",
)


def _longer(text: str, limit: int) -> bool:
    return len(text) > limit or len(text.encode("utf-8", "surrogatepass")) > limit


def dns1123_label_errors(name: str) -> list[str]:
    """Check names of namespaces: one DNS label of at most 63 characters."""
    errors = [f"must be no more than {LABEL_MAX} characters"] if _longer(name, LABEL_MAX) else []
    if not _label(name):
        errors.append("must not contain dots" if _subdomain(name) else _NOT_A_LABEL)
    return errors


def dns1123_subdomain_errors(name: str) -> list[str]:
    """Check names of most kinds: DNS labels joined by dots, at most 253 characters."""
    errors = [f"must be no more than {SUBDOMAIN_MAX} characters"] if _longer(name, SUBDOMAIN_MAX) else []
    if not _subdomain(name):
        errors.append(_NOT_A_SUBDOMAIN)
    return errors


def path_segment_errors(name: str) -> list[str]:
    """Check names of RBAC kinds and CertificateSigningRequests: any single segment of a URL path."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{sign}'" for sign in "/%" if sign in name]


def qualified_name_errors(name: str) -> list[str]:
    """Check label keys, annotation keys (in lower case) and finalizers: `[prefix/]name`, the prefix a DNS subdomain."""
    prefix, slash, rest = name.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_NOT_A_QUALIFIED_NAME} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    errors = []
    if slash and not prefix:
        errors.append("prefix part must be non-empty")
    elif slash:
        if _longer(prefix, SUBDOMAIN_MAX):
            errors.append(f"prefix part must be no more than {SUBDOMAIN_MAX} bytes")
        if not _subdomain(prefix):
            errors.append(f"prefix part {_NOT_A_SUBDOMAIN}")
    if not rest:
        errors.append("name part must be non-empty")
    elif _longer(rest, LABEL_MAX):
        errors.append(f"name part must be no more than {LABEL_MAX} bytes")
    if not _qualified_name(rest):
        errors.append(f"name part {_NOT_A_QUALIFIED_NAME}")
    return errors


def label_value_errors(value: str) -> list[str]:
    """Check label values: empty, or at most 63 characters of a name."""
    errors = [f"must be no more than {LABEL_MAX} bytes"] if _longer(value, LABEL_MAX) else []
    if not _label_value(value):
        errors.append(_NOT_A_LABEL_VALUE)
    return errors


def config_key_errors(key: str) -> list[str]:
    """Check keys of Secret and ConfigMap data: file names that stay within their directory."""
    errors = [f"must be no more than {SUBDOMAIN_MAX} characters"] if _longer(key, SUBDOMAIN_MAX) else []
    if not _config_key(key):
        errors.append(_NOT_A_CONFIG_KEY)
    if key in (".", ".."):
        errors.append(f"must not be '{key}'")
    elif key.startswith(".."):
        errors.append("must not start with '..'")
    return errors


def generate_name(base: str, entropy: Callable[[int], bytes]) -> str:
    """Return `base`, cut to 58 bytes, and five characters of `GENERATED_ALPHABET`.

    `entropy(n)` returns n unpredictable bytes. 16 of them are reduced to one of 27⁵ suffixes; the bias is below 2⁻¹⁰⁰.
    """
    number = int.from_bytes(entropy(16), "big")
    suffix = ""
    for _ in range(GENERATED_LENGTH):
        number, digit = divmod(number, len(GENERATED_ALPHABET))
        suffix += GENERATED_ALPHABET[digit]
    return base.encode("utf-8", "replace")[:GENERATED_BASE_MAX].decode("utf-8", "ignore") + suffix


# Make UUIDs for objects, tokens and audit records from given entropy (RFC 9562 version 4).


def uuid4(entropy: Callable[[int], bytes]) -> str:
    """Return a random UUID. Formatted here, because `uuid.UUID` takes ten times as long and every request needs one."""
    raw = entropy(16)
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{'89ab'[raw[8] >> 4 & 3]}{digits[17:20]}-{digits[20:]}"
