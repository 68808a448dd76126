"""Rules about libraries: each import is declared, each dependency is used, and only by public names."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src/mooring").rglob("*.py"))


def normalised(name: str) -> str:
    """Return a distribution's name in normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", name, maxsplit=1)[0]).lower()


@cache
def imports(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the import statements of a file; the rest of its syntax tree is not kept."""
    return tuple(
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
    )


def imported(path: Path) -> Iterator[str]:
    """Yield the top-level packages that a file imports, without the standard library and this project."""
    for node in imports(path):
        match node:
            case ast.Import():
                modules = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module]
            case _:
                continue
        for module in modules:
            package = module.partition(".")[0]
            if package not in sys.stdlib_module_names and package != "mooring":
                yield package


def test_the_declared_dependencies_are_the_imported_ones() -> None:
    """Compare with the dependencies and the users' extras, without the development ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (wanted for name, wanted in project["optional-dependencies"].items() if name != "dev")
    declared = {normalised(one) for wanted in (project["dependencies"], *extras) for one in wanted}
    distributions = packages_distributions()
    used = {
        package: {normalised(one) for one in distributions[package]} for path in SOURCES for package in imported(path)
    }
    assert not {package for package, providers in used.items() if not providers & declared}, "imported, not declared"
    assert not declared - {provider for providers in used.values() for provider in providers}, "declared, not imported"


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_nothing_private_is_imported_from_a_library() -> None:
    found = []
    for path in SOURCES:
        for node in imports(path):
            match node:
                case ast.Import():
                    names = [alias.name for alias in node.names]
                case ast.ImportFrom(module=str(module), level=0) if module != "__future__":
                    names = [f"{module}.{alias.name}" for alias in node.names]
                case _:
                    continue
            found += [f"{path.relative_to(ROOT)}: {name}" for name in names if any(map(is_private, name.split(".")))]
    assert not [one for one in found if ": mooring." not in one]


@cache
def private_names(kind: type) -> frozenset[str]:
    """Return private names that a class of a library defines: its members, and the attributes that its methods set or read."""
    found = set(vars(kind))
    with contextlib.suppress(OSError, TypeError):  # compiled classes have no source
        found.update(re.findall(r"\bself\.(_\w+)", inspect.getsource(kind)))
    return frozenset(filter(is_private, found))


def shared_private_names(kind: type, definition: ast.ClassDef) -> set[str]:
    """Return private names that a class uses or defines, and that a library class which it extends has as well."""
    bases = [base for base in kind.__mro__[1:] if base is not object and not base.__module__.startswith("mooring")]
    theirs: set[str] = set().union(*map(private_names, bases))
    ours = set()
    for node in ast.walk(definition):
        match node:
            case (
                ast.Attribute(attr=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Name(id=name)
            ):
                ours.add(name)
            case _:
                pass
    return theirs & ours


class Reaching(Thread):
    """A class that breaks the rule."""

    def start(self) -> None:
        self._target = None


def test_the_use_of_a_private_name_of_a_base_class_is_found() -> None:
    (definition,) = ast.parse(inspect.getsource(Reaching)).body
    assert isinstance(definition, ast.ClassDef)
    assert shared_private_names(Reaching, definition) == {"_target"}


def test_no_class_uses_a_private_name_of_the_library_class_that_it_extends() -> None:
    """Reject attributes that would replace the library's own. ruff's SLF001 finds other uses of private names."""
    found = []
    for path in SOURCES:
        text = path.read_text()
        definitions = (
            [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)] if "class " in text else []
        )
        if not definitions:
            continue
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        for definition in definitions:
            if isinstance(kind := getattr(module, definition.name, None), type):
                shared = sorted(shared_private_names(kind, definition))
                found += [f"{path.relative_to(ROOT)}: {definition.name}.{name}" for name in shared]
    assert not found
