"""Texts of other servers for people and logs: what may be shown of an answer, its Audit-Id, and its version."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from mooring.secret import Secret

# Text of an answer that is not a success: what the server says, fit for one line of an error.
#
# Rules kept here (docs/protocol/k3s.md#join-of-an-agent, docs/protocol/discovery-and-join.md#refusals):
# * The message of a Status is the text, of a page its title, and otherwise the whole body: k3s answers in plain text in places.
# * The text is one line without control characters, of at most MAX_TEXT characters. Any machine may have sent it.
# * An answer that repeats a secret of this machine has no text, whether the secret stands there in clear, escaped in JSON, or in
#   the base64 of HTTP Basic. Of a Status that does so to a command, its reason and code stay.

MAX_TEXT = 600
"""Characters of a server's text that an error repeats: reason and remedy of a certificate request that was denied."""
MIN_SECRET = 8
"""Characters of a secret that is looked for in a Status: its message names users, one of whom may be called `admin`."""
_TITLE = re.compile(r"<title[^>]{0,100}>([^<]{0,600})", re.IGNORECASE)


def answer_text(body: bytes, secrets: Iterable[Secret] = (), users: Iterable[str] = ()) -> str:
    """Return the text of an answer; "" for one without a text, and for one that repeats a secret.

    `users`: names with which a secret travels by HTTP Basic.
    """
    text = body.decode("utf-8", "replace")
    message = _message(text)
    forms = [form for secret in secrets for form in _forms(secret.reveal(), tuple(users))]
    if any(form in text or form in message for form in forms):
        return ""
    return " ".join("".join(one if one.isprintable() else " " for one in message[: 8 * MAX_TEXT]).split())[:MAX_TEXT]


def has_secret(status: Mapping[str, Any], body: bytes, secrets: Iterable[Secret]) -> bool:
    """Return whether a Status, read from `body`, repeats one of the secrets of its request."""
    details = status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    parts = (status, *(one for one in (causes if isinstance(causes, list) else ()) if isinstance(one, dict)))
    texts = (body.decode("utf-8", "replace"), *(str(part.get("message")) for part in parts), str(status.get("reason")))
    forms = (form for secret in secrets for form in _forms(secret.reveal(), ()) if len(form) >= MIN_SECRET)
    return any(form in text for form in forms for text in texts)


def header_secrets(authorization: Secret | None) -> list[Secret]:
    """Return the secrets in a value of the header Authorization: a token, or the text of Basic and the password in it."""
    scheme, _, credential = authorization.reveal().partition(b" ") if authorization is not None else (b"", b"", b"")
    found = [credential]
    if scheme.lower() == b"basic":
        with suppress(ValueError):
            found.append(base64.b64decode(credential).partition(b":")[2])
    return [Secret(one) for one in found if one]


def in_brackets(text: str) -> str:
    """Return the text of an answer for the middle of a sentence; "" for none."""
    return f" ({text})" if text else ""


def after_colon(text: str) -> str:
    """Return the text of an answer for the end of a clause; "" for none."""
    return f": {text}" if text else ""


def _message(text: str) -> str:
    """Return the message of a Status, the title of a page, and any other text as it is."""
    if text.lstrip()[:1] == "<":
        title = _TITLE.search(text[: 8 * MAX_TEXT])
        return html.unescape(title[1]) if title else ""
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        return text
    message = status.get("message") if isinstance(status, dict) else text
    return "" if message is None else str(message)


def _forms(secret: bytes, users: tuple[str, ...]) -> list[str]:
    """Return the texts in which a secret may come back."""
    basic = [base64.b64encode(user.encode() + b":" + secret).decode() for user in users]
    return [secret.decode("utf-8", "replace"), *basic]


# Audit-Id of a refused request: the command with which an administrator learns the reason that the client is not told.
#
# Rules kept here: an id that a server may have copied from a token is not printed. The ids of API servers are UUIDs.

_PRINTED = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Form of an Audit-Id that is printed: a bootstrap token has a dot."""


_COMMAND = "; an administrator of a Mooring server learns the reason with: mooring auth explain "
_EXPLAINED = re.compile(_COMMAND + _PRINTED.pattern, re.ASCII)


def explained_by(audit_id: str) -> str:
    """Return the end of an error message, which names the command; "" for a response without an Audit-Id."""
    return f"{_COMMAND}{audit_id}" if _PRINTED.fullmatch(audit_id) else ""


def without_audit_id(message: str) -> str:
    """Return an error message without the command, so that those of two refusals for one reason are equal."""
    return _EXPLAINED.sub("", message)


# `gitVersion` of `/version`: tells a Mooring server from another Kubernetes API server.

_BUILD = "+mooring-"
"""Part of the `gitVersion` of every Mooring server."""


def is_mooring(version: str) -> bool:
    """Return True when `gitVersion` is one of Mooring."""
    return _BUILD in version


def is_mooring_response(body: bytes) -> bool:
    """Return True when a response to `/version` is one of Mooring."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    version = found.get("gitVersion") if isinstance(found, dict) else None
    return isinstance(version, str) and is_mooring(version)
