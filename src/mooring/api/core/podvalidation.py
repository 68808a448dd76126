"""Validation of Pods, on create and update (wording as kube-apiserver's).

Rules kept here (Kubernetes API reference, core/v1 Pod, Container, Volume; docs/protocol/node-authorization.md#noderestriction):
* At least one container. Names of containers and volumes are DNS labels and unique in the Pod. Containers have an image. A
  variable has a name and one value. A mount names a volume and a path of its own.
* A volume has one source, with its required fields; a projected token lives at least ten minutes.
* Enumerated fields have known values. Requests do not exceed limits, quantities are not negative, ports are within range.
* A probe and a lifecycle hook have one handler; its port is a number or the name of a container port.
* Node selectors have operators with fitting values; weights are 1 to 100. A spread constraint names a key and an action, each
  pair once.
* Host aliases and name servers are addresses. Kernel parameters have unique, valid names.
* A mirror Pod names its node; the annotation is immutable.
* After creation only images, activeDeadlineSeconds (set or lowered), tolerations (added), scheduling gates (removed) and
  terminationGracePeriodSeconds (from below zero to 1) change.
Rules that need a node or a scheduler are left to those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

from mooring.api.core.addresses import MAX_PORT, NOT_A_PORT, NOT_AN_ADDRESS, PROTOCOLS, parse_address, port_name_errors
from mooring.api.core.poddefaults import CONTAINER_LISTS
from mooring.api.objectmeta import label_errors
from mooring.apimachinery.names import (
    config_key_errors,
    dns1123_label_errors,
    dns1123_subdomain_errors,
    qualified_name_errors,
)
from mooring.apimachinery.quantity import decimal_value
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, forbidden, invalid, not_supported, required

MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror Pod, which represents a static Pod of a node."""
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""Prefix of annotations that set the AppArmor profile of a container before the security context had a field."""
MAX_DEADLINE = (1 << 31) - 1
RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_SYSCTL = 253
"""Characters in the name of a kernel parameter; kube-apiserver's limit."""
_SYSCTL_PART = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = re.compile(rf"({_SYSCTL_PART}[\./])*{_SYSCTL_PART}")
_IMMUTABLE_SPEC = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate(obj: Obj) -> list[FieldError]:
    """Validate a Pod that has its defaults, on create and on update."""
    spec = obj.get("spec") or {}
    volumes, errors = volume_errors(spec.get("volumes") or [])
    errors += container_errors(spec, volumes)
    errors += _enum_errors(spec) + _name_errors(spec) + scheduling_and_probe_errors(spec)
    errors += _sysctl_errors((spec.get("securityContext") or {}).get("sysctls") or ())
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_DEADLINE:
        detail = f"must be between 1 and {MAX_DEADLINE}, inclusive"
        errors.append(invalid("spec.activeDeadlineSeconds", deadline, detail))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        errors += _toleration_errors(toleration, f"spec.tolerations[{index}]")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        errors.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    annotations = obj["metadata"].get("annotations") or {}
    if MIRROR in annotations and not spec.get("nodeName"):
        detail = "must set spec.nodeName if mirror pod annotation is set"
        errors.append(invalid(f"metadata.annotations[{MIRROR}]", annotations[MIRROR], detail))
    return errors


