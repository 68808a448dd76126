"""The texts of messages agree with Kubernetes' generated.proto: numbers, types, and the markers that decide how values are merged.

`MOORING_KUBERNETES_SOURCE` names a source tree of Kubernetes. Of it `staging/src/k8s.io/api` and `apimachinery` are read.
"""

from __future__ import annotations

import os
import re
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = os.environ.get("MOORING_KUBERNETES_SOURCE", "")
pytestmark = pytest.mark.skipif(not SOURCE, reason="MOORING_KUBERNETES_SOURCE names no source tree of Kubernetes")

TEXTS = resources.files("mooring") / "data" / "api"
PACKAGES = sorted(one.name.removesuffix(".proto") for one in TEXTS.iterdir() if one.name.startswith("io.k8s."))
DIFFERENT = {
    "io.k8s.api.authentication.v1beta1.SelfSubjectReviewStatus.userinfo": "each version has a UserInfo of its own here",
}
"""Fields with another type than in Kubernetes, by their name in small letters, and why."""
_COMPARED = ("patchMergeKey", "patchStrategy", "listType", "listMapKey", "mapType")
_DEFAULTS = ("listType=atomic", "mapType=granular", "structType=granular")
_MESSAGE = re.compile(r"^((?:// .*\n|//\n)*)message (\w+) \{.*\n((?:.+\n|\n)*?)^\}$", re.MULTILINE)
_FIELD = re.compile(r"  (?:(optional|repeated) (\S+)|(map)<string, (\S+)>) (\w+) = (\d+);(.*)")
_MARKER = re.compile(r"\+(\w+)=(\S+)")


class Declared(NamedTuple):
    """A field. The name is in small letters: that of protobuf is `uID` where JSON has `uid`."""

    name: str
    form: str
    type: str
    markers: frozenset[str]


class Text(NamedTuple):
    """A message: its fields by the number of the struct that Go inlines, or 0, and by their own number."""

    is_described: bool
    fields: dict[tuple[int, int], Declared]


def read(text: str, package: str) -> dict[str, Text]:
    """Return the messages of a text, of ours or of Kubernetes."""
    return {name: Text(bool(above), dict(fields(body, package))) for above, name, body in _MESSAGE.findall(text)}


def fields(body: str, package: str) -> list[tuple[tuple[int, int], Declared]]:
    found, above = [], ""
    for line in body.splitlines():
        parts = _FIELD.fullmatch(line)
        if parts is None:
            above += line
            continue
        label, word, mapped, value, name, number, behind = parts.groups()
        markers = [(key, value.replace(",retainKeys", "")) for key, value in _MARKER.findall(above + behind)]
        compared = {f"{key}={value}" for key, value in markers if key in _COMPARED}
        kind = (word or value).removeprefix(".").removeprefix(package + ".")
        place = int(dict(markers).get("within", 0)), int(number)
        found.append((place, Declared(name.lower(), label or mapped, kind, frozenset(compared.difference(_DEFAULTS)))))
        above = ""
    return found


def test_fields_are_those_of_kubernetes() -> None:
    different = {}
    for package in PACKAGES:
        name = package.replace("io.k8s.", "k8s.io.", 1)
        folder = Path(SOURCE, "staging/src/k8s.io", *name.split(".")[2:])
        ours, theirs = (
            read(text, name)
            for text in ((TEXTS / f"{package}.proto").read_text(), (folder / "generated.proto").read_text())
        )
        assert ours, package
        for message, text in ours.items():
            for (within, number), own in text.fields.items():
                owner = theirs[theirs[message].fields[0, within].type if within else message]
                their = owner.fields.get((0, number))
                if their and not text.is_described:
                    their = their._replace(markers=own.markers)  # of an object that is only read
                if own != their:
                    different[f"{package}.{message}.{own.name}"] = own, their
    assert different.keys() == DIFFERENT.keys(), different
