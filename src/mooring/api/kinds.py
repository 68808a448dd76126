"""`KINDS`: the table of all kinds, from which discovery, OpenAPI, storage and codecs are built (law 10).

Rules kept here: a kind is declared in one file, alone or with those of its group, and is one row. A test proves
that none is missing, and that no two kinds share a plural of a group version or, aliases apart, a storage prefix.
"""

from __future__ import annotations

from mooring.api import apiextensions, coordination, discovery, rbac, readonly, reviews, storage
from mooring.api import events as eventsgroup
from mooring.api.certificates import certificatesigningrequest, clustertrustbundle, podcertificaterequest
from mooring.api.core import (
    configmap,
    endpoints,
    event,
    namespace,
    node,
    pod,
    podtemplate,
    secret,
    service,
    serviceaccount,
)
from mooring.api.kind import Kind
from mooring.api.mooring import (
    authorizedmachine,
    certificateauthorityrollover,
    certificaterevocation,
    joinrule,
    jointoken,
    lineagerecord,
    nodeidentity,
)
from mooring.apimachinery.resource import Resource

READ_ONLY: tuple[Kind, ...] = (apiextensions.KIND, *readonly.ROWS)
"""Kinds that can be read and watched, and not written (`mooring.api.readonly`)."""

_ROWS: tuple[Kind, ...] = (
    *READ_ONLY,
    configmap.KIND,
    endpoints.KIND,
    event.KIND,
    namespace.KIND,
    node.KIND,
    pod.KIND,
    podtemplate.KIND,
    secret.KIND,
    serviceaccount.KIND,
    service.KIND,
    *reviews.SELF_SUBJECT_REVIEWS,
    *reviews.TOKEN_REVIEWS,
    *reviews.KINDS,
    certificatesigningrequest.KIND,
    clustertrustbundle.KIND_V1,
    clustertrustbundle.KIND,
    podcertificaterequest.KIND_V1,
    podcertificaterequest.KIND,
    coordination.KIND,
    discovery.KIND,
    eventsgroup.KIND,
    certificateauthorityrollover.KIND,
    joinrule.KIND,
    jointoken.KIND,
    lineagerecord.KIND,
    nodeidentity.KIND,
    authorizedmachine.KIND,
    rbac.CLUSTER_ROLE_BINDING,
    rbac.CLUSTER_ROLE,
    rbac.ROLE_BINDING,
    rbac.ROLE,
    storage.KIND,
    certificaterevocation.KIND,
)

KINDS: tuple[Kind, ...] = tuple(sorted(_ROWS, key=lambda kind: (kind.resource.group, kind.resource.plural)))
"""In discovery order: the core group first, then groups and plurals by name."""

RESOURCES: tuple[Resource, ...] = tuple(kind.resource for kind in KINDS)

BY_PLURAL: dict[str, Kind] = {kind.resource.plural: kind for kind in KINDS if kind.stored}
"""Stored kinds by plural; no two stored kinds share one."""

_BY_RESOURCE = {(kind.resource.group, kind.resource.version, kind.resource.plural): kind for kind in KINDS}


def by_resource(group: str, version: str, plural: str) -> Kind | None:
    """Return the kind of one resource of the API, be it stored, virtual or an alias."""
    return _BY_RESOURCE.get((group, version, plural))


STORED_FORMS = (apiextensions.STORED_FORM,)
"""Forms in which kube-apiserver stores objects, and which no server serves."""
_FORMS: dict[str, tuple[Kind, ...]] = {
    kind.storage: tuple(one for one in (*KINDS, *STORED_FORMS) if one.storage == kind.storage)
    for kind in BY_PLURAL.values()
}


def forms(kind: Kind) -> tuple[Kind, ...]:
    """Return the kinds in whose form an object of a stored kind may be in storage: the kind itself, and others that it converts."""
    return _FORMS.get(kind.storage, (kind,))


def versions_with_same_fields(kind: Kind) -> tuple[str, ...]:
    """Return the apiVersions in which an object of a stored kind has the fields that it has in storage."""
    return tuple(form.resource.api_version for form in forms(kind) if form.alias is None or form.alias.keeps_fields)
