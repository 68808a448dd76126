"""`Attributes`: the request properties that authorizers decide on.

The meaning of each is in docs/protocol/requests.md#attributes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mooring.identity import UserInfo


# not frozen, although never changed: every request creates one, and freezing costs a microsecond
@dataclass(slots=True, kw_only=True)
class Attributes:
    """Attributes of a resource request or, when `resource` is empty, of a request for `path`.

    `verb`: get list watch create update patch delete deletecollection, or any custom verb of a review; for paths the lower
    case HTTP method. `name` is "" for create, and for list/watch unless a metadata.name field selector names one object.
    `field_selector`/`label_selector`: the raw texts, for authorizers that use them.
    """

    user: UserInfo
    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    field_selector: str = ""
    label_selector: str = ""
