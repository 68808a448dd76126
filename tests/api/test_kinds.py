"""The table of kinds is complete, and each declaration agrees with Kubernetes (law 4, law 10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, KINDS, READ_ONLY, RESOURCES, by_resource
from mooring.api.paths import GROUP
from mooring.api.readonly import READ_AND_DELETE_VERBS, READ_VERBS
from mooring.api.reviews import TOKEN_REQUEST
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar, Type
from tests.support.podnumbers import POD_NUMBERS
from tests.support.rows import each_row
from tests.support.servicenumbers import SERVICE_NUMBERS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
STORAGE = {
    "certificatesigningrequests": "/registry/certificatesigningrequests",
    "clustertrustbundles": "/registry/clustertrustbundles",
    "podcertificaterequests": "/registry/podcertificaterequests",
    "clusterrolebindings": "/registry/clusterrolebindings",
    "clusterroles": "/registry/clusterroles",
    "configmaps": "/registry/configmaps",
    "csidrivers": "/registry/csidrivers",
    "csinodes": "/registry/csinodes",
    "customresourcedefinitions": "/registry/apiextensions.k8s.io/customresourcedefinitions",
    "daemonsets": "/registry/daemonsets",
    "cronjobs": "/registry/cronjobs",
    "ingresses": "/registry/ingress",
    "networkpolicies": "/registry/networkpolicies",
    "poddisruptionbudgets": "/registry/poddisruptionbudgets",
    "jobs": "/registry/jobs",
    "persistentvolumeclaims": "/registry/persistentvolumeclaims",
    "persistentvolumes": "/registry/persistentvolumes",
    "deployments": "/registry/deployments",
    "endpoints": "/registry/services/endpoints",
    "endpointslices": "/registry/endpointslices",
    "events": "/registry/events",
    "leases": "/registry/leases",
    "namespaces": "/registry/namespaces",
    "nodes": "/registry/minions",
    "pods": "/registry/pods",
    "podtemplates": "/registry/podtemplates",
    "replicasets": "/registry/replicasets",
    "replicationcontrollers": "/registry/controllers",
    "rolebindings": "/registry/rolebindings",
    "roles": "/registry/roles",
    "runtimeclasses": "/registry/runtimeclasses",
    "secrets": "/registry/secrets",
    "serviceaccounts": "/registry/serviceaccounts",
    "services": "/registry/services/specs",
    "statefulsets": "/registry/statefulsets",
}
"""kube-apiserver's layout, so that an etcd can change hands."""

OWN = {kind.resource.plural for kind in KINDS if kind.resource.group == GROUP}
"""Plurals of Mooring's own kinds."""


def messages(kind: Type) -> Iterator[Message]:
    match kind:
        case Message():
            yield kind
            for field in kind.fields:
                yield from messages(field.type)
        case ListOf():
            yield from messages(kind.item)
        case MapOf():
            yield from messages(kind.value)
        case _:
            return


ALL_MESSAGES = {m.name: m for schema in (*(r.schema for r in RESOURCES), TOKEN_REQUEST) for m in messages(schema)}


def test_no_two_kinds_share_a_resource_or_a_storage_prefix() -> None:
    names = Counter((r.group, r.version, r.plural) for r in RESOURCES)
    prefixes = Counter(kind.storage for kind in KINDS if kind.stored)
    assert set(names.values()) == set(prefixes.values()) == {1}


def test_an_alias_has_the_storage_prefix_of_its_stored_kind() -> None:
    aliases = [kind for kind in KINDS if kind.alias]
    assert [kind.resource.api_version for kind in aliases] == [*["certificates.k8s.io/v1"] * 2, "events.k8s.io/v1"]
    for kind in aliases:
        stored_kind = kind.storage_kind
        assert stored_kind.stored
        assert not kind.stored
        assert not kind.virtual
        assert kind.storage == stored_kind.storage
        assert kind.resource.plural == stored_kind.resource.plural, "caches and views are found by plural"
        assert kind.resource.kind == stored_kind.resource.kind
        stored_as = (stored_kind.resource.group, stored_kind.resource.version, stored_kind.resource.kind)
        assert kind.resource.stored_as == stored_as
        assert kind.alias is not None
        assert set(kind.alias.field_labels.values()) <= set(stored_kind.field_labels)


