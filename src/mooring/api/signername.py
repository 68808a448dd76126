"""Signers, as objects name them: the name itself, and what is asked of a signer for a Pod.

Rules kept here (wording as kube-apiserver's):
* A name is `<domain>/<path>`: the domain of two DNS labels or more, the path of DNS names.
* A signer of kubernetes.io, or of a domain below it, certifies a Pod for a day at most.
* What the author of a Pod tells a signer has annotation keys with a domain.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.objectmeta import MAX_ANNOTATIONS
from mooring.apimachinery.names import (
    LABEL_MAX,
    SUBDOMAIN_MAX,
    dns1123_label_errors,
    dns1123_subdomain_errors,
    qualified_name_errors,
)
from mooring.errors import FieldError, invalid, required, too_long

MAX_SIGNER_NAME = SUBDOMAIN_MAX + 1 + LABEL_MAX + 1 + SUBDOMAIN_MAX
"""Characters of `<domain>/<namespace>.<name>`, so that there may be a signer per namespaced object."""
MIN_SECONDS = 3600
"""Shortest lifetime of the certificate of a Pod."""
MAX_SECONDS = 91 * 86_400
MAX_KUBERNETES_SECONDS = 86_400
"""Longest lifetime for signers of kubernetes.io."""


def signer_name_errors(signer: str, path: str) -> list[FieldError]:
    """Validate a signer name."""
    if not signer:
        return [required(path)]
    domain, slash, name = signer.partition("/")
    if not slash or "/" in name:
        detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        return [invalid(path, signer, detail)]
    errors = [too_long(path, SUBDOMAIN_MAX)] if len(domain) > SUBDOMAIN_MAX else []
    labels = domain.split(".")
    for label in labels:
        if details := dns1123_label_errors(label):
            errors += [invalid(path, domain, f'validating label "{label}": {detail}') for detail in details]
            break
    if len(labels) < 2:
        errors.append(invalid(path, domain, "should be a domain with at least two segments separated by dots"))
    for label in name.split("."):
        if details := dns1123_subdomain_errors(label):
            errors += [invalid(path, name, f'validating label "{label}": {detail}') for detail in details]
            break
    if len(signer) > MAX_SIGNER_NAME:
        errors.append(too_long(path, MAX_SIGNER_NAME))
    return errors


def longest_seconds(signer: str) -> int:
    """Return the longest lifetime for which a signer can be asked."""
    domain = signer.partition("/")[0]
    is_of_kubernetes = domain == "kubernetes.io" or domain.endswith(".kubernetes.io")
    return MAX_KUBERNETES_SECONDS if is_of_kubernetes else MAX_SECONDS


def user_annotation_errors(annotations: dict[str, str], path: str) -> Iterator[FieldError]:
    """Validate what the author of a Pod tells a signer."""
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        yield too_long(path, MAX_ANNOTATIONS)
        # There may be a hundred thousand keys.
        return
    for key in annotations:
        lower = key.lower()
        if not lower:
            yield required(path)
            continue
        details = qualified_name_errors(lower)
        if not details and "/" not in lower:
            details = ['must be a domain-prefixed key (such as "acme.io/foo")']
        for detail in details:
            yield invalid(path, lower, detail)
