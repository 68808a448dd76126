"""Reset of fields that an update may not change, for the `prepare_for_update` hooks.

Rules kept here: values are shared with the stored object, not copied, because hooks get a copy of it for this one write.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj


def reset_fields(new: Obj, old: Obj, *names: str) -> None:
    """Set the named fields of `new`, in place, to their values in `old`; fields absent in `old` are removed."""
    for name in names:
        if name in old:
            new[name] = old[name]
        else:
            new.pop(name, None)
