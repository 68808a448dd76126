"""Which part of an object an update may change: `reset_fields` puts back what it may not.

Rules kept here: a part is taken over as it is, not copied: the registry hands hooks a copy of the stored object that belongs to
this one write.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj


def reset_fields(new: Obj, old: Obj, *parts: str) -> None:
    """Make the named parts of `new`, in place, what they are in `old`: there or not there."""
    for part in parts:
        if part in old:
            new[part] = old[part]
        else:
            new.pop(part, None)