def test_storage_prefixes_are_those_of_kube_apiserver() -> None:
    """kube-apiserver stores custom resources, which Mooring's own kinds are there, under their group and plural."""
    own = {plural: f"/registry/{GROUP}/{plural}" for plural in OWN if plural in BY_PLURAL}
    assert {plural: kind.storage for plural, kind in BY_PLURAL.items()} == STORAGE | own


def test_the_read_only_kinds_are_those_that_are_stored_and_cannot_be_created() -> None:
    assert {kind.resource.plural for kind in READ_ONLY} == {
        kind.resource.plural for kind in KINDS if kind.stored and "create" not in kind.resource.verbs
    }
    assert {kind.resource.plural: kind.resource.verbs for kind in READ_ONLY} == dict.fromkeys(
        READ_ONLY_PLURALS, READ_VERBS
    ) | dict.fromkeys(DELETED_PLURALS, READ_AND_DELETE_VERBS)


def test_every_kind_that_kube_apiserver_stores_as_protobuf_has_its_fields() -> None:
    """Test that a kind with free-form parts declares the fields below them, and that a client sees no name without a field."""
    free_form = [
        kind for kind in KINDS if kind.stored and any(f.type is Scalar.RAW for f in kind.resource.schema.fields)
    ]
    assert [kind.resource.plural for kind in free_form if not kind.is_stored_whole] == ["customresourcedefinitions"]
    assert {kind.resource.plural for kind in KINDS if kind.is_stored_whole} <= {k.resource.plural for k in free_form}
    for kind in free_form:
        if kind.is_stored_whole:
            stored, shown = ({f.name for f in one.fields} for one in (kind.storage_schema, kind.resource.schema))
            assert shown == stored
            assert not any(f.type is Scalar.RAW for one in messages(kind.storage_schema) for f in one.fields)


def test_only_keys_of_namespaced_kinds_have_a_namespace() -> None:
    assert BY_PLURAL["secrets"].key("kube-system", "s") == "/registry/secrets/kube-system/s"
    assert BY_PLURAL["nodes"].key("", "n1") == "/registry/minions/n1"
    assert BY_PLURAL["secrets"].key_prefix("kube-system") == "/registry/secrets/kube-system/"
    assert BY_PLURAL["secrets"].key_prefix() == "/registry/secrets/"


def test_reviews_are_answered_and_not_stored() -> None:
    virtual = {kind.resource.plural for kind in KINDS if kind.virtual}
    assert virtual == {
        "jointokens",
        "tokenreviews",
        "selfsubjectreviews",
        "subjectaccessreviews",
        "localsubjectaccessreviews",
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
    }
    assert all(kind.resource.verbs == ("create",) for kind in KINDS if kind.virtual)
    assert all(kind.name_errors("anything/at all") == [] for kind in KINDS if kind.virtual)


def test_a_kind_is_found_by_its_resource() -> None:
    assert by_resource("", "v1", "secrets") is BY_PLURAL["secrets"]
    tokenreviews = by_resource("authentication.k8s.io", "v1", "tokenreviews")
    assert tokenreviews is not None
    assert tokenreviews.resource.kind == "TokenReview"
    older = by_resource("authentication.k8s.io", "v1beta1", "tokenreviews")
    assert older is not None
    assert older.resource.schema.name == "io.k8s.api.authentication.v1beta1.TokenReview"
    assert by_resource("", "v1", "tokenreviews") is None


def test_short_names_are_those_of_kubernetes() -> None:
    assert {r.plural: r.short_names for r in RESOURCES if r.short_names and r.plural not in OWN} == {
        "certificatesigningrequests": ("csr",),
        "configmaps": ("cm",),
        "customresourcedefinitions": ("crd", "crds"),
        "daemonsets": ("ds",),
        "cronjobs": ("cj",),
        "ingresses": ("ing",),
        "networkpolicies": ("netpol",),
        "poddisruptionbudgets": ("pdb",),
        "persistentvolumeclaims": ("pvc",),
        "persistentvolumes": ("pv",),
        "deployments": ("deploy",),
        "endpoints": ("ep",),
        "events": ("ev",),
        "namespaces": ("ns",),
        "nodes": ("no",),
        "pods": ("po",),
        "replicasets": ("rs",),
        "replicationcontrollers": ("rc",),
        "serviceaccounts": ("sa",),
        "services": ("svc",),
        "statefulsets": ("sts",),
    }


