"""Fields of the read-only kinds as kube-apiserver stores them in protobuf (`mooring.api.readonly` says what clients see).

Rules kept here:
* `storedfields.txt` beside this module lists the fields. Numbers and names are those of types.go and generated.proto in k8s.io/api
  1.36. There are no descriptions.
* A line without an indent is the name of a message. Below it each line is a field: its type, its name and its number, as in
  generated.proto. The type is a `Scalar` by its value, or a message: of the same package by its last word, of another by its full
  name. A message stands above those that use it.
* `required`, `pointer` and `within N` are those of `Field`.
"""

from __future__ import annotations

import pkgutil
import re

from mooring.api.core.objectreference import OBJECT_REFERENCE
from mooring.api.core.pod.podtemplate import POD_TEMPLATE_SPEC
from mooring.api.core.pod.schema.scheduling import NODE_SELECTOR, TOLERATION
from mooring.api.core.pod.schema.volume import (
    HOST_PATH_VOLUME_SOURCE,
    NFS_VOLUME_SOURCE,
    PERSISTENT_VOLUME_CLAIM_SPEC,
    TYPED_LOCAL_OBJECT_REFERENCE,
)
from mooring.apimachinery.metav1 import LABEL_SELECTOR, OBJECT_META
from mooring.apimachinery.schema import Field, ListOf, MapOf, Message, Scalar, Type

_ELSEWHERE = (
    OBJECT_META,
    LABEL_SELECTOR,
    OBJECT_REFERENCE,
    POD_TEMPLATE_SPEC,
    NODE_SELECTOR,
    TOLERATION,
    HOST_PATH_VOLUME_SOURCE,
    NFS_VOLUME_SOURCE,
    PERSISTENT_VOLUME_CLAIM_SPEC,
    TYPED_LOCAL_OBJECT_REFERENCE,
)
"""Messages that kinds have which are written, too."""
_FIELD = re.compile(r" {2}(repeated |map )?(\S+) (\w+) = (\d+)( required)?( pointer)?(?: within (\d+))?")


def _read() -> dict[str, Message]:
    """Return the messages by their names, those of other kinds included."""
    content = pkgutil.get_data(__name__, "storedfields.txt")
    assert content is not None, "the loader of this package reads no data"
    found = {message.name: message for message in _ELSEWHERE}
    for block in re.split(r"\n(?! |$)", content.decode().rstrip()):
        name, *lines = block.split("\n")
        package = name.rpartition(".")[0]
        found[name] = Message(name, tuple(_field(line, package, found) for line in lines))
    return found


def _field(line: str, package: str, found: dict[str, Message]) -> Field:
    parts = _FIELD.fullmatch(line)
    assert parts is not None, line
    form, word, name, number, required, pointer, within = parts.groups()
    kind: Type
    if word in _SCALARS:
        kind = _SCALARS[word]
    else:
        kind = found[word if "." in word else f"{package}.{word}"]
    if form:
        kind = ListOf(kind) if form == "repeated " else MapOf(kind)
    return Field(name, int(number), kind, required=bool(required), pointer=bool(pointer), within=int(within or 0))


_SCALARS = {scalar.value: scalar for scalar in Scalar}
STORED_FIELDS = _read()
"""Messages by name."""
