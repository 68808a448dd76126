"""Selection of controllers by name, as `--controllers` of kube-controller-manager does it.

Rules kept here:
* A name runs that controller, `-name` leaves it out, and `*` runs those that are on by default. The first item about a controller
  decides.
* Names are canonical, or an alias in `ALIASES`: kube-controller-manager's old names, and shorter ones.
* A list that only leaves controllers out begins with `*`. In kube-controller-manager such a list runs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from mooring.errors import ConfigError

EVERY = "*"

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "bootstrapsigner": "bootstrap-signer-controller",
        "tokencleaner": "token-cleaner-controller",
        "csrapproving": "certificatesigningrequest-approving-controller",
        "csrapprover": "certificatesigningrequest-approving-controller",
        "csrsigning": "certificatesigningrequest-signing-controller",
        "csrsigner": "certificatesigningrequest-signing-controller",
        "csrcleaner": "certificatesigningrequest-cleaner-controller",
        "serving-approver": "kubelet-serving-approver",
        "inventory-approver": "machine-inventory-approver",
        "root-ca-cert-publisher": "root-ca-certificate-publisher-controller",
        "serviceaccount": "serviceaccount-controller",
        "serviceaccount-token": "serviceaccount-token-controller",
        "legacy-service-account-token-cleaner": "legacy-serviceaccount-token-cleaner-controller",
        "namespace": "namespace-controller",
        "garbagecollector": "garbage-collector-controller",
        "podgc": "pod-garbage-collector-controller",
        "nodelifecycle": "node-lifecycle-controller",
        "clusterrole-aggregation": "clusterrole-aggregation-controller",
    }
)
"""Canonical names by alias. `csrapprover`, `csrsigner` and those of approvers that only Mooring has are its own."""


def select(items: Sequence[str], every: Sequence[str], off_by_default: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of `every` that `items` choose, in the order of `every`. Raises ConfigError for an unknown name."""
    choices: dict[str, bool] = {}
    for item in items:
        if item != EVERY:
            choices.setdefault(_canonical(item.removeprefix("-"), every), not item.startswith("-"))
    others = EVERY in items or not any(choices.values())
    return tuple(name for name in every if choices.get(name, others and name not in off_by_default))


def _canonical(name: str, every: Sequence[str]) -> str:
    canonical = ALIASES.get(name, name)
    if canonical not in every:
        aliases = [alias for alias, meant in ALIASES.items() if meant in every]
        similar = get_close_matches(name, [*every, *aliases], n=1)
        hint = f'; did you mean "{similar[0]}"?' if similar else ""
        raise ConfigError(f'controllers: "{name}" is not one of {", ".join(every)}{hint}')
    return canonical
