"""Reads the audit log of a server."""

from __future__ import annotations

import json
from pathlib import Path

from mooring.apimachinery.schema import Obj


def records(path: Path) -> list[Obj]:
    """Return every record of the file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def request_records(path: Path) -> list[Obj]:
    """Return the records of requests, without those of what the server itself wrote."""
    return [record for record in records(path) if not record["userAgent"].startswith("mooring/")]
