"""Strict reading of a part of a configuration file: every mistake is reported with the path of its field, and all at once.

Rules kept here (docs/protocol/openid-connect.md#authenticationconfiguration): an unknown field is a mistake, reported with the
known field that it resembles, and so is a value of a wrong type. Null counts as absent. Reports quote values, because no field
here holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from mooring.errors import FieldError, invalid


class StrictPart:
    """One object of the file, at `path`, with its `known` fields. What is wrong is added to `mistakes`."""

    def __init__(self, value: Any, path: str, mistakes: list[str], *known: str) -> None:
        self.path = path
        self.mistakes = mistakes
        if not isinstance(value, Mapping):
            if value is not None:
                self.say(invalid(path, value, "it must be an object"))
            value = {}
        self._value: Mapping[str, Any] = value
        for name in value:
            if name not in known:
                near = get_close_matches(name.lower(), {one.lower(): one for one in known}, n=1)
                meant = next((one for one in known if near and one.lower() == near[0]), "")
                self.mistakes.append(
                    f"{self.at(name)}: unknown field" + (f', did you mean "{meant}"?' if meant else "")
                )

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def say(self, mistake: FieldError) -> None:
        self.mistakes.append(str(mistake))

    def said(self, name: str) -> bool:
        """Return whether the field is there; an empty text counts."""
        return self._value.get(name) is not None

    def part(self, name: str, *known: str) -> StrictPart:
        """The object in a field; an empty one when nothing was said."""
        return StrictPart(self._value.get(name), self.at(name), self.mistakes, *known)

    def parts(self, name: str, *known: str, most: int) -> list[StrictPart]:
        """The objects of a list in a field, at most so many."""
        return [StrictPart(one, path, self.mistakes, *known) for path, one in self._items(name, most)]

    def text(self, name: str) -> str:
        """The text in a field, "" when nothing was said."""
        value = self._value.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            self.say(invalid(self.at(name), value, "it must be a text"))
        return ""

    def texts(self, name: str, *, most: int) -> list[tuple[str, str]]:
        """Path and value of each text of a list in a field, at most so many."""
        found = []
        for path, one in self._items(name, most):
            if isinstance(one, str):
                found.append((path, one))
            else:
                self.say(invalid(path, one, "it must be a text"))
        return found

    def truth(self, name: str) -> bool:
        """The truth value in a field, False when nothing was said."""
        value = self._value.get(name)
        if value is not None and not isinstance(value, bool):
            self.say(invalid(self.at(name), value, "it must be true or false"))
        return value is True

    def _items(self, name: str, most: int) -> Iterator[tuple[str, Any]]:
        value = self._value.get(name)
        if not isinstance(value, list):
            if value is not None:
                self.say(invalid(self.at(name), value, "it must be a list"))
            return
        if len(value) > most:
            self.mistakes.append(f"{self.at(name)}: Too many: {len(value)}: must have at most {most} items")
        for index, one in enumerate(value[:most]):
            yield f"{self.at(name)}[{index}]", one
