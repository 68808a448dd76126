"""Print columns and cell words that many kinds share (docs/protocol/tables.md).

Rules kept here: cells never fail; a missing value prints a word in angle brackets.
"""

from __future__ import annotations

from datetime import datetime

from mooring.apimachinery.resource import Column
from mooring.apimachinery.schema import Obj

UNKNOWN = "<unknown>"
NONE = "<none>"


def spec_of(obj: Obj) -> Obj:
    spec: Obj = obj.get("spec") or {}
    return spec


def name_cell(obj: Obj, now: datetime) -> str:
    text: str = obj["metadata"].get("name", "")
    return text


NAME = Column("Name", name_cell, format="name", description="Name of the object, unique within its namespace.")
CREATED_AT = Column(
    "Created At",
    lambda obj, now: obj["metadata"].get("creationTimestamp"),
    type="date",
    description="When the object was created.",
)
