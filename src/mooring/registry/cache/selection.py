"""Select objects for a list, watch or deletecollection: one kind, optionally a namespace, and selectors.

Rules kept here (docs/protocol/selectors.md):
* Every kind can be selected by metadata.name and metadata.namespace, and by the field labels that its stored kind declares.
  Any other field label is 400.
* An object is decoded only when the selectors need more than its name and namespace.
* A selector that requires one metadata.name narrows the search to that name: kubelets watch their own objects that way.
"""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.apimachinery.selectors import NAME, NAMESPACE, FieldSelector, LabelSelector, check_field_labels
from mooring.registry.cache.stored import Stored


class SelectionPredicate:
    """Filter of the objects of one kind. Raises BadRequestError for a field label that the kind does not declare."""

    __slots__ = ("_by_place", "_fields", "_labels", "by_place", "everything", "kind", "name", "namespace", "selective")

    def __init__(self, kind: Kind, namespace: str, labels: LabelSelector, fields: FieldSelector) -> None:
        self.kind = kind
        self.name = ""
        self.namespace = namespace
        self._labels = None if labels.empty else labels
        self._fields = None if fields.empty else fields
        self._by_place = False
        if self._fields is not None:
            check_field_labels(fields, kind.storage_kind.field_labels)
            self._by_place = all(label in (NAME, NAMESPACE) for label in fields.labels())
            self.name = fields.requires(NAME) or ""
            if kind.resource.namespaced and not namespace:
                self.namespace = fields.requires(NAMESPACE) or ""
        self.selective = self._labels is not None or self._fields is not None
        """True with selectors: a list then must not return how many objects remain (docs/protocol/lists.md)."""
        self.everything = not self.selective and not self.namespace
        self.by_place = self._labels is None and (self._fields is None or self._by_place)
        """True when name and namespace decide, which an object never changes."""
        if self.name and all(
            (term.label, term.value, term.negated) == (NAME, self.name, False) for term in fields.terms
        ):
            self._fields = None  # `name` says all

    @property
    def key(self) -> str:
        """The only key that can match, "" when several can."""
        if not self.name or (self.kind.resource.namespaced and not self.namespace):
            return ""
        return self.kind.key(self.namespace, self.name)

    def matches(self, stored: Stored) -> bool:
        """Return True when an object of this kind is selected."""
        if self.namespace and stored.namespace != self.namespace:
            return False
        if self.name and stored.name != self.name:
            return False
        if self._fields is not None:
            place = {NAME: stored.name, NAMESPACE: stored.namespace} if self._by_place else stored.fields
            if not self._fields.matches(place):
                return False
        return self._labels is None or self._labels.matches(stored.labels)