def test_the_category_all_is_that_of_kubernetes() -> None:
    """HorizontalPodAutoscalers, which are not served, complete the list."""
    assert {r.plural for r in RESOURCES if "all" in r.categories} == {
        "pods", "replicationcontrollers", "services", "daemonsets", "deployments", "replicasets", "statefulsets",
        "cronjobs", "jobs",
    }  # fmt: skip


def test_subresources_are_those_of_kubernetes() -> None:
    verbs = {f"{r.plural}/{s.name}": " ".join(s.verbs) for r in RESOURCES for s in r.subresources}
    assert verbs == {
        "certificateauthorityrollovers/status": "get patch update",
        "certificatesigningrequests/approval": "get patch update",
        "certificatesigningrequests/status": "get patch update",
        "joinrules/status": "get patch update",
        "namespaces/finalize": "update",
        "namespaces/status": "get patch update",
        "nodeidentities/status": "get patch update",
        "nodes/status": "get patch update",
        "podcertificaterequests/status": "get patch update",
        "pods/status": "get patch update",
        "serviceaccounts/token": "create",
        "services/status": "get patch update",
    }


def test_every_subresource_that_updates_has_a_policy() -> None:
    for kind in KINDS:
        updatable = {s.name for s in kind.resource.subresources if "update" in s.verbs}
        assert set(kind.subresources or {}) == updatable


def test_create_on_update_and_unconditional_update_are_those_of_kubernetes() -> None:
    assert {plural for plural, kind in BY_PLURAL.items() if not kind.allow_unconditional_update} - OWN == {
        "clustertrustbundles",
        "podcertificaterequests",
        "leases",
        "csinodes",
    }
    assert {plural for plural, kind in BY_PLURAL.items() if kind.allow_create_on_update} == {
        "leases", "endpoints", "events", "services", "roles", "clusterroles", "rolebindings", "clusterrolebindings",
    }  # fmt: skip


def test_the_response_to_a_delete_is_that_of_kubernetes() -> None:
    assert {plural for plural, kind in BY_PLURAL.items() if kind.resource.returns_deleted} == {
        "csinodes", "pods", "podtemplates", "serviceaccounts", "services",
    }  # fmt: skip


READ_ONLY_PLURALS = {
    "cronjobs", "csidrivers", "customresourcedefinitions", "daemonsets", "deployments", "ingresses", "jobs", "networkpolicies",
    "persistentvolumeclaims", "persistentvolumes", "poddisruptionbudgets", "replicasets", "replicationcontrollers",
    "runtimeclasses", "statefulsets",
}  # fmt: skip


DELETED_PLURALS = {"networkpolicies", "poddisruptionbudgets"}
"""Read-only kinds of which earlier versions stored objects."""


def test_namespaces_and_read_only_kinds_have_no_deletecollection() -> None:
    without = [p for p, kind in BY_PLURAL.items() if "deletecollection" not in kind.resource.verbs]
    assert sorted(without) == sorted(["namespaces", *READ_ONLY_PLURALS - DELETED_PLURALS])


def test_read_only_kinds() -> None:
    read_only = {r.plural for r in RESOURCES if set(r.verbs) <= {"get", "list", "watch", "delete", "deletecollection"}}
    assert read_only == READ_ONLY_PLURALS, "docs/adr/0015, docs/adr/0090"


COLUMNS = {
    "secrets": "Name Type Data Age",
    "configmaps": "Name Data Age",
    "serviceaccounts": "Name Age",
    "services": "Name Type Cluster-IP External-IP Port(s) Age | Selector",
    "endpoints": "Name Endpoints Age",
    "endpointslices": "Name AddressType Ports Endpoints Age",
    "namespaces": "Name Status Age",
    "pods": "Name Ready Status Restarts Age | IP Node Nominated·Node Readiness·Gates",
    "podtemplates": "Name Containers Images Pod·Labels",
    "nodes": "Name Status Roles Age Version | Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
    "certificatesigningrequests": "Name Age SignerName Requestor RequestedDuration Condition",
    "podcertificaterequests": "Name PodName ServiceAccountName NodeName SignerName State | UnverifiedUserAnnotations",
    "roles": "Name Created·At",
    "clusterroles": "Name Created·At",
    "rolebindings": "Name Role Age | Users Groups ServiceAccounts",
    "clusterrolebindings": "Name Role Age | Users Groups ServiceAccounts",
    "leases": "Name Holder Age",
    "csinodes": "Name Drivers Age",
    "customresourcedefinitions": "Name Created·At",
    **dict.fromkeys(("csidrivers", "runtimeclasses", "replicationcontrollers", "replicasets"), "Name Age"),
    **dict.fromkeys(
        ("daemonsets", "deployments", "statefulsets", "networkpolicies", "poddisruptionbudgets"), "Name Age"
    ),
    "events": "Last·Seen Type Reason Object Message | Subobject Source First·Seen Count Name",
}


