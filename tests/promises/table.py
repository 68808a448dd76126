"""The table of promises, read from the TOML files beside this one, and its page `docs/promises.md`.

A file has the promises of one gate. The key of a promise is its anchor on the page; `promise` is the sentence that users read.
Every other key names columns, and its value says how the promise is held there:

* the path of a file of tests, `::` and the name of a test, which fails when the promise is broken there;
* `never: PHRASE`: it cannot be broken there, and why;
* `exception: PHRASE (PAGE)`: an exception, and the page that describes it.

The keys `doors` and `moments` stand for all doors, and all moments, that no other key of the promise names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOORS = {
    "kubeadm": "join in kubeadm's way",
    "k3s": "join in k3s's way",
    "serving": "CSR for a serving certificate",
    "administrator": "CSR by an administrator",
    "person": "approval by a person",
    "signer": "Mooring's own signer",
    "renewal": "renewal",
    "recovery": "way back after expiry",
    "leave": "machine that leaves",
    "login": "login exchange",
    "serviceaccount": "service account token",
    "review": "review of a token or a right",
    "other-server": "another server of the cluster",
    "other-worker": "another worker of the server",
    "elsewhere": "controllers at another API server",
}
"""Ways in: endpoints, controllers, commands, other servers."""
MOMENTS = {
    "at-rest": "nothing else happens",
    "body": "the body of the request is awaited",
    "queued": "the request waits its turn",
    "watch": "a watch is open",
    "restart": "the server started again",
    "restore": "the store was restored",
    "unreadable": "the key of an object is missing",
    "leader": "the leader changed",
    "clock": "the clock moved",
}
"""Times between the judgement of a request and its effect, or states of the server at that time."""
GATES = {
    "Authentication": "authentication.toml",
    "Credentials at their effect": "credentials.toml",
    "Membership": "membership.toml",
    "Ownership of node names": "ownership.toml",
    "Names in certificates": "names.toml",
    "Issue of certificates": "issuance.toml",
    "Allowances of tokens and rules": "allowance.toml",
    "Rights": "rights.toml",
    "Discovery and trust": "discovery.toml",
    "What the cluster publishes": "publication.toml",
    "Revocations and tombstones": "tombstones.toml",
    "Secrets": "disclosure.toml",
    "Records": "records.toml",
    "Store and keys of the cluster": "storing.toml",
    "Limits": "limits.toml",
}
"""Files by the heading of their group on the page."""
MOST_WORDS = 12
"""Words of a reason, so that the page stays a table."""
_EXCEPTION = re.compile(r"exception: (?P<phrase>.+) \((?P<page>[^ ()]+)\)")


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: a sentence that users read, and what holds it in each column."""

    key: str
    sentence: str
    own: Mapping[str, str]
    """Value by column, for the columns that are named."""

    rest: Mapping[str, str]
    """Value of all doors, and of all moments, that have none of their own."""

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield columns that are held in the same way, and how."""
        columns: dict[str, list[str]] = {}
        for column, cell in {**self.own, **self.rest}.items():
            columns.setdefault(cell, []).append(column)
        yield from ((", ".join(names), cell) for cell, names in columns.items())

    def cells(self) -> dict[str, str]:
        """Return the value of each column."""
        found = {
            column: self.own.get(column, self.rest.get(name, ""))
            for name, columns in (("doors", DOORS), ("moments", MOMENTS))
            for column in columns
        }
        return {column: cell for column, cell in found.items() if cell}


def promises(text: str) -> Iterator[Promise]:
    """Yield the promises of a file. Raises ValueError for columns that are unknown or named twice."""
    for key, table in tomllib.loads(text).items():
        sentence, rest = table.pop("promise"), {name: table.pop(name) for name in ("doors", "moments") if name in table}
        named = [(column, cell) for columns, cell in table.items() for column in columns.split()]
        own = dict(named)
        if len(own) < len(named) or not own.keys() <= DOORS.keys() | MOMENTS.keys():
            raise ValueError(f"{key}: a column that is unknown or named twice, in {', '.join(table)}")
        yield Promise(key, sentence, own, rest)


def groups() -> dict[str, tuple[Promise, ...]]:
    """Return all promises by the heading of their group."""
    return {group: tuple(promises(Path(__file__).with_name(file).read_text())) for group, file in GATES.items()}


def exception(cell: str) -> tuple[str, str] | None:
    """Return the phrase and the page of an exception; None for another cell."""
    match = _EXCEPTION.fullmatch(cell)
    return (match["phrase"], match["page"]) if match else None


def faults(cell: str) -> list[str]:
    """Return what is wrong with a cell: a test or a page that does not exist, or a reason that is no phrase."""
    if cell.startswith("tests/"):
        return [] if exists(cell) else [f"no such test: {cell}"]
    phrase, page = exception(cell) or (cell.removeprefix("never: "), "docs/promises.md")
    if not is_heading(page):
        return [f"no such page or heading: {page}"]
    known = cell.startswith("never: ") or exception(cell) is not None
    return [] if known and 0 < len(phrase.split()) <= MOST_WORDS else [f"not a phrase: {cell}"]


def exists(test: str) -> bool:
    """Return whether the file of a test has it."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and re.search(rf"^ *(?:async )?def {re.escape(name)}\(", path.read_text(), re.M) is not None


def is_heading(page: str) -> bool:
    """Return whether a page exists, and the heading on it that its address names."""
    file, _, heading = page.partition("#")
    path = ROOT / file
    if not path.is_file() or not heading:
        return path.is_file()
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
