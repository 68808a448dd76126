"""Notice messages of discovery, and the type of its exchanges."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from mooring.trust.httpexchange import HttpRequest, Reply, Wait

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user, without secrets. `keep`: the line stays on the terminal, as one about a failure does."""

    message: str
    keep: bool = False


DiscoveryExchange = Generator[HttpRequest | Wait | Notice, Reply, R]