@each_row("plural", COLUMNS)
def test_columns_are_those_of_kubernetes(plural: str) -> None:
    columns = BY_PLURAL[plural].resource.columns
    narrow = [c.name.replace(" ", "·") for c in columns if not c.priority]
    wide = [c.name.replace(" ", "·") for c in columns if c.priority]
    assert " ".join(narrow) + (" | " + " ".join(wide) if wide else "") == COLUMNS[plural]


@each_row("kind", KINDS, lambda kind: kind.resource.plural)
def test_an_empty_object_prints_and_validates_without_failing(kind: Kind) -> None:
    obj = {"metadata": {"name": "x"}, "spec": {}}
    for column in kind.resource.columns:
        column.cell(obj, NOW)
        assert column.description
    kind.validate(obj)
    kind.validate_create(obj)
    assert tuple(kind.alias.field_labels if kind.alias else kind.selectable_fields(obj)) == kind.field_labels


SELECTABLE = {
    "secrets": "type",
    "namespaces": "name status.phase",
    "nodes": "spec.unschedulable",
    "services": "spec.clusterIP spec.type",
    "pods": "spec.hostNetwork spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName "
    "status.nominatedNodeName status.phase status.podIP status.podIPs",
    "certificatesigningrequests": "spec.signerName",
    "clustertrustbundles": "spec.signerName",
    "podcertificaterequests": "spec.nodeName spec.podName spec.signerName",
    "events": "involvedObject.apiVersion involvedObject.fieldPath involvedObject.kind involvedObject.name "
    "involvedObject.namespace involvedObject.resourceVersion involvedObject.uid reason reportingComponent source type",
}


@each_row("plural", BY_PLURAL)
def test_selectable_fields_are_those_of_kubernetes(plural: str) -> None:
    assert " ".join(sorted(BY_PLURAL[plural].field_labels)) == SELECTABLE.get(plural, "")


@each_row("message", ALL_MESSAGES.values(), lambda message: message.name)
def test_every_message_is_documented_and_numbered(message: Message) -> None:
    assert message.doc.endswith(".")
    assert len({(field.within, field.number) for field in message.fields}) == len(message.fields)
    assert not message.embedded.keys() & {field.number for field in message.fields if not field.within}
    assert len(message.fields) == len(message.by_name)
    for field in message.fields:
        assert field.number > 0, field.name
        assert field.doc.endswith("."), f"{message.name}.{field.name} has no sentence"


def test_every_embedded_struct_has_a_name() -> None:
    for message in ALL_MESSAGES.values():
        assert {field.name for field in message.fields if field.embedded} == {
            field.name for field in message.fields if field.within
        }


@each_row("resource", RESOURCES, lambda resource: resource.plural)
def test_every_kind_has_its_metadata_first(resource: Resource) -> None:
    field: Field = resource.schema.by_name["metadata"]
    assert field.number == 1
    assert resource.schema.name.endswith(f".{resource.version}.{resource.kind}")


