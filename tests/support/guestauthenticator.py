"""A custom authenticator for servers of tests, which import it by its name, and nothing else of the tests by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mooring.authn import plugin


class Guest:
    """A custom authenticator that recognises no user."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def authenticate(self, offered: plugin.Offered) -> plugin.NotMine:
        return plugin.NotMine("no-such-user")