def _enum_errors(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    restart, dns = spec.get("restartPolicy", ""), spec.get("dnsPolicy", "")
    if restart not in RESTART_POLICIES:
        errors.append(not_supported("spec.restartPolicy", restart, RESTART_POLICIES))
    if dns not in DNS_POLICIES:
        errors.append(not_supported("spec.dnsPolicy", dns, DNS_POLICIES))
    elif dns == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        errors.append(required("spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None"))
    return errors


def _name_errors(spec: Obj) -> list[FieldError]:
    errors = label_errors(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    for name, rule in (
        ("serviceAccountName", dns1123_subdomain_errors),
        ("nodeName", dns1123_subdomain_errors),
        ("hostname", dns1123_label_errors),
        ("subdomain", dns1123_label_errors),
    ):
        if value := spec.get(name):
            errors += [invalid(f"spec.{name}", value, detail) for detail in rule(value)]
    gates = [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        path = f"spec.schedulingGates[{index}]"
        errors += [invalid(path, gate, detail) for detail in qualified_name_errors(gate)]
        if gate in seen:
            errors.append(duplicate(path, gate))
        seen.add(gate)
    return errors


def _sysctl_errors(sysctls: Iterable[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        path, name = f"spec.securityContext.sysctls[{index}].name", sysctl.get("name", "")
        if not name:
            errors.append(required(path))
        elif len(name) > MAX_SYSCTL or not _SYSCTL.fullmatch(name):
            detail = f"must have at most {MAX_SYSCTL} characters and match regex ^{_SYSCTL.pattern}$"
            errors.append(invalid(path, name, detail))
        elif name in seen:
            errors.append(duplicate(path, name))
        seen.add(name)
    return errors


def _toleration_errors(toleration: Obj, path: str) -> list[FieldError]:
    key, operator, effect = toleration.get("key", ""), toleration.get("operator", ""), toleration.get("effect", "")
    errors: list[FieldError] = []
    if key:
        errors += [invalid(f"{path}.key", key, detail) for detail in qualified_name_errors(key)]
    elif operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(f"{path}.operator", operator, detail))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        errors.append(invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
    if operator == "Exists" and toleration.get("value"):
        errors.append(
            invalid(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
        )
    elif operator not in ("", "Equal", "Exists", "Lt", "Gt"):
        errors.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    if effect and effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    return errors


def validate_update(new: Obj, old: Obj) -> list[FieldError]:
    """Validate the changes from a stored Pod to a new one."""
    errors = annotation_errors(new, old)
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    for name in ("containers", "initContainers"):
        if len(spec.get(name) or ()) != len(old_spec.get(name) or ()):
            return [*errors, forbidden(f"spec.{name}", "pod updates may not add or remove containers")]
    errors += _deadline_errors(spec.get("activeDeadlineSeconds"), old_spec.get("activeDeadlineSeconds"))
    errors += _toleration_and_gate_errors(spec, old_spec)
    if _immutable_part(spec, old_spec) != _immutable_part(old_spec, old_spec):
        errors.append(forbidden("spec", _IMMUTABLE_SPEC))
    return errors


def annotation_errors(new: Obj, old: Obj) -> list[FieldError]:
    """Return an error for each change of an immutable annotation, in an update of the Pod or its status."""
    before = old["metadata"].get("annotations") or {}
    after = new["metadata"].get("annotations") or {}
    errors: list[FieldError] = []
    for name in sorted({*before, *after}):
        if before.get(name) == after.get(name) or not (name == MIRROR or name.startswith(APP_ARMOR)):
            continue
        what = "mirror pod annotation" if name == MIRROR else "AppArmor annotations"
        verb = "remove or update" if name in before else "add"
        errors.append(forbidden(f"metadata.annotations[{name}]", f"may not {verb} {what}"))
    return errors


def _deadline_errors(new: int | None, old: int | None) -> list[FieldError]:
    path = "spec.activeDeadlineSeconds"
    if old is None:
        return []
    if new is None:
        return [invalid(path, None, "must not update from a positive integer to nil value")]
    return [invalid(path, new, "must be less than or equal to previous value")] if new > old else []


def _toleration_and_gate_errors(spec: Obj, old_spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    present = {_without_seconds(one) for one in spec.get("tolerations") or ()}
    if any(_without_seconds(one) not in present for one in old_spec.get("tolerations") or ()):
        detail = "existing toleration can not be modified except its tolerationSeconds"
        errors.append(forbidden("spec.tolerations", detail))
    gates = {gate.get("name", "") for gate in old_spec.get("schedulingGates") or ()}
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name", "")
        if name not in gates:
            detail = f"only deletion is allowed, but found new scheduling gate '{name}'"
            errors.append(forbidden(f"spec.schedulingGates[{index}].name", detail))
    return errors


def _without_seconds(toleration: Obj) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in toleration.items() if name != "tolerationSeconds")


def _immutable_part(spec: Obj, old_spec: Obj) -> Obj:
    """Return a copy of `spec` without the fields that may change."""
    mutable = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "initContainers")
    immutable: Obj = {
        name: value for name, value in spec.items() if name not in mutable and value not in (None, "", [])
    }
    for name in ("containers", "initContainers"):
        immutable[name] = [{**container, "image": ""} for container in spec.get(name) or ()]
    if old_spec.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        immutable["terminationGracePeriodSeconds"] = old_spec["terminationGracePeriodSeconds"]
    return immutable


_VALUE_SOURCES = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
_ENUMS = (
    ("imagePullPolicy", ("Always", "IfNotPresent", "Never")),
    ("terminationMessagePolicy", ("File", "FallbackToLogsOnError")),
)


def container_errors(spec: Obj, volumes: Collection[str]) -> list[FieldError]:
    """Validate the containers of a spec; `volumes` are the names of its volumes."""
    errors = [] if spec.get("containers") else [required("spec.containers")]
    names: set[str] = set()
    host_ports: set[tuple[str, str, int]] = set()
    for group in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(group) or ()):
            path = f"spec.{group}[{index}]"
            errors += _item_name_errors(container, path, names)
            errors += _container_errors(container, path)
            errors += _port_errors(
                container, path, bool(spec.get("hostNetwork")), host_ports if group == "containers" else set()
            )
            errors += _mount_errors(container, path, volumes)
    return errors


def _item_name_errors(item: Obj, path: str, names: set[str]) -> list[FieldError]:
    """Validate the name of a container or volume, and add it to `names`, which are those of the items before it."""
    name, path = item.get("name", ""), f"{path}.name"
    if not name:
        errors = [required(path)]
    elif name in names:
        errors = [duplicate(path, name)]
    else:
        errors = [invalid(path, name, detail) for detail in dns1123_label_errors(name)]
    names.add(name)
    return errors


def _container_errors(container: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    image = container.get("image", "")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    for name, known in _ENUMS:
        if (choice := container.get(name, "")) not in known:
            errors.append(not_supported(f"{path}.{name}", choice, known))
    for index, variable in enumerate(container.get("env") or ()):
        at = f"{path}.env[{index}]"
        if not variable.get("name"):
            errors.append(required(f"{at}.name"))
        if variable.get("valueFrom") is not None:
            errors += _value_source_errors(variable, f"{at}.valueFrom")
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _value_source_errors(variable: Obj, path: str) -> list[FieldError]:
    """Validate where the value of a variable comes from."""
    sources = variable["valueFrom"]
    errors: list[FieldError] = []
    for name in ("configMapKeyRef", "secretKeyRef"):
        if (reference := sources.get(name)) is None:
            continue
        at, named, key = f"{path}.{name}", reference.get("name", ""), reference.get("key", "")
        errors += [invalid(f"{at}.name", named, detail) for detail in dns1123_subdomain_errors(named)]
        if not key:
            errors.append(required(f"{at}.key"))
        errors += [invalid(f"{at}.key", key, detail) for detail in (config_key_errors(key) if key else ())]
    if not sources:
        errors.append(invalid(path, "", f"must specify one of: {_VALUE_SOURCES}"))
    elif variable.get("value"):
        errors.append(invalid(path, "", "may not be specified when `value` is not empty"))
    elif len(sources) > 1:
        errors.append(invalid(path, "", "may not have more than one field specified at a time"))
    return errors


def _resource_errors(resources: Obj, path: str) -> list[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    errors = [
        invalid(f"{path}.{part}[{name}]", text, "must be greater than or equal to 0")
        for part, amounts in (("limits", limits), ("requests", requests))
        for name, text in amounts.items()
        if decimal_value(text) < 0
    ]
    for name, text in requests.items():
        if name in limits and decimal_value(text) > decimal_value(limits[name]):
            detail = f"must be less than or equal to {name} limit of {limits[name]}"
            errors.append(invalid(f"{path}.requests", text, detail))
    return errors


def _port_errors(
    container: Obj, path: str, host_network: bool, host_ports: set[tuple[str, str, int]]
) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(container.get("ports") or ()):
        at = f"{path}.ports[{index}]"
        number, host_port, protocol = port.get("containerPort", 0), port.get("hostPort", 0), port.get("protocol", "")
        if name := port.get("name"):
            if name in names:
                errors.append(duplicate(f"{at}.name", name))
            names.add(name)
        if not number:
            errors.append(required(f"{at}.containerPort"))
        for field, value in (("containerPort", number), ("hostPort", host_port)):
            if value and not 1 <= value <= MAX_PORT:
                errors.append(invalid(f"{at}.{field}", value, NOT_A_PORT))
        if host_network and host_port != number:
            errors.append(invalid(f"{at}.containerPort", number, "must match `hostPort` when `hostNetwork` is true"))
        if protocol not in PROTOCOLS:
            errors.append(not_supported(f"{at}.protocol", protocol, PROTOCOLS))
        if host_port:
            key = (protocol, port.get("hostIP", ""), host_port)
            if key in host_ports:
                errors.append(duplicate(f"{at}.hostPort", "/".join(map(str, key))))
            host_ports.add(key)
    return errors


def _mount_errors(container: Obj, path: str, volumes: Collection[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at, name, mount_path = f"{path}.volumeMounts[{index}]", mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(required(f"{at}.name"))
        elif name not in volumes:
            errors.append(FieldError("FieldValueNotFound", f"{at}.name", "", name))
        if not mount_path:
            errors.append(required(f"{at}.mountPath"))
        elif mount_path in paths:
            errors.append(invalid(f"{at}.mountPath", mount_path, "must be unique"))
        paths.add(mount_path)
        if mount.get("subPath") and mount.get("subPathExpr"):
            errors.append(forbidden(f"{at}.subPathExpr", "subPathExpr and subPath are mutually exclusive"))
    return errors


MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 1 << 32
_REQUIRED_FIELDS = {
    "hostPath": ("path",),
    "secret": ("secretName",),
    "configMap": ("name",),
    "nfs": ("server", "path"),
    "persistentVolumeClaim": ("claimName",),
    "csi": ("driver",),
    "ephemeral": ("volumeClaimTemplate",),
    "gcePersistentDisk": ("pdName",),
    "awsElasticBlockStore": ("volumeID",),
    "gitRepo": ("repository",),
    "iscsi": ("targetPortal", "iqn"),
    "glusterfs": ("endpoints", "path"),
    "rbd": ("monitors", "image"),
    "flexVolume": ("driver",),
    "cinder": ("volumeID",),
    "cephfs": ("monitors",),
    "azureFile": ("secretName", "shareName"),
    "vsphereVolume": ("volumePath",),
    "quobyte": ("registry", "volume"),
    "azureDisk": ("diskName", "diskURI"),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "scaleIO": ("gateway", "system", "volumeName"),
    "storageos": ("volumeName",),
}
_PROJECTED_REQUIRED_FIELDS = {
    "secret": ("name",),
    "configMap": ("name",),
    "serviceAccountToken": ("path",),
    "clusterTrustBundle": ("path",),
    "podCertificate": ("signerName", "keyType"),
}


def volume_errors(volumes: list[Obj]) -> tuple[set[str], list[FieldError]]:
    """Return the names of the volumes, and the errors."""
    names: set[str] = set()
    errors: list[FieldError] = []
    for index, volume in enumerate(volumes):
        path = f"spec.volumes[{index}]"
        errors += _source_errors(volume, path) + _item_name_errors(volume, path, names)
    return names, errors


def _source_errors(volume: Obj, path: str) -> list[FieldError]:
    sources = [name for name in volume if name != "name"]
    errors = [forbidden(f"{path}.{name}", "may not specify more than 1 volume type") for name in sources[1:]]
    for name in sources[:1]:
        source = volume[name]
        errors += [required(f"{path}.{name}.{part}") for part in _REQUIRED_FIELDS.get(name, ()) if not source.get(part)]
        if name == "projected":
            for index, part in enumerate(source.get("sources") or ()):
                errors += _projection_errors(part, f"{path}.projected.sources[{index}]")
    return errors


def _projection_errors(part: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if len(part) > 1:
        errors.append(forbidden(path, "may not specify more than 1 volume type per source"))
    for name, source in part.items():
        errors += [
            required(f"{path}.{name}.{needed}")
            for needed in _PROJECTED_REQUIRED_FIELDS.get(name, ())
            if not source.get(needed)
        ]
    if "serviceAccountToken" in part:
        seconds = part["serviceAccountToken"].get("expirationSeconds", MIN_TOKEN_SECONDS)
        at = f"{path}.serviceAccountToken.expirationSeconds"
        if seconds < MIN_TOKEN_SECONDS:
            errors.append(invalid(at, seconds, "may not specify a duration less than 10 minutes"))
        elif seconds > MAX_TOKEN_SECONDS:
            errors.append(invalid(at, seconds, "may not specify a duration larger than 2^32 seconds"))
    return errors


SCHEMES = ("HTTP", "HTTPS")
HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
MAX_WEIGHT = 100
_CONTAINER_LISTS_WITH_HANDLERS = ("initContainers", "containers")


def scheduling_and_probe_errors(spec: Obj) -> list[FieldError]:
    """Validate handlers, affinity, spread constraints and host names of a spec that has its defaults."""
    return [*_handlers_errors(spec), *_affinity_errors(spec), *_spread_errors(spec), *_host_errors(spec)]


def _handlers_errors(spec: Obj) -> Iterator[FieldError]:
    for member in _CONTAINER_LISTS_WITH_HANDLERS:
        for index, container in enumerate(spec.get(member) or ()):
            path = f"spec.{member}[{index}]"
            for name in ("livenessProbe", "readinessProbe", "startupProbe"):
                if name in container:
                    yield from _handler_errors(container[name], f"{path}.{name}")
            lifecycle = container.get("lifecycle") or {}
            for name in ("postStart", "preStop"):
                if name in lifecycle:
                    yield from _handler_errors(lifecycle[name], f"{path}.lifecycle.{name}")


def _handler_errors(handler: Obj, path: str) -> Iterator[FieldError]:
    handlers = [name for name in HANDLERS if name in handler]
    if not handlers:
        yield required(path, "must specify a handler type")
    for name in handlers[1:]:
        yield forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    match handlers[:1]:
        case ["exec"]:
            if not handler["exec"].get("command"):
                yield required(f"{path}.exec.command")
        case ["httpGet"]:
            request = handler["httpGet"]
            yield from _handler_port_errors(request.get("port", 0), f"{path}.httpGet.port")
            if request.get("scheme") not in SCHEMES:
                yield not_supported(f"{path}.httpGet.scheme", request.get("scheme", ""), SCHEMES)
        case ["tcpSocket" | "grpc" as name]:
            yield from _handler_port_errors(handler[name].get("port", 0), f"{path}.{name}.port")


def _handler_port_errors(port: int | str, path: str) -> Iterator[FieldError]:
    if isinstance(port, str):
        yield from (invalid(path, port, detail) for detail in port_name_errors(port))
    elif not 1 <= port <= MAX_PORT:
        yield invalid(path, port, NOT_A_PORT)


def _affinity_errors(spec: Obj) -> Iterator[FieldError]:
    node = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    name = "preferredDuringSchedulingIgnoredDuringExecution"
    for index, term in enumerate(node.get(name) or ()):
        path, weight = f"spec.affinity.nodeAffinity.{name}[{index}]", term.get("weight", 0)
        if not 1 <= weight <= MAX_WEIGHT:
            yield invalid(f"{path}.weight", weight, f"must be in the range 1-{MAX_WEIGHT}")
        yield from _expression_errors(term.get("preference") or {}, f"{path}.preference")
    name = "requiredDuringSchedulingIgnoredDuringExecution"
    for index, term in enumerate((node.get(name) or {}).get("nodeSelectorTerms") or ()):
        yield from _expression_errors(term, f"spec.affinity.nodeAffinity.{name}.nodeSelectorTerms[{index}]")


def _expression_errors(term: Obj, path: str) -> Iterator[FieldError]:
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        at, operator = f"{path}.matchExpressions[{index}]", expression.get("operator", "")
        values, key = expression.get("values") or (), expression.get("key", "")
        match operator:
            case "In" | "NotIn":
                if not values:
                    yield required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            case "Exists" | "DoesNotExist":
                if values:
                    yield forbidden(
                        f"{at}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    )
            case "Gt" | "Lt":
                if len(values) != 1:
                    yield required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
            case _:
                yield invalid(f"{at}.operator", operator, "not a valid selector operator")
        yield from (invalid(f"{at}.key", key, detail) for detail in qualified_name_errors(key))


def _spread_errors(spec: Obj) -> Iterator[FieldError]:
    constraints = spec.get("topologySpreadConstraints") or []
    last_index = {_constraint_key(constraint): index for index, constraint in enumerate(constraints)}
    for index, constraint in enumerate(constraints):
        path, (key, action) = f"spec.topologySpreadConstraints[{index}]", _constraint_key(constraint)
        if constraint.get("maxSkew", 0) <= 0:
            yield invalid(f"{path}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
        if not key:
            yield required(f"{path}.topologyKey", "can not be empty")
        if action not in UNSATISFIABLE:
            yield not_supported(f"{path}.whenUnsatisfiable", action, UNSATISFIABLE)
        if last_index[key, action] > index:
            yield duplicate(f"{path}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")


def _constraint_key(constraint: Obj) -> tuple[str, str]:
    return constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")


def _host_errors(spec: Obj) -> Iterator[FieldError]:
    dns = spec.get("dnsConfig") or {}
    yield from _address_errors(dns.get("nameservers") or (), "spec.dnsConfig.nameservers[{}]")
    for index, option in enumerate(dns.get("options") or ()):
        if not option.get("name"):
            yield required(f"spec.dnsConfig.options[{index}]", "must not be empty")
    aliases = spec.get("hostAliases") or ()
    yield from _address_errors((alias.get("ip", "") for alias in aliases), "spec.hostAliases[{}].ip")
    for index, alias in enumerate(aliases):
        for place, name in enumerate(alias.get("hostnames") or ()):
            at = f"spec.hostAliases[{index}].hostnames[{place}]"
            yield from (invalid(at, name, detail) for detail in dns1123_subdomain_errors(name))


def _address_errors(addresses: Iterable[str], path: str) -> Iterator[FieldError]:
    for index, address in enumerate(addresses):
        if parse_address(address) is None:
            yield invalid(path.format(index), address, NOT_AN_ADDRESS)
