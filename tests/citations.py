"""Broken citations: `python -m tests.citations` lists them as `file:line: finding`, and fails when there are any.

Searched are docstrings and comments of Python files, comments of shell scripts, and pages of the documentation outside their fenced
blocks; the imports of Python blocks; and the files of the build. A citation is one of:
* a link of a page, with its heading; a decision's number in the text of a link must be that of its target;
* a page, with its heading: `docs/protocol/watch.md#form`;
* a decision by its number ("ADR 0003", "decision 0003", `docs/adr/0003`), and a law of docs/architecture.md ("law 8");
* a file or a folder below `src/`, `tests/`, `bench/`, `examples/` or `docs/`, and a path in backquotes below `src/mooring`;
* a module, or a name in one: `mooring.pki.pem`, `mooring.registry.offload.Offload.run`;
* a test: `tests/test_docs.py::test_every_page_of_the_documentation_can_be_reached_from_the_index`, or the name alone in backquotes.
CHANGELOG.md describes the past, so only its links are checked. Pages outside the repository cannot be cited.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = ("src", "tests", "bench", "examples")
BUILD = ("pyproject.toml", "Makefile", ".ci/run")
PAST = "CHANGELOG.md"
UNREAD = ("tests/test_citations.py",)
"""Files with broken citations on purpose, to prove that each is found."""
NO_MODULES = ("db", "dev", "example", "io", "yaml")
"""Words after `mooring.` in names that are no modules: a file, a domain."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_GAP = r"[\s#]+"  # between the words of a citation, which may continue in the next line of a comment
_PAGE = re.compile(r"(?<![\w./-])((?:docs/(?:[\w-]+/)*)?[\w-]+\.md)(?:#([\w-]+))?")
_DECISION = re.compile(
    rf"(?:\bADRs?|\b[Dd]ecisions?){_GAP}(\d{{4}}\b(?:(?:,| and|, and){_GAP}\d{{4}}\b)*)|docs/adr/(\d{{4}})\b(?!-)"
)
_LAW = re.compile(rf"\b[Ll]aws?{_GAP}(\d+)(?:(?:,| and|-){_GAP}?(\d+))?\b")
_PATH = re.compile(r"(?<![\w./-])((?:src|tests|bench|examples|docs)/[\w./*-]*[\w/*])(?:::(\w+(?:::\w+)?))?")
_BACKQUOTED_PATH = re.compile(r"`((?!api/v1)(?:[a-z_0-9-]+/)+[\w*-]*(\.(?:py|sh|md))?|[\w*-]+(\.(?:py|sh)))`")
_MODULE = re.compile(r"(?<![\w./@:-])mooring((?:\.[A-Za-z_]\w*)+)(?![\w/(]*@)")
_FUNCTION = re.compile(r"^ *(?:async )?def (\w+)", re.MULTILINE)
_IMPORT = re.compile(r"^from (mooring[\w.]*) import ([\w, ]+)$", re.MULTILINE)
_TEST = re.compile(r"`(test_\w+)`")
_OUTSIDE = re.compile(rf"(?:(?<![\w-])reference/|(?<![\w./-]))(?:kubernetes|k3s)\.md|\bseed{_GAP}\d{{3}}\b")


@dataclass(frozen=True, slots=True)
class Finding:
    """A citation of something that does not exist."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def prose_of_page(text: str) -> str:
    """Return a page with blanks in place of its fenced blocks; all other text keeps its position."""
    return FENCE.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def prose_of_python(text: str) -> str:
    """Return the docstrings and comments of a Python file; every line keeps its number, code becomes empty."""
    lines = text.splitlines()
    prose = [""] * len(lines)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            prose[token.start[0] - 1] = token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            prose[first:last] = lines[first:last]
    return "\n".join(prose)


def prose_of_script(text: str) -> str:
    """Return the comments of a shell script; every line keeps its number, commands become empty."""
    return "\n".join(line if line.lstrip().startswith("#") else "" for line in text.splitlines())


_PROSE = {".md": prose_of_page, ".py": prose_of_python, ".sh": prose_of_script}


def anchors(page: str) -> set[str]:
    """Return the headings of a page as GitHub makes anchors of them; the second of two equal ones ends with -1."""
    seen = Counter[str]()
    found = set[str]()
    for heading in HEADING.findall(prose_of_page(page)):
        plain = LINK.sub(r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


class Repository:
    """Files with citations, and their possible targets."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    @cached_property
    def files(self) -> dict[str, Path]:
        """Every searched file, by its path in the repository."""
        found = [*self.root.glob("*.md"), *(self.root / "docs").rglob("*.md")]
        found += [path for name in BUILD if (path := self.root / name).exists()]
        for folder in CODE:
            found += [path for path in (self.root / folder).rglob("*") if path.suffix in (".py", ".sh")]
        named = {path.relative_to(self.root).as_posix(): path for path in sorted(found)}
        return {name: path for name, path in named.items() if "node_modules" not in path.parts}

    @cached_property
    def _anchors(self) -> dict[Path, set[str]]:
        return {}

    def anchors(self, page: Path) -> set[str]:
        """Return the anchors of a page, read once."""
        if page not in self._anchors:
            self._anchors[page] = anchors(page.read_text())
        return self._anchors[page]

    @cached_property
    def decisions(self) -> set[str]:
        """Numbers of the decisions."""
        return {path.name[:4] for path in (self.root / "docs/adr").glob("[0-9]*.md")}

    @cached_property
    def rooms(self) -> set[str]:
        """Folders of src/mooring."""
        return {path.name for path in (self.root / "src/mooring").glob("*/")}

    @cached_property
    def laws(self) -> int:
        """Number of laws in docs/architecture.md."""
        page = self.root / "docs/architecture.md"
        section = page.read_text().partition("\n## Laws\n")[2].partition("\n## ")[0] if page.exists() else ""
        return len(re.findall(r"^\d+\. ", section, re.MULTILINE))

    @cached_property
    def _basenames(self) -> set[str]:
        return {path.name for path in self.files.values()}

    @cached_property
    def _definitions(self) -> dict[Path, set[str]]:
        return {}

    def definitions(self, module: Path) -> set[str]:
        """Return the names that a module binds: classes, their attributes and methods, functions, imports, variables."""
        if module not in self._definitions:
            bound = self._definitions[module] = set[str]()
            for node in ast.walk(ast.parse(module.read_text())):
                match node:
                    case (
                        ast.FunctionDef(name)
                        | ast.AsyncFunctionDef(name)
                        | ast.ClassDef(name)
                        | ast.Name(name, ast.Store())
                    ):
                        bound.add(name)
                    case ast.alias(name, asname):
                        bound.add(asname or name)
                    case _:
                        pass
        return self._definitions[module]

    @cached_property
    def tests(self) -> set[str]:
        """Names of test functions and of test modules."""
        modules = [path for name, path in self.files.items() if name.startswith("tests/") and path.suffix == ".py"]
        return {path.stem for path in modules}.union(*(_FUNCTION.findall(path.read_text()) for path in modules))

    def exists(self, path: str, beside: Path) -> bool:
        """Return True when a path, which may hold `*`, exists from the root, from src/mooring, or from the file that cites it."""
        if "/" not in path.rstrip("/") and not path.endswith("/"):
            return any(Path(name).match(path) for name in self._basenames)
        bases = (self.root, self.root / "src/mooring", self.root / "src", beside.parent)
        return any((base / path).exists() or ("*" in path and any(base.glob(path.rstrip("/")))) for base in bases)

    def has_name(self, dotted: list[str]) -> bool:
        """Return True when a module below src/mooring, or a name in one, has this dotted path."""
        here = self.root / "src/mooring"
        for position, part in enumerate(dotted):
            if (here / part).is_dir():
                here = here / part
                continue
            module = here / f"{part}.py"
            if module.exists():
                return self._binds(module, dotted[position + 1 :])
            return self._binds(here / "__init__.py", dotted[position:])
        return True

    def _binds(self, module: Path, names: list[str]) -> bool:
        if not names:
            return True
        if not module.exists():
            return False
        bound = self.definitions(module)
        return all(name in bound for name in names)

    def findings(self) -> Iterator[Finding]:
        """Yield every broken citation, in the order of files and lines.

        Parsing takes ten times as long as searching: a file is parsed only when its whole text, code included, has a finding.
        """
        for name, path in self.files.items():
            text = path.read_text()
            if name in UNREAD or (path.suffix == ".py" and not any(self.broken(path, text))):
                continue
            prose = _PROSE.get(path.suffix, str)(text)
            imports = self._broken_imports(text) if path.suffix == ".md" and path.name != PAST else ()
            broken = sorted({*self.broken(path, prose), *imports})
            yield from (Finding(name, prose.count("\n", 0, offset) + 1, what) for offset, what in broken)

    def broken(self, file: Path, text: str) -> Iterator[tuple[int, str]]:
        """Yield (offset in the text, finding) for each broken citation of this text."""
        page = file.suffix == ".md"
        if page:
            yield from self._broken_links(file, text)
            text = LINK.sub(lambda link: link[1] + " " * (len(link[0]) - len(link[1])), text)
        if file.name == PAST:
            return
        yield from self._broken_pages(file, text)
        yield from self._broken_numbers(text)
        yield from self._broken_paths(file, text)
        yield from self._broken_names(text, backquotes=page)
        for match in _OUTSIDE.finditer(text):
            yield match.start(), f"{match[0]} is kept outside the repository"

    def _broken_links(self, file: Path, text: str) -> Iterator[tuple[int, str]]:
        for match in LINK.finditer(text):
            words, target = match[1], match[2]
            if target.startswith(("https://", "http://", "mailto:")):
                continue
            path, _, anchor = target.partition("#")
            there = (file.parent / path).resolve() if path else file
            if not there.exists():
                yield match.start(), f"the link to {path} leads nowhere"
            elif anchor and (there.suffix != ".md" or anchor not in self.anchors(there)):
                yield match.start(), f"{path or file.name} has no heading #{anchor}"
            number = re.search(r"\b\d{4}\b", words)
            if number and there.parent.name == "adr" and not there.name.startswith(number[0]):
                yield match.start(), f"the link says {number[0]} and leads to {there.name}"

    def _broken_pages(self, file: Path, text: str) -> Iterator[tuple[int, str]]:
        for match in _PAGE.finditer(text):
            if _OUTSIDE.match(text, match.start()) or match[1].startswith("NNNN"):
                continue  # `_broken_numbers` checks the first, the second is a pattern and no name
            bases = (
                (self.root, file.parent)
                if match[1].startswith("docs/")
                else (file.parent, self.root, self.root / "docs")
            )
            there = next((base / match[1] for base in bases if (base / match[1]).exists()), None)
            if there is None:
                yield match.start(), f"there is no page {match[1]}"
            elif match[2] and match[2] not in self.anchors(there):
                yield match.start(), f"{match[1]} has no heading #{match[2]}"

    def _broken_numbers(self, text: str) -> Iterator[tuple[int, str]]:
        for match in _DECISION.finditer(text):
            for number in re.findall(r"\d{4}", match[1] or match[2]):
                if number not in self.decisions:
                    yield match.start(), f"there is no decision {number}"
        for match in _LAW.finditer(text):
            for number in filter(None, match.groups()):
                if not 0 < int(number) <= self.laws:
                    yield match.start(), f"docs/architecture.md has no law {number}"

    def _broken_paths(self, file: Path, text: str) -> Iterator[tuple[int, str]]:
        for match in _PATH.finditer(text):
            path, test = match[1], match[2]
            if path.endswith(".md") or re.fullmatch(r"docs/adr/\d{4}", path):
                continue  # `_broken_pages` and `_broken_numbers` check these
            if not self.exists(path, self.root / "file"):
                yield match.start(), f"there is no {path}"
            elif test and not set(test.split("::")) <= self.definitions(self.root / path):
                yield match.start(), f"{path} has no {test}"
        for match in _BACKQUOTED_PATH.finditer(text):
            path, suffix = match[1], match[2] or match[3]
            first = path.partition("/")[0]
            if first in (*CODE, "docs") or not (suffix or first in self.rooms):
                continue  # the first ones were checked above, others are no paths of this repository
            if not self.exists(path, file):
                yield match.start(), f"there is no {path}"

    def _broken_imports(self, text: str) -> Iterator[tuple[int, str]]:
        for block in FENCE.finditer(text):
            if block[1] == "python":
                for match in _IMPORT.finditer(block[2]):
                    for name in match[2].split(","):
                        dotted = f"{match[1]}.{name.strip()}"
                        if not self.has_name(dotted.split(".")[1:]):
                            yield block.start(2) + match.start(), f"there is no {dotted}"

    def _broken_names(self, text: str, *, backquotes: bool) -> Iterator[tuple[int, str]]:
        for match in _MODULE.finditer(text):
            dotted = match[1][1:].split(".")
            if backquotes and text[match.start() - 1] != "`":
                continue
            if dotted[0] not in NO_MODULES and not self.has_name(dotted):
                yield match.start(), f"there is no mooring.{'.'.join(dotted)}"
        for match in _TEST.finditer(text):
            if match[1] not in self.tests:
                yield match.start(), f"there is no test {match[1]}"


def main() -> int:
    """Print every finding. Return the exit code, 1 when there are any."""
    findings = list(Repository().findings())
    sys.stdout.writelines(f"{finding}\n" for finding in findings)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
