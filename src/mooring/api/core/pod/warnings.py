"""Warnings about Pods and Pod templates: accepted fields that are deprecated, without effect, or most likely a mistake.

Rules kept here (pkg/api/pod/warnings.go of Kubernetes; wording as kube-apiserver's):
* A Pod is checked when it is created, a template whenever it changes.
* At most `MAX_WARNINGS` warnings are returned, because headers hold no more. Where items are compared with each other, only the
  first `MAX_COMPARED` are, so that the work is linear in the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from mooring.api.core.addresses import address_warnings
from mooring.apimachinery.names import dns1123_label_errors, label_value_errors
from mooring.apimachinery.quantity import decimal_value
from mooring.apimachinery.schema import Obj

MAX_WARNINGS = 64
"""Warnings about one object; the 4096 characters of all Warning headers hold fewer."""
MAX_COMPARED = 100
"""Ports with equal number, or paths in one volume, that are compared with each other. Real Pods have a dozen."""

NODE_LABELS = {
    "beta.kubernetes.io/arch": 'deprecated since v1.14; use "kubernetes.io/arch" instead',
    "beta.kubernetes.io/os": 'deprecated since v1.14; use "kubernetes.io/os" instead',
    "failure-domain.beta.kubernetes.io/region": 'deprecated since v1.17; use "topology.kubernetes.io/region" instead',
    "failure-domain.beta.kubernetes.io/zone": 'deprecated since v1.17; use "topology.kubernetes.io/zone" instead',
    "beta.kubernetes.io/instance-type": 'deprecated since v1.17; use "node.kubernetes.io/instance-type" instead',
    "app.kubernetes.io/created-by": "deprecated since v1.9",
    "scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
    "node-role.kubernetes.io/master": 'use "node-role.kubernetes.io/control-plane" instead',
}
ANNOTATIONS = {
    "scheduler.alpha.kubernetes.io/critical-pod": (
        'non-functional in v1.16+; use the "priorityClassName" field instead'
    ),
    "security.alpha.kubernetes.io/sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
    "security.alpha.kubernetes.io/unsafe-sysctls": 'non-functional in v1.11+; use the "sysctls" field instead',
}
VOLUMES = {
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "gitRepo": "deprecated in v1.11, and disabled by default in v1.33+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "flocker": "deprecated in v1.22, non-functional in v1.25+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "quobyte": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
"""In-tree volume sources that are deprecated or no longer mounted."""
_NULL_SELECTOR = "a null labelSelector results in matching no pod"
_SECCOMP = 'non-functional in v1.27+; use the "seccompProfile" field instead'
_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
_APPARMOR_CONTAINER = "container.apparmor.security.beta.kubernetes.io/"
_BYTES = ("memory", "ephemeral-storage")
"""Resources that are counted in bytes."""


def pod_warnings(new: Obj, old: Obj | None) -> list[str]:
    """Return the warnings about a Pod that is created."""
    if old is not None:
        return []
    warnings = []
    if warning := dns1123_label_errors(new["metadata"].get("name", "")):
        hint = "which can result in surprising behavior; a DNS label is recommended"
        warnings.append(f"metadata.name: this is used in the Pod's hostname, {hint}: [{' '.join(warning)}]")
    return warnings + _warnings(new, "")


def template_warnings(new: Obj, old: Obj | None) -> list[str]:
    """Return the warnings about a PodTemplate whose template is new."""
    if old is not None and new["metadata"].get("generation") == old["metadata"].get("generation"):
        return []
    return _warnings(new["template"], "template.")


def status_warnings(new: Obj, old: Obj) -> list[str]:
    """Return the warnings about the addresses in the status of a Pod."""
    status = new["status"]
    return [
        warning
        for name in ("podIPs", "hostIPs")
        for index, entry in enumerate(status.get(name) or ())
        for warning in address_warnings(f"status.{name}[{index}].ip", entry.get("ip", ""))
    ]


def _warnings(pod: Obj, prefix: str) -> list[str]:
    return list(islice(_spec_warnings(pod["spec"], pod["metadata"], prefix), MAX_WARNINGS))


def _spec_warnings(spec: Obj, metadata: Obj, prefix: str) -> Iterator[str]:
    at = f"{prefix}spec"
    annotations = metadata.get("annotations") or {}
    containers = [
        (f"{at}.{name}[{index}]", container)
        for name in ("initContainers", "containers", "ephemeralContainers")
        for index, container in enumerate(spec.get(name) or ())
    ]
    yield from _scheduling(spec, at)
    for name, warning in ANNOTATIONS.items():
        if name in annotations:
            yield f"{prefix}metadata.annotations[{name}]: {warning}"
    yield from _volume_sources(spec.get("volumes") or (), f"{at}.volumes")
    for volume in spec.get("volumes") or ():
        yield from _overlapping_paths(volume)
    yield from _duplicates(spec.get("hostAliases") or (), "ip", f"{at}.hostAliases")
    yield from _duplicates(spec.get("imagePullSecrets") or (), "name", f"{at}.imagePullSecrets")
    for index, reference in enumerate(spec.get("imagePullSecrets") or ()):
        if not reference.get("name"):
            yield f'{at}.imagePullSecrets[{index}].name: invalid empty name ""'
    yield from _fractional_bytes(spec.get("overhead") or {}, f"{at}.overhead", _BYTES)
    security = spec.get("securityContext") or {}
    if _SECCOMP_POD in annotations and not security.get("seccompProfile"):
        yield f"{prefix}metadata.annotations[{_SECCOMP_POD}]: {_SECCOMP}"
    for path, container in containers:
        yield from _deprecated_annotations(container, annotations, prefix, security.get("appArmorProfile"))
        resources = container.get("resources") or {}
        for resource in _BYTES:
            for part in ("limits", "requests"):
                yield from _fractional_bytes(resources.get(part) or {}, f"{path}.resources.{part}", (resource,))
        yield from _hidden_variables(container.get("env") or (), f"{path}.env")
    yield from _ports(containers)
    yield from _port_names(containers)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        yield f"{at}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
    yield from _null_label_selectors(spec.get("affinity") or {}, f"{at}.affinity")
    for index, server in enumerate((spec.get("dnsConfig") or {}).get("nameservers") or ()):
        yield from address_warnings(f"{at}.dnsConfig.nameservers[{index}]", server)
    for index, alias in enumerate(spec.get("hostAliases") or ()):
        yield from address_warnings(f"{at}.hostAliases[{index}].ip", alias.get("ip", ""))


def _scheduling(spec: Obj, at: str) -> Iterator[str]:
    for key in spec.get("nodeSelector") or ():
        if key in NODE_LABELS:
            yield f"{at}.nodeSelector[{key}]: {NODE_LABELS[key]}"
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    path = f"{at}.affinity.nodeAffinity"
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for index, term in enumerate(required.get("nodeSelectorTerms") or ()):
        terms = f"{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        yield from _node_term(term, f"{terms}[{index}]", values=False)
    for index, term in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        preference = f"{path}.preferredDuringSchedulingIgnoredDuringExecution[{index}].preference"
        yield from _node_term(term["preference"], preference, values=True)
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        path, key = f"{at}.topologySpreadConstraints[{index}]", constraint.get("topologyKey", "")
        if key in NODE_LABELS:
            yield f"{path}.topologyKey: {key} is {NODE_LABELS[key]}"
        if "labelSelector" not in constraint:
            yield f"{path}.labelSelector: {_NULL_SELECTOR}"


def _node_term(term: Obj, at: str, *, values: bool) -> Iterator[str]:
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        path, key = f"{at}.matchExpressions[{index}]", expression.get("key", "")
        if key in NODE_LABELS:
            yield f"{path}.key: {key} is {NODE_LABELS[key]}"
        for place, value in enumerate(expression.get("values") or ()) if values else ():
            for warning in label_value_errors(value):
                yield f"{path}.values[{place}]: {value} is invalid, {warning}"


def _volume_sources(volumes: Iterable[Obj], at: str) -> Iterator[str]:
    for index, volume in enumerate(volumes):
        for source, warning in VOLUMES.items():
            if source in volume:
                yield f"{at}[{index}].{source}: {warning}"
        claim = (volume.get("ephemeral") or {}).get("volumeClaimTemplate")
        if claim is not None:
            path = f"{at}[{index}].ephemeral.volumeClaimTemplate.spec.resources"
            for part in ("requests", "limits"):
                yield from _fractional_bytes(claim["spec"]["resources"].get(part) or {}, f"{path}.{part}", ("storage",))


def _fractional_bytes(amounts: Obj, at: str, resources: Iterable[str]) -> Iterator[str]:
    for resource in resources:
        if resource in amounts and decimal_value(amounts[resource]) % 1:
            value = amounts[resource]
            yield f'{at}[{resource}]: fractional byte value "{value}" is invalid, must be an integer'


def _duplicates(items: Iterable[Obj], name: str, at: str) -> Iterator[str]:
    seen = set()
    for index, item in enumerate(items):
        value = item.get(name, "")
        if value in seen:
            yield f'{at}[{index}].{name}: duplicate {name} "{value}"'
        seen.add(value)


def _deprecated_annotations(container: Obj, annotations: Obj, prefix: str, pod_profile: Obj | None) -> Iterator[str]:
    security, name = container.get("securityContext") or {}, container.get("name", "")
    key = _SECCOMP_CONTAINER + name
    if key in annotations and not security.get("seccompProfile"):
        yield f"{prefix}metadata.annotations[{key}]: {_SECCOMP}"
    key = _APPARMOR_CONTAINER + name
    deprecated = prefix and key in annotations and not security.get("appArmorProfile")
    if deprecated and (pod_profile is None or pod_profile != _apparmor_profile(annotations[key])):
        yield f'{prefix}metadata.annotations[{key}]: deprecated since v1.30; use the "appArmorProfile" field instead'


def _apparmor_profile(annotation: str) -> Obj | None:
    """Return the appArmorProfile that an annotation stands for."""
    if annotation.startswith("localhost/") and annotation != "localhost/":
        return {"type": "Localhost", "localhostProfile": annotation.removeprefix("localhost/")}
    return {"runtime/default": {"type": "RuntimeDefault"}, "unconfined": {"type": "Unconfined"}}.get(annotation)


def _hidden_variables(variables: Iterable[Obj], at: str) -> Iterator[str]:
    """Yield warnings about variables that are defined again, unless the new value refers to the earlier one."""
    seen = set()
    for index, variable in enumerate(variables):
        name, value = variable.get("name", ""), variable.get("value", "")
        reference = f"$({name})"
        if name in seen and ("valueFrom" in variable or value == reference or reference not in value):
            yield f'{at}[{index}]: hides previous definition of "{name}", which may be dropped when using apply'
        seen.add(name)


def _ports(containers: list[tuple[str, Obj]]) -> Iterator[str]:
    seen: dict[tuple[int, str], list[tuple[str, Obj]]] = {}
    for path, container in containers:
        for index, port in enumerate(container.get("ports") or ()):
            at, number, protocol = f"{path}.ports[{index}]", port.get("containerPort", 0), port.get("protocol", "")
            host_ip, host_port = port.get("hostIP", ""), port.get("hostPort", 0)
            if host_ip and not host_port:
                printed = f"Name:{port.get('name', '')} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{host_ip}"
                yield f"{at}: hostIP set without hostPort: {{{printed}}}"
            others = seen.setdefault((number, protocol), [])
            for other_path, other in others:
                other_ip, other_port = other.get("hostIP", ""), other.get("hostPort", 0)
                if (host_ip, host_port) == (other_ip, other_port):
                    yield f"{at}: duplicate port definition with {other_path}"
                elif not host_port or not other_port:
                    yield f"{at}: overlapping port definition with {other_path}"
                elif host_port == other_port and bool(host_ip) != bool(other_ip):
                    yield f"{at}: dangerously ambiguous port definition with {other_path}"
            if len(others) < MAX_COMPARED:
                others.append((at, port))


def _port_names(containers: list[tuple[str, Obj]]) -> Iterator[str]:
    first_paths: dict[str, str] = {}
    for path, container in containers:
        for index, port in enumerate(container.get("ports") or ()):
            at, name = f"{path}.ports[{index}]", port.get("name", "")
            first = first_paths.setdefault(name, at)
            if name and first != at:
                effect = f"services and probes that select ports by name will use {first}"
                yield f'{at}: duplicate port name "{name}" with {first}, {effect}'


def _null_label_selectors(affinity: Obj, at: str) -> Iterator[str]:
    for name in ("podAffinity", "podAntiAffinity"):
        part, path = affinity.get(name) or {}, f"{at}.{name}"
        when = "requiredDuringSchedulingIgnoredDuringExecution"
        for index, term in enumerate(part.get(when) or ()):
            if "labelSelector" not in term:
                yield f"{path}.{when}[{index}].labelSelector: {_NULL_SELECTOR}"
        when = "preferredDuringSchedulingIgnoredDuringExecution"
        for index, weighted in enumerate(part.get(when) or ()):
            if "labelSelector" not in weighted["podAffinityTerm"]:
                yield f"{path}.{when}[{index}].podAffinityTerm.labelSelector: {_NULL_SELECTOR}"


def _overlapping_paths(volume: Obj) -> Iterator[str]:
    """Yield warnings about files of one volume whose paths are equal, or one below the other."""
    name = volume.get("name", "")
    for source, member in (("configMap", "name"), ("secret", "secretName"), ("downwardAPI", "")):
        part = volume.get(source)
        if part is not None:
            kind = source[0].upper() + source[1:]
            title = f'{kind} "{part.get(member, "")}"' if member else kind
            yield from _path_conflicts(f'volume "{name}" ({title})', [(path, "") for path in _item_paths(part)])
    if "projected" in volume:
        files: list[tuple[str, str]] = []
        for source in volume["projected"].get("sources") or ():
            if not source:
                yield f'volume "{name}" (Projected) has no sources provided'
            files += _projected_files(source)
        yield from _path_conflicts(f'volume "{name}" (Projected)', files)


def _item_paths(source: Obj) -> list[str]:
    return [item.get("path", "") for item in source.get("items") or ()]


def _projected_files(source: Obj) -> Iterator[tuple[str, str]]:
    """Yield path and description of each file in one source of a projected volume."""
    for kind, title in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if part := source.get(kind):
            yield from ((path, f'{title} "{part.get("name", "")}"') for path in _item_paths(part))
    yield from ((path, "DownwardAPI") for path in _item_paths(source.get("downwardAPI") or {}))
    if part := source.get("serviceAccountToken"):
        yield part.get("path", ""), "ServiceAccountToken"
    if part := source.get("clusterTrustBundle"):
        yield part.get("path", ""), f'ClusterTrustBundle "{part.get("name") or part.get("signerName", "")}"'
    part = source.get("podCertificate") or {}
    for member, title in (
        ("certificateChainPath", "PodCertificate chain"),
        ("keyPath", "PodCertificate key"),
        ("credentialBundlePath", "PodCertificate credential bundle"),
    ):
        if part.get(member):
            yield part[member], title


def _path_conflicts(volume: str, files: Iterable[tuple[str, str]]) -> Iterator[str]:
    before: list[tuple[str, str]] = []
    for path, source in islice(files, MAX_COMPARED):
        path = path.rstrip("/")
        for other, other_source in before if path else ():
            if f"{other}/".startswith(f"{path}/") or f"{path}/".startswith(f"{other}/"):
                yield f"{volume}: overlapping paths: {_described_file(path, source)} with {_described_file(other, other_source)}"
        if path:
            before.append((path, source))


def _described_file(path: str, source: str) -> str:
    return f'"{path}" ({source})' if source else f'"{path}"'