POD_REQUEST_NUMBERS = (
    "signerName1 podName2 podUID3 serviceAccountName4 serviceAccountUID5 nodeName6 nodeUID7 maxExpirationSeconds8 "
    "unverifiedUserAnnotations11 stubPKCS10Request12"
)
NUMBERS = {
    "core.v1.Secret": "metadata1 data2 type3 stringData4 immutable5",
    "core.v1.ConfigMap": "metadata1 data2 binaryData3 immutable4",
    "core.v1.ServiceAccount": "metadata1 secrets2 imagePullSecrets3 automountServiceAccountToken4",
    "core.v1.Namespace": "metadata1 spec2 status3",
    "core.v1.NamespaceStatus": "phase1 conditions2",
    "core.v1.NamespaceCondition": "type1 status2 lastTransitionTime4 reason5 message6",
    "core.v1.ObjectReference": "kind1 namespace2 name3 uid4 apiVersion5 resourceVersion6 fieldPath7",
    "events.v1.Event": "metadata1 eventTime2 series3 reportingController4 reportingInstance5 action6 reason7 regarding8 "
    "related9 note10 type11 deprecatedSource12 deprecatedFirstTimestamp13 deprecatedLastTimestamp14 deprecatedCount15",
    "events.v1.EventSeries": "count1 lastObservedTime2",
    "core.v1.Event": "metadata1 involvedObject2 reason3 message4 source5 firstTimestamp6 lastTimestamp7 count8 type9 "
    "eventTime10 series11 action12 related13 reportingComponent14 reportingInstance15",
    **POD_NUMBERS,
    "core.v1.Node": "metadata1 spec2 status3",
    "core.v1.NodeSpec": "podCIDR1 externalID2 providerID3 unschedulable4 taints5 configSource6 podCIDRs7",
    "core.v1.NodeStatus": "capacity1 allocatable2 phase3 conditions4 addresses5 daemonEndpoints6 nodeInfo7 images8 "
    "volumesInUse9 volumesAttached10 config11 runtimeHandlers12 features13 declaredFeatures14",
    "core.v1.NodeCondition": "type1 status2 lastHeartbeatTime3 lastTransitionTime4 reason5 message6",
    "core.v1.NodeSystemInfo": "machineID1 systemUUID2 bootID3 kernelVersion4 osImage5 containerRuntimeVersion6 "
    "kubeletVersion7 kubeProxyVersion8 operatingSystem9 architecture10 swap11",
    "core.v1.DaemonEndpoint": "Port1",
    "core.v1.Taint": "key1 value2 effect3 timeAdded4",
    **SERVICE_NUMBERS,
    "storage.v1.CSINode": "metadata1 spec2",
    "storage.v1.CSINodeSpec": "drivers1",
    "storage.v1.CSINodeDriver": "name1 nodeID2 topologyKeys3 allocatable4",
    "storage.v1.VolumeNodeResources": "count1",
    "coordination.v1.LeaseSpec": "holderIdentity1 leaseDurationSeconds2 acquireTime3 renewTime4 leaseTransitions5 "
    "strategy6 preferredHolder7",
    "certificates.v1.CertificateSigningRequest": "metadata1 spec2 status3",
    "certificates.v1.CertificateSigningRequestSpec": "request1 username2 uid3 groups4 usages5 extra6 signerName7 "
    "expirationSeconds8",
    "certificates.v1.CertificateSigningRequestStatus": "conditions1 certificate2",
    "certificates.v1.CertificateSigningRequestCondition": "type1 reason2 message3 lastUpdateTime4 lastTransitionTime5 status6",
    "certificates.v1.PodCertificateRequestSpec": POD_REQUEST_NUMBERS,
    "certificates.v1beta1.PodCertificateRequestSpec": POD_REQUEST_NUMBERS.replace(
        " unver", " pkixPublicKey9 proofOfPossession10 unver"
    ),
    "certificates.v1.PodCertificateRequestStatus": "conditions1 certificateChain2 notBefore4 beginRefreshAt5 notAfter6",
    **{f"certificates.{version}.ClusterTrustBundle": "metadata1 spec2" for version in ("v1", "v1beta1")},
    **{f"certificates.{version}.ClusterTrustBundleSpec": "signerName1 trustBundle2" for version in ("v1", "v1beta1")},
    "rbac.v1.PolicyRule": "verbs1 apiGroups2 resources3 resourceNames4 nonResourceURLs5",
    "rbac.v1.Subject": "kind1 apiGroup2 name3 namespace4",
    "rbac.v1.RoleRef": "apiGroup1 kind2 name3",
    "rbac.v1.ClusterRole": "metadata1 rules2 aggregationRule3",
    "rbac.v1.ClusterRoleBinding": "metadata1 subjects2 roleRef3",
    "authentication.v1.TokenRequestSpec": "audiences1 boundObjectRef3 expirationSeconds4 attestations5",
    "authentication.v1.TokenRequestStatus": "token1 expirationTimestamp2",
    "authentication.v1.BoundObjectReference": "kind1 apiVersion2 name3 uid4",
    "authentication.v1.TokenReviewSpec": "token1 audiences2",
    "authentication.v1.TokenReviewStatus": "authenticated1 user2 error3 audiences4",
    "authentication.v1.UserInfo": "username1 uid2 groups3 extra4",
    "authorization.v1.SubjectAccessReviewSpec": "resourceAttributes1 nonResourceAttributes2 user3 groups4 extra5 uid6",
    "authorization.v1.SubjectAccessReviewStatus": "allowed1 reason2 evaluationError3 denied4",
    "authorization.v1.ResourceAttributes": "namespace1 verb2 group3 version4 resource5 subresource6 name7 "
    "fieldSelector8 labelSelector9",
    "authorization.v1.SubjectRulesReviewStatus": "resourceRules1 nonResourceRules2 incomplete3 evaluationError4",
}
"""Vectors: generated.proto of k8s.io/api (docs/protocol/negotiation.md#field-numbers)."""


