"""The served API, as discovery and OpenAPI documents describe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mooring.apimachinery.resource import Resource


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedApi:
    """Resources and address of one server. Documents are cached for each instance."""

    resources: Sequence[Resource]
    server_address: str
    """`host:port` under which clients reach this server."""
