"""Warnings about accepted objects; the texts are those of kube-apiserver 1.36."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mooring.api.core.addresses import address_warnings, range_warnings
from mooring.api.core.pod.warnings import MAX_WARNINGS
from mooring.api.kinds import BY_PLURAL
from mooring.apimachinery.codec.zerofields import complete
from mooring.apimachinery.schema import Obj
from tests.support.changes import created

CONTAINER: Obj = {"name": "c", "image": "i"}
FIRST = "spec.containers[0]"
NULL = "a null labelSelector results in matching no pod"
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def pod(spec: Obj, annotations: dict[str, str] | None = None, name: str = "p") -> Obj:
    obj = {"metadata": {"name": name, "annotations": annotations or {}}, "spec": {"containers": [CONTAINER], **spec}}
    return copy.deepcopy(obj)


def container(**members: Any) -> Obj:
    return {"containers": [{**CONTAINER, **members}]}


def volume(**source: Any) -> Obj:
    return {"volumes": [{"name": "v", **source}]}


def node_affinity(**terms: Any) -> Obj:
    return {"affinity": {"nodeAffinity": terms}}


def ports(*listed: Obj) -> Obj:
    return container(ports=[{"containerPort": 80, "protocol": "TCP", **port} for port in listed])


OLD = "beta.kubernetes.io/arch"
ARCH = 'deprecated since v1.14; use "kubernetes.io/arch" instead'
NO_BYTES = 'fractional byte value "100m" is invalid, must be an integer'
SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
TWO_PATHS = {"items": [{"key": "a", "path": "d"}, {"key": "b", "path": "d/f"}, {"key": "c", "path": "e"}]}


@pytest.mark.parametrize(
    ("spec", "annotations", "warnings"),
    [
        pytest.param({"nodeSelector": {"a": "b"}}, {}, [], id="nothing"),
        pytest.param(
            {"nodeSelector": {OLD: "x"}},
            {},
            [f"spec.nodeSelector[beta.kubernetes.io/arch]: {ARCH}"],
            id="a label",
        ),
        pytest.param(
            node_affinity(
                **{REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "beta.kubernetes.io/arch"}]}]}}
            ),
            {},
            [
                f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].key: "
                f"beta.kubernetes.io/arch is {ARCH}"
            ],
            id="a label that is required",
        ),
        pytest.param(
            node_affinity(
                **{PREFERRED: [{"preference": {"matchExpressions": [{"key": "a", "values": ["b", "a b"]}]}}]}
            ),
            {},
            [
                f"spec.affinity.nodeAffinity.{PREFERRED}[0].preference.matchExpressions[0].values[1]: a b is invalid, a valid "
                "label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with "
                "an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
                "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ],
            id="a preferred value that no label has",
        ),
        pytest.param(
            {"topologySpreadConstraints": [{"topologyKey": "beta.kubernetes.io/arch"}, {"labelSelector": {}}]},
            {},
            [
                f"spec.topologySpreadConstraints[0].topologyKey: beta.kubernetes.io/arch is {ARCH}",
                f"spec.topologySpreadConstraints[0].labelSelector: {NULL}",
            ],
            id="spread by a label",
        ),
        pytest.param(
            {},
            {"scheduler.alpha.kubernetes.io/critical-pod": ""},
            [
                "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: "
                'non-functional in v1.16+; use the "priorityClassName" field instead'
            ],
            id="an annotation",
        ),
        pytest.param(
            volume(gitRepo={}),
            {},
            ["spec.volumes[0].gitRepo: deprecated in v1.11, and disabled by default in v1.33+"],
            id="a volume that nothing mounts",
        ),
        pytest.param(
            volume(ephemeral={"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "100m"}}}}}),
            {},
            [f"spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]: {NO_BYTES}"],
            id="a part of a byte of storage",
        ),
        pytest.param(volume(ephemeral={}), {}, [], id="an ephemeral volume without a claim"),
        pytest.param({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w"}]}, {}, [], id="volumes without files"),
        pytest.param(
            volume(configMap={"name": "m", **TWO_PATHS}),
            {},
            ['volume "v" (ConfigMap "m"): overlapping paths: "d/f" with "d"'],
            id="files of a ConfigMap below each other",
        ),
        pytest.param(
            volume(secret={"secretName": "s", **TWO_PATHS}),
            {},
            ['volume "v" (Secret "s"): overlapping paths: "d/f" with "d"'],
            id="files of a Secret below each other",
        ),
        pytest.param(
            volume(downwardAPI={"items": [{"path": "a/"}, {"path": "a"}, {"path": "/"}, {"path": ""}]}),
            {},
            ['volume "v" (DownwardAPI): overlapping paths: "a" with "a"'],
            id="a file twice",
        ),
        pytest.param(
            volume(
                projected={
                    "sources": [
                        {},
                        {"serviceAccountToken": {"path": "a/b"}},
                        {"configMap": {"name": "m", "items": [{"path": "a"}]}},
                        {"downwardAPI": {"items": [{"path": "x"}]}},
                        {"clusterTrustBundle": {"path": "x/y", "signerName": "s"}},
                        {"podCertificate": {"keyPath": "x/y"}},
                    ]
                }
            ),
            {},
            [
                'volume "v" (Projected) has no sources provided',
                'volume "v" (Projected): overlapping paths: "a" (ConfigMap "m") with "a/b" (ServiceAccountToken)',
                'volume "v" (Projected): overlapping paths: "x/y" (ClusterTrustBundle "s") with "x" (DownwardAPI)',
                'volume "v" (Projected): overlapping paths: "x/y" (PodCertificate key) with "x" (DownwardAPI)',
                'volume "v" (Projected): overlapping paths: "x/y" (PodCertificate key) with "x/y" (ClusterTrustBundle "s")',
            ],
            id="projected files",
        ),
        pytest.param(
            {"hostAliases": [{"ip": "1.1.1.1"}, {"ip": "1.1.1.1"}]},
            {},
            ['spec.hostAliases[1].ip: duplicate ip "1.1.1.1"'],
            id="an address twice",
        ),
        pytest.param(
            {"imagePullSecrets": [{"name": "a"}, {"name": "a"}, {}]},
            {},
            [
                'spec.imagePullSecrets[1].name: duplicate name "a"',
                'spec.imagePullSecrets[2].name: invalid empty name ""',
            ],
            id="secrets for images",
        ),
        pytest.param({"overhead": {"memory": "100m"}}, {}, [f"spec.overhead[memory]: {NO_BYTES}"], id="overhead"),
        pytest.param(
            {},
            {"seccomp.security.alpha.kubernetes.io/pod": "x", "container.seccomp.security.alpha.kubernetes.io/c": "x"},
            [
                f"metadata.annotations[seccomp.security.alpha.kubernetes.io/pod]: {SECCOMP}",
                f"metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: {SECCOMP}",
            ],
            id="seccomp by annotation",
        ),
        pytest.param({}, {"container.apparmor.security.beta.kubernetes.io/c": "x"}, [], id="AppArmor by annotation"),
        pytest.param(
            container(
                resources={"limits": {"memory": "100m"}, "requests": {"memory": "1k", "ephemeral-storage": "100m"}}
            ),
            {},
            [
                f"{FIRST}.resources.limits[memory]: {NO_BYTES}",
                f"{FIRST}.resources.requests[ephemeral-storage]: {NO_BYTES}",
            ],
            id="parts of bytes",
        ),
        pytest.param(
            container(
                env=[
                    {"name": "A", "value": "1"},
                    {"name": "A", "value": "$(A)2"},
                    {"name": "A", "value": "$(A)"},
                    {"name": "A", "valueFrom": {}},
                    {"name": "A", "value": "3"},
                ]
            ),
            {},
            [
                f'{FIRST}.env[{index}]: hides previous definition of "A", which may be dropped when using apply'
                for index in (2, 3, 4)
            ],
            id="a variable that hides another",
        ),
        pytest.param(
            ports({"hostIP": "1.1.1.1"}),
            {},
            [
                f"{FIRST}.ports[0]: hostIP set without hostPort: "
                "{Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.1.1.1}"
            ],
            id="an address of the host without its port",
        ),
        pytest.param(
            ports({}, {}, {"hostPort": 1}, {"hostPort": 1, "hostIP": "1.1.1.1"}, {"hostPort": 2}),
            {},
            [
                f"{FIRST}.ports[1]: duplicate port definition with {FIRST}.ports[0]",
                f"{FIRST}.ports[2]: overlapping port definition with {FIRST}.ports[0]",
                f"{FIRST}.ports[2]: overlapping port definition with {FIRST}.ports[1]",
                f"{FIRST}.ports[3]: overlapping port definition with {FIRST}.ports[0]",
                f"{FIRST}.ports[3]: overlapping port definition with {FIRST}.ports[1]",
                f"{FIRST}.ports[3]: dangerously ambiguous port definition with {FIRST}.ports[2]",
                f"{FIRST}.ports[4]: overlapping port definition with {FIRST}.ports[0]",
                f"{FIRST}.ports[4]: overlapping port definition with {FIRST}.ports[1]",
            ],
            id="a port again and again",
        ),
        pytest.param(
            container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
            {},
            [
                f'{FIRST}.ports[1]: duplicate port name "a" with {FIRST}.ports[0], services and probes that select ports by name '
                f"will use {FIRST}.ports[0]"
            ],
            id="a name of a port twice",
        ),
        pytest.param(
            {"terminationGracePeriodSeconds": -1},
            {},
            ["spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"],
            id="negative time of grace",
        ),
        pytest.param(
            {
                "affinity": {
                    "podAffinity": {REQUIRED: [{}, {"labelSelector": {}}]},
                    "podAntiAffinity": {PREFERRED: [{}]},
                }
            },
            {},
            [
                f"spec.affinity.podAffinity.{REQUIRED}[0].labelSelector: {NULL}",
                f"spec.affinity.podAntiAffinity.{PREFERRED}[0].podAffinityTerm.labelSelector: {NULL}",
            ],
            id="affinity to no Pod",
        ),
        pytest.param(
            {"affinity": {"podAffinity": {PREFERRED: [{"podAffinityTerm": {"labelSelector": {}}}]}}},
            {},
            [],
            id="to all",
        ),
        pytest.param(
            {"dnsConfig": {"nameservers": ["::ffff:1.2.3.4"]}, "hostAliases": [{"ip": "1::0"}]},
            {},
            [
                'spec.dnsConfig.nameservers[0]: non-standard IP address "::ffff:1.2.3.4" is invalid: use "1.2.3.4"',
                'spec.hostAliases[0].ip: IPv6 address "1::0" should be in RFC 5952 canonical format ("1::")',
            ],
            id="addresses in other forms",
        ),
    ],
)
def test_warnings_about_pods_and_templates(spec: Obj, annotations: dict[str, str], warnings: list[str]) -> None:
    kinds = BY_PLURAL["pods"], BY_PLURAL["podtemplates"]
    new = pod(spec, annotations)
    template: Obj = {"metadata": {"generation": 2}, "template": copy.deepcopy(new)}
    for kind, obj in zip(kinds, (new, template), strict=True):
        complete(obj, kind.resource.schema)
    assert kinds[0].warnings(new, None) == warnings
    assert kinds[0].warnings(new, new) == []
    before = {"metadata": {"generation": 1}}
    extra = [warning for warning in kinds[1].warnings(template, before) if "apparmor" not in warning]
    prefixed = [warning if warning.startswith("volume") else f"template.{warning}" for warning in warnings]
    assert [
        warning.replace("with template.", "with ").replace("use template.", "use ") for warning in extra
    ] == prefixed
    assert kinds[1].warnings(template, template) == []


APPARMOR = "container.apparmor.security.beta.kubernetes.io/c"


@pytest.mark.parametrize(
    ("profile", "annotation", "warnings"),
    [
        (None, "runtime/default", True),
        ({"type": "RuntimeDefault"}, "runtime/default", False),
        ({"type": "Unconfined"}, "runtime/default", True),
        ({"type": "Unconfined"}, "unconfined", False),
        ({"type": "Localhost", "localhostProfile": "a"}, "localhost/a", False),
        ({"type": "Localhost"}, "localhost/", True),
    ],
)
def test_apparmor_annotations_of_a_template(profile: Obj | None, annotation: str, warnings: bool) -> None:
    spec = {"securityContext": {"appArmorProfile": profile}} if profile else {}
    template = {"metadata": {}, "template": pod(spec, {APPARMOR: annotation})}
    warning = (
        f'template.metadata.annotations[{APPARMOR}]: deprecated since v1.30; use the "appArmorProfile" field instead'
    )
    assert BY_PLURAL["podtemplates"].warnings(template, None) == ([warning] if warnings else [])
    template["template"]["spec"]["containers"][0]["securityContext"] = {"appArmorProfile": {"type": "Unconfined"}}
    assert BY_PLURAL["podtemplates"].warnings(template, None) == []


def test_a_pod_name_that_is_no_dns_label() -> None:
    warnings = BY_PLURAL["pods"].warnings(pod({}, name="a.b"), None)
    hint = "this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended"
    assert [warning[: len(hint) + 15] for warning in warnings] == [f"metadata.name: {hint}"]


def test_warnings_and_what_is_compared_are_bounded() -> None:
    many = pod(ports(*({"hostPort": number} for number in (1, 2) * 5_000)))
    assert len(BY_PLURAL["pods"].warnings(many, None)) == MAX_WARNINGS
    paths = [{"key": "a", "path": f"f{number}"} for number in range(5_000)]
    assert BY_PLURAL["pods"].warnings(pod(volume(configMap={"items": paths})), None) == []
    apart = pod(ports(*({"hostPort": number} for number in range(1, 5_000))))
    assert BY_PLURAL["pods"].warnings(apart, None) == []


def test_addresses_in_a_status_of_a_pod() -> None:
    policy = (BY_PLURAL["pods"].subresources or {})["status"]
    status = {"podIPs": [{"ip": "1::0"}], "hostIPs": [{"ip": "1.1.1.1"}]}
    assert policy.warnings({"status": status}, {}) == [
        'status.podIPs[0].ip: IPv6 address "1::0" should be in RFC 5952 canonical format ("1::")'
    ]


def service(**spec: Any) -> Obj:
    return {"spec": {"ports": [{"port": 80}], **spec}}


CLOSE = 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'
SLOPPY = 'IPv6 address "1::0" should be in RFC 5952 canonical format ("1::")'


@pytest.mark.parametrize(
    ("plural", "obj", "warnings"),
    [
        pytest.param("services", service(), [], id="a Service"),
        pytest.param("services", service(trafficDistribution="PreferClose"), [CLOSE], id="PreferClose"),
        pytest.param(
            "services",
            {"metadata": {"annotations": {"service.kubernetes.io/topology-aware-hints": "auto"}}, **service()},
            [
                "annotation service.kubernetes.io/topology-aware-hints is deprecated, please use "
                "service.kubernetes.io/topology-mode instead"
            ],
            id="topology hints",
        ),
        pytest.param(
            "services",
            service(externalIPs=["1.2.3.4"]),
            ["spec.externalIPs is deprecated and may no longer be implemented in some clusters"],
            id="external addresses",
        ),
        pytest.param(
            "services",
            service(clusterIP="None", externalIPs=["1.2.3.4"], loadBalancerIP="1::0", sessionAffinity="ClientIP"),
            [
                "spec.loadBalancerIP is ignored for headless services",
                "spec.externalIPs is ignored for headless services",
                "spec.SessionAffinity is ignored for headless services",
                f"spec.loadBalancerIP: {SLOPPY}",
            ],
            id="headless",
        ),
        pytest.param("services", service(clusterIP="None"), [], id="headless and nothing else"),
        pytest.param(
            "services",
            service(type="ExternalName", externalName="a", externalIPs=["1.2.3.4"]),
            ['spec.externalIPs is ignored when spec.type is "ExternalName"'],
            id="a name with addresses",
        ),
        pytest.param(
            "services",
            service(type="LoadBalancer", externalName="a", loadBalancerSourceRanges=["1.2.3.4/8"], clusterIPs=["1::0"]),
            [
                f"spec.clusterIPs[0]: {SLOPPY}",
                'spec.loadBalancerSourceRanges[0]: CIDR value "1.2.3.4/8" is ambiguous in this context (should be "1.0.0.0/8" or '
                '"1.2.3.4/32"?)',
                'spec.externalName is ignored when spec.type is not "ExternalName"',
            ],
            id="a balancer with a name",
        ),
        pytest.param(
            "nodes",
            {"spec": {"configSource": {}, "externalID": "x", "podCIDRs": ["1::0/64"]}},
            [
                "spec.configSource: the feature is removed",
                "spec.externalID: this field is deprecated, and is unused by Kubernetes",
                'spec.podCIDRs[0]: IPv6 CIDR value "1::0/64" should be in RFC 5952 canonical format ("1::/64")',
            ],
            id="a Node",
        ),
        pytest.param("nodes", {"spec": {"podCIDRs": ["10.0.0.0/8"]}}, [], id="a Node that nothing is wrong with"),
        pytest.param(
            "endpoints",
            {"subsets": [{"addresses": [{"ip": "1::0"}], "notReadyAddresses": [{"ip": "1.1.1.1"}]}]},
            [f"subsets[0].addresses[0].ip: {SLOPPY}"],
            id="Endpoints",
        ),
        pytest.param(
            "endpoints",
            {
                "metadata": {"labels": {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}},
                "subsets": [{"addresses": [{"ip": "1::0"}]}],
            },
            [],
            id="Endpoints of the controller",
        ),
        pytest.param(
            "endpointslices",
            {"addressType": "FQDN", "endpoints": [{"addresses": ["a.b"]}]},
            ["spec.addressType: FQDN endpoints are deprecated"],
            id="a slice of names",
        ),
        pytest.param(
            "endpointslices",
            {"addressType": "IPv6", "endpoints": [{"addresses": ["1::0"]}]},
            [f"endpoints[0].addresses[0]: {SLOPPY}"],
            id="a slice of addresses",
        ),
        pytest.param(
            "endpointslices",
            {
                "metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
                "endpoints": [{"addresses": ["1::0"]}],
            },
            [],
            id="a slice of the controller",
        ),
    ],
)
def test_warnings_of_other_kinds(plural: str, obj: Obj, warnings: list[str]) -> None:
    kind = BY_PLURAL[plural]
    made, _ = created(kind, copy.deepcopy(obj))
    complete(made, kind.resource.schema)
    made["spec"] = made.get("spec", {}) | {
        key: value for key, value in obj.get("spec", {}).items() if key == "clusterIPs"
    }
    assert kind.warnings(made, None) == warnings


def test_a_new_annotation_of_a_service_account() -> None:
    kind = BY_PLURAL["serviceaccounts"]
    marked: Obj = {"metadata": {"annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}}}
    bare: Obj = {"metadata": {}}
    warnings = [
        "metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to "
        "isolate access to mounted secrets"
    ]
    assert [kind.warnings(marked, None), kind.warnings(marked, bare)] == [warnings, warnings]
    assert [kind.warnings(marked, marked), kind.warnings(bare, None)] == [[], []]


def test_addresses_in_a_status_of_a_service() -> None:
    policy = (BY_PLURAL["services"].subresources or {})["status"]
    ways: Obj = {"status": {"loadBalancer": {"ingress": [{"ip": "1::0"}, {"hostname": "a"}]}}}
    assert policy.warnings(ways, {}) == [f"status.loadBalancer.ingress[0].ip: {SLOPPY}"]


def test_invalid_addresses_and_cidrs_cause_no_warning() -> None:
    assert address_warnings("x", "a.b") == address_warnings("x", "") == address_warnings("x", "::1") == []
    assert range_warnings("x", "a") == range_warnings("x", "10.0.0.0/8") == range_warnings("x", "::/0") == []