@each_row("name", NUMBERS)
def test_field_numbers_are_those_of_kubernetes(name: str) -> None:
    fields = sorted(ALL_MESSAGES[f"io.k8s.api.{name}"].fields, key=lambda field: (field.within, field.number))
    within = [f"{field.within}." if field.within else "" for field in fields]
    numbers = [f"{field.name}{outer}{field.number}" for field, outer in zip(fields, within, strict=True)]
    assert " ".join(numbers) == NUMBERS[name]


PATCH_KEYS = {
    "policy.v1.PodDisruptionBudgetStatus": {"conditions": "type"},
    "core.v1.ServiceAccount": {"secrets": "name"},
    "core.v1.NodeStatus": {"conditions": "type", "addresses": "type"},
    "core.v1.NodeSpec": {"podCIDRs": ""},
    "core.v1.NamespaceStatus": {"conditions": "type"},
    "core.v1.PodSpec": {
        "containers": "name",
        "ephemeralContainers": "name",
        "hostAliases": "ip",
        "imagePullSecrets": "name",
        "initContainers": "name",
        "resourceClaims": "name",
        "schedulingGates": "name",
        "topologySpreadConstraints": "topologyKey",
        "volumes": "name",
    },
    **{
        f"core.v1.{container}": {
            "env": "name",
            "ports": "containerPort",
            "volumeDevices": "devicePath",
            "volumeMounts": "mountPath",
        }
        for container in ("Container", "EphemeralContainer")
    },
    "core.v1.ServiceSpec": {"ports": "port"},
    "core.v1.ServiceStatus": {"conditions": "type"},
    "core.v1.ContainerStatus": {"allocatedResourcesStatus": "name", "volumeMounts": "mountPath"},
    "core.v1.PodStatus": {"conditions": "type", "hostIPs": "ip", "podIPs": "ip", "resourceClaimStatuses": "name"},
    "storage.v1.CSINodeSpec": {"drivers": "name"},
    **{f"certificates.{version}.PodCertificateRequestStatus": {"conditions": "type"} for version in ("v1", "v1beta1")},
}
"""Lists that strategic merge patches merge (docs/protocol/patches.md); every other list here is replaced."""


def test_patch_keys_are_those_of_kubernetes() -> None:
    merged = {
        name.removeprefix("io.k8s.api."): {f.name: f.patch_key for f in message.fields if f.patch == "merge"}
        for name, message in ALL_MESSAGES.items()
        if name.startswith("io.k8s.api.")
    }
    assert {name: keys for name, keys in merged.items() if keys} == PATCH_KEYS


def test_the_creators_of_objects_that_machines_write_are_not_recorded() -> None:
    # docs/adr/0013
    untracked = {kind.resource.plural for kind in KINDS if kind.stored and not kind.tracks_creator({})}
    assert untracked == {
        "certificatesigningrequests",
        "csinodes",
        "events",
        "leases",
        "lineagerecords",
        "nodeidentities",
        "nodes",
        "podcertificaterequests",
    }


@pytest.mark.parametrize(("secret_type", "tracked"), [("bootstrap.kubernetes.io/token", False), ("Opaque", True)])
def test_the_creator_of_a_secret_is_recorded_unless_it_is_a_bootstrap_token(secret_type: str, tracked: bool) -> None:
    assert BY_PLURAL["secrets"].tracks_creator({"type": secret_type}) is tracked
