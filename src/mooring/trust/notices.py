"""Notices to an operator's own service: their settings, body, signature, and what a response to one means.

Rules kept here (docs/operate.md#notices):
* A notice is made of an Event that this program wrote. It has the fields of the Event that people read, and no secret.
* Headers and signature are those of Standard Webhooks 1.0.0: `webhook-id` is the same at each attempt, and HMAC-SHA256 is over
  `id.timestamp.body`.
* Path and query of the URL may be the secret that lets a sender in, as at Slack and Teams. They are a `Secret`: scheme, host and
  port alone are shown.
* The URL is https, or http to a loopback address, and names no user.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import ClassVar
from urllib.parse import urlsplit

from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.schema import Obj
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.addresses import names_user
from mooring.settings.declaration import TEXT, Settings, file_setting, setting
from mooring.trust.httpsurl import https_url_problem

API_VERSION, KIND = "mooring.dev/v1", "Notice"
MIN_KEY = 16
"""Bytes of a key. Standard Webhooks recommends 24 to 64."""
KEY_PREFIX = b"whsec_"
"""Marks a key in base64 (Standard Webhooks)."""
_AUTHORITY = re.compile(r"[A-Za-z0-9._:\[\]%-]+")
SENT, REFUSED, FAILED = "sent", "refused", "failed"
"""Meanings of a response: the receiver has the notice, will never take it, or may take it at another attempt."""
TRY_AGAIN = frozenset({408, 425, 429})
"""Statuses of the class 4xx that say nothing about the request itself (RFC 9110 15.5.9, RFC 8470 5.2, RFC 6585 4)."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """URL that notices are sent to."""

    origin: str
    """Scheme, host and port: the part that may be shown."""
    target: Secret
    """Path and query."""


def parse_receiver(text: str, key: str) -> Receiver | None:
    """Return the receiver of a URL, None for an empty text. Raises ConfigError, which repeats no part of the URL."""
    if not text:
        return None
    is_plain = text[:5].lower() == "http:"
    problem = https_url_problem(f"https:{text[5:]}" if is_plain else text, query=True)
    if not problem and names_user(text):
        problem = "it must not contain a user name or a password; in a path, @ is written as %40"
    if problem:
        raise ConfigError(f"{key}: {problem}")
    parts = urlsplit(text)
    # Not the name of a host: it would be shown, and may be what others take for a path.
    if not _AUTHORITY.fullmatch(parts.netloc):
        raise ConfigError(f"{key}: it is not a URL")
    if is_plain and not _is_loopback(parts.hostname or ""):
        raise ConfigError(f"{key}: the scheme must be https, or http to a loopback address such as 127.0.0.1")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Receiver(f"{parts.scheme}://{parts.netloc}", Secret(target))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeSettings(Settings):
    """Receiver of notices."""

    heading: ClassVar[str] = "Notices"

    notify_url: Receiver | None = setting(
        TEXT,
        default="",
        meaning="URL to which each Event that Mooring writes is sent by POST: https, or http to a loopback address. Other users of "
        "the machine see a command line: prefer the configuration file or the environment for a URL with a secret.",
        metavar="URL",
        secret=True,
        parse=parse_receiver,
    )
    notify_key_file: str = file_setting(
        "Key by which notices are signed, at least 16 bytes, or whsec_ and base64; read again when it changes.",
        default_note="notices are not signed",
    )
    notify_ca_file: str = file_setting(
        "CAs that verify the receiver of notices; read again when it changes.", default_note="the roots of this machine"
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a file without a receiver."""
        for name, file in (("notify-key-file", self.notify_key_file), ("notify-ca-file", self.notify_ca_file)):
            if file and self.notify_url is None:
                raise ConfigError(f"notify-url: it is needed with {name}")


def parse_signing_key(content: bytes, file: str) -> Secret:
    """Return the key in a file. Raises ConfigError, which repeats nothing of it."""
    key = content.strip()
    if key.startswith(KEY_PREFIX):
        try:
            key = base64.b64decode(key.removeprefix(KEY_PREFIX), validate=True)
        except binascii.Error:
            raise ConfigError(f'"{file}": behind whsec_ it is not base64') from None
    if len(key) < MIN_KEY:
        raise ConfigError(f'"{file}": the key has fewer than {MIN_KEY} bytes')
    return Secret(key)


@dataclass(frozen=True, slots=True)
class EventNotice:
    """One notice as it is sent."""

    id: str
    """uid of the Event, the same at each attempt."""
    body: bytes
    made: datetime


def notice_of(event: Obj, cluster: str, now: datetime) -> EventNotice:
    """Return the notice of a stored Event. `cluster`: address under which clients reach the cluster."""
    uid, involved = event["metadata"]["uid"], event["involvedObject"]
    about = {name: involved[name] for name in ("kind", "name", "namespace") if involved.get(name)}
    document = {
        "kind": KIND,
        "apiVersion": API_VERSION,
        "id": uid,
        "time": event["firstTimestamp"],
        **{name: event[name] for name in ("type", "reason", "message")},
        "about": about,
        "cluster": cluster,
    }
    return EventNotice(uid, encode_json(document), now)


def signature(key: Secret, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature` (Standard Webhooks, "Signature scheme")."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key.reveal(), signed, hashlib.sha256).digest()).decode()


def headers_of(notice: EventNotice, key: Secret | None, now: datetime) -> tuple[tuple[str, str], ...]:
    """Return the headers of one attempt. Without a key there is no signature."""
    timestamp = int(now.timestamp())
    signed = () if key is None else (("webhook-signature", signature(key, notice.id, timestamp, notice.body)),)
    return (
        ("content-type", "application/json"),
        ("webhook-id", notice.id),
        ("webhook-timestamp", str(timestamp)),
        *signed,
    )


def outcome_of(status: int) -> str:
    """Return SENT, REFUSED or FAILED for the status of a response; 0 where there is none."""
    if 200 <= status <= 299:
        return SENT
    return REFUSED if 400 <= status <= 499 and status not in TRY_AGAIN else FAILED


def combined(reports: Sequence[Obj]) -> Obj:
    """Return the report of a server from those of its workers, of which there is at least one."""
    return {
        "host": reports[0]["host"],
        "waiting": sum(report["waiting"] for report in reports),
        "dropped": sum(report["dropped"] for report in reports),
        "problem": next((report["problem"] for report in reports if report["problem"]), ""),
    }
