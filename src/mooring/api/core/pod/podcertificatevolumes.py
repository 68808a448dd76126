"""Validation of the sources `podCertificate` of a new Pod's volumes.

Rules kept here (wording as kube-apiserver's; the request that a kubelet makes of a source must be accepted later):
* The source names a signer, a type of key, and a file at least. Its paths stay in the volume. The lifetime is within the limits of
  the signer. Keys of annotations have a domain.
* Pods that are stored already are not judged: their volumes cannot change.
"""

from __future__ import annotations

from collections.abc import Iterator

from mooring.api.meta.printcolumns import spec_of
from mooring.api.meta.signers import MIN_SECONDS, longest_seconds, signer_name_errors, user_annotation_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, invalid, not_supported, required

KEY_TYPES = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
_PATHS = ("credentialBundlePath", "keyPath", "certificateChainPath")


def source_errors(pod: Obj) -> list[FieldError]:
    """Return the errors of all sources `podCertificate`."""
    errors: list[FieldError] = []
    for index, volume in enumerate(spec_of(pod).get("volumes") or ()):
        for place, part in enumerate((volume.get("projected") or {}).get("sources") or ()):
            if "podCertificate" in part:
                at = f"spec.volumes[{index}].projected.sources[{place}].podCertificate"
                errors += _errors(part["podCertificate"] or {}, at)
    return errors


def _errors(source: Obj, at: str) -> Iterator[FieldError]:
    signer, kind = source.get("signerName") or "", source.get("keyType") or ""
    if signer:  # else the validation of every Pod says that it is missing
        yield from signer_name_errors(signer, f"{at}.signerName")
    yield from user_annotation_errors(source.get("userAnnotations") or {}, f"{at}.userAnnotations")
    if kind and kind not in KEY_TYPES:
        yield not_supported(f"{at}.keyType", kind, KEY_TYPES)
    seconds, longest = source.get("maxExpirationSeconds"), longest_seconds(signer)
    if seconds is not None and seconds < MIN_SECONDS:
        detail = f"if provided, maxExpirationSeconds must be >= {MIN_SECONDS}"
        yield invalid(f"{at}.maxExpirationSeconds", seconds, detail)
    if seconds is not None and seconds > longest:
        yield invalid(f"{at}.maxExpirationSeconds", seconds, f"if provided, maxExpirationSeconds must be <= {longest}")
    paths = [(name, source[name]) for name in _PATHS if source.get(name)]
    for name, path in paths:
        yield from _path_errors(path, f"{at}.{name}")
    if not paths:
        yield required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")


def _path_errors(path: str, at: str) -> Iterator[FieldError]:
    if path.startswith("/"):
        yield invalid(at, path, "must be a relative path")
    if ".." in path.split("/"):
        yield invalid(at, path, "must not contain '..'")
    elif path.startswith(".."):
        yield invalid(at, path, "must not start with '..'")
