"""What is wrong with the containers of a Pod (wording as kube-apiserver's).

Rules kept here (Kubernetes API reference, core/v1 Container): at least one; names are DNS labels, unique over all lists; an image;
known choices; ports within range and host ports not twice; a variable has a name and one value; a mount names a volume and
a path of its own; requests are not above limits.
"""

from __future__ import annotations

from collections.abc import Collection

from mooring.api.core.addresses import MAX_PORT, NOT_A_PORT, PROTOCOLS
from mooring.api.core.pod.defaults import CONTAINER_LISTS
from mooring.api.core.pod.resources import amount
from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, forbidden, invalid, not_supported, required

_CHOICES = (
    ("imagePullPolicy", ("Always", "IfNotPresent", "Never")),
    ("terminationMessagePolicy", ("File", "FallbackToLogsOnError")),
)


def container_errors(spec: Obj, volumes: Collection[str]) -> list[FieldError]:
    """What is wrong with all containers of a spec whose volumes have these names."""
    errors = [] if spec.get("containers") else [required("spec.containers")]
    names: set[str] = set()
    bound: set[tuple[str, str, int]] = set()
    for group in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(group) or ()):
            path, name = f"spec.{group}[{index}]", container.get("name", "")
            if not name:
                errors.append(required(f"{path}.name"))
            elif name in names:
                errors.append(duplicate(f"{path}.name", name))
            else:
                errors += [invalid(f"{path}.name", name, why) for why in dns1123_label_errors(name)]
            names.add(name)
            errors += _one(container, path)
            errors += _port_errors(
                container, path, bool(spec.get("hostNetwork")), bound if group == "containers" else set()
            )
            errors += _mount_errors(container, path, volumes)
    return errors


def _one(container: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    image = container.get("image", "")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    for name, known in _CHOICES:
        if (choice := container.get(name, "")) not in known:
            errors.append(not_supported(f"{path}.{name}", choice, known))
    for index, variable in enumerate(container.get("env") or ()):
        at = f"{path}.env[{index}]"
        if not variable.get("name"):
            errors.append(required(f"{at}.name"))
        if variable.get("value") and variable.get("valueFrom"):
            errors.append(invalid(f"{at}.valueFrom", "", "may not be specified when `value` is not empty"))
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _resource_errors(resources: Obj, path: str) -> list[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    errors = [
        invalid(f"{path}.{part}[{name}]", text, "must be greater than or equal to 0")
        for part, amounts in (("limits", limits), ("requests", requests))
        for name, text in amounts.items()
        if amount(text) < 0
    ]
    for name, text in requests.items():
        if name in limits and amount(text) > amount(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            errors.append(invalid(f"{path}.requests", text, why))
    return errors


def _port_errors(container: Obj, path: str, host_network: bool, bound: set[tuple[str, str, int]]) -> list[FieldError]:
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, port in enumerate(container.get("ports") or ()):
        at = f"{path}.ports[{index}]"
        inner, outer, protocol = port.get("containerPort", 0), port.get("hostPort", 0), port.get("protocol", "")
        if name := port.get("name"):
            if name in names:
                errors.append(duplicate(f"{at}.name", name))
            names.add(name)
        if not inner:
            errors.append(required(f"{at}.containerPort"))
        for where, number in (("containerPort", inner), ("hostPort", outer)):
            if number and not 1 <= number <= MAX_PORT:
                errors.append(invalid(f"{at}.{where}", number, NOT_A_PORT))
        if host_network and outer != inner:
            errors.append(invalid(f"{at}.containerPort", inner, "must match `hostPort` when `hostNetwork` is true"))
        if protocol not in PROTOCOLS:
            errors.append(not_supported(f"{at}.protocol", protocol, PROTOCOLS))
        if outer:
            key = (protocol, port.get("hostIP", ""), outer)
            if key in bound:
                errors.append(duplicate(f"{at}.hostPort", "/".join(map(str, key))))
            bound.add(key)
    return errors


def _mount_errors(container: Obj, path: str, volumes: Collection[str]) -> list[FieldError]:
    errors: list[FieldError] = []
    paths: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        at, name, where = f"{path}.volumeMounts[{index}]", mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(required(f"{at}.name"))
        elif name not in volumes:
            errors.append(FieldError("FieldValueNotFound", f"{at}.name", "", name))
        if not where:
            errors.append(required(f"{at}.mountPath"))
        elif where in paths:
            errors.append(invalid(f"{at}.mountPath", where, "must be unique"))
        paths.add(where)
        if mount.get("subPath") and mount.get("subPathExpr"):
            errors.append(forbidden(f"{at}.subPathExpr", "subPathExpr and subPath are mutually exclusive"))
    return errors
