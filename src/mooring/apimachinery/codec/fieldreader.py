"""Field reader: the fields of a decoded configuration object, each checked for its type.

Rules kept here: an absent field and null are the empty value of the type. An error names the path of the field and never its value,
which may be a credential.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mooring.apimachinery.schema import Obj

T = TypeVar("T")
Read = Callable[[Any, str], T]
"""Converts one value; its path is for errors."""


class FieldReader:
    """Reads the fields of one object and remembers which were read."""

    def __init__(self, value: Any, path: str, error: Callable[[str], Exception]) -> None:
        """`path` names the object in errors, which `error` makes."""
        self._error = error
        self._path = path
        if not isinstance(value, dict | None):
            raise error(f"{path} must be an object")
        self._fields: Obj = value or {}
        self._unread = set(self._fields)

    def nested(self, value: Any, path: str) -> FieldReader:
        """Return a reader for an object inside this one, with the same error."""
        return FieldReader(value, path, self._error)

    def path(self, key: str) -> str:
        """Return the path of a field."""
        return f"{self._path}.{key}" if self._path else key

    def value(self, key: str) -> Any:
        """Return a field of any type."""
        self._unread.discard(key)
        return self._fields.get(key)

    def text(self, key: str) -> str:
        """Return a text, "" when absent."""
        return self.as_text(self.value(key), self.path(key))

    def flag(self, key: str) -> bool:
        """Return a truth value, False when absent."""
        return self._typed(self.value(key), bool, self.path(key), "true or false") or False

    def object(self, key: str) -> Obj:
        """Return an object, empty when absent."""
        return self.as_object(self.value(key), self.path(key))

    def each(self, key: str, read: Read[T]) -> tuple[T, ...]:
        """Return the items of a list, each converted by `read`; none when absent."""
        return self._each(self.value(key), self.path(key), read)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of a list, none when absent."""
        return self.as_texts(self.value(key), self.path(key))

    def as_text(self, value: Any, path: str) -> str:
        """Return a value that must be text."""
        return self._typed(value, str, path, "text") or ""

    def as_texts(self, value: Any, path: str) -> tuple[str, ...]:
        """Return a value that must be a list of texts."""
        return self._each(value, path, self.as_text)

    def as_object(self, value: Any, path: str) -> Obj:
        """Return a value that must be an object."""
        return self._typed(value, dict, path, "an object") or {}

    def refuse_unknown(self) -> None:
        """Raise the error for the first field that was not read."""
        for key in self._fields:
            if key in self._unread:
                place = f"{self._path}: " if self._path else ""
                raise self._error(f'{place}unknown field "{key}"')

    def error(self, key: str, problem: str) -> Exception:
        """Return the error about one field."""
        return self._error(f"{self.path(key)}: {problem}")

    def _each(self, value: Any, path: str, read: Read[T]) -> tuple[T, ...]:
        items = self._typed(value, list, path, "a list") or []
        return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(items))

    def _typed(self, value: Any, kind: type[T], path: str, wanted: str) -> T | None:
        if value is not None and not isinstance(value, kind):
            raise self._error(f"{path} must be {wanted}")
        return value
