"""Difference between this machine's clock and that of the server.

Rules kept here:
* The server's time is the Date header of its response (RFC 9110), or the creation time of an object that it has just created.
* A message names the seconds and the side, so that a person knows which clock to set.
* Signers set the begin of a certificate 5 minutes back. A machine whose clock is further behind cannot use its certificate yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from mooring.clock import parse_rfc3339
from mooring.pki.x509.certificate import Certificate

SKEW_LIMIT = timedelta(seconds=60)
"""Difference that is reported. A tenth of the shortest lifetime of a certificate, 10 minutes; requests take less."""


def server_date(headers: Mapping[str, str]) -> datetime | None:
    """Return the time in the Date header of a response; None without one that can be read. Header names are in lower case."""
    try:
        return parsedate_to_datetime(headers.get("date", "")).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def creation_time(obj: Mapping[str, object]) -> datetime | None:
    """Return the creation time in the metadata of an object; None when there is none."""
    metadata = obj.get("metadata")
    text = metadata.get("creationTimestamp") if isinstance(metadata, dict) else None
    try:
        return parse_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None


def describe_skew(server: datetime | None, here: datetime) -> str:
    """Return the difference as a clause when it is above SKEW_LIMIT, else ""."""
    if server is None or abs(here - server) <= SKEW_LIMIT:
        return ""
    seconds = round(abs(here - server).total_seconds())
    side = "behind" if here < server else "ahead of"
    return f"this machine's clock is {seconds} s {side} the server's"


def describe_validity(certificate: Certificate, here: datetime) -> str:
    """Return by how much this machine's clock is outside the validity of a certificate that was just issued, else ""."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if here < begin:
        return f"this machine's clock is at least {round((begin - here).total_seconds())} s behind the server's"
    if here >= end:
        return f"this machine's clock is at least {round((here - end).total_seconds())} s ahead of the server's"
    return ""
