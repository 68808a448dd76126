"""Views of a cluster without objects."""

from __future__ import annotations

from mooring.api.kinds import BY_PLURAL
from mooring.api.view import FixedView, Views

EMPTY: Views = {plural: FixedView() for plural in BY_PLURAL}
