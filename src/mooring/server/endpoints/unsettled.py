"""Refusal of the endpoints that issue, while ends wait to be settled."""

from __future__ import annotations

from mooring.api.mooring import ends
from mooring.api.view import Views
from mooring.errors import ServiceUnavailableError


def refuse_unsettled(views: Views) -> None:
    """Raise ServiceUnavailableError while nothing is issued (`mooring.api.mooring.ends`).

    It has no Retry-After: clients would wait for a person who settles the ends, and show nothing meanwhile.
    """
    if reason := ends.refusal(views):
        raise ServiceUnavailableError(f"nothing is issued: {reason}")
