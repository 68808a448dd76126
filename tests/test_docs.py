"""Checks of the documentation against the code.

Rules kept here: the real command line accepts every `mooring …`
line in a fenced block; every limit has its value; decisions are numbered once and listed; every page can be reached.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import click
import pytest

from mooring.authz.table import AUTHORIZERS
from mooring.cli.commands import COMMANDS
from mooring.cli.main import program
from mooring.errors import ConfigError
from mooring.pki.x509.signers import SIGNERS
from mooring.registry.admission.table import ADMISSION
from tests.citations import FENCE, LINK, prose_of_page
from tests.support.rows import each_row

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HAND_WRITTEN = [page for page in PAGES if "reference" not in page.parts]
SHELLS = ("sh", "bash", "shell", "console")

_CONSTANT = re.compile(r"`([a-z_/]+\.py)` `([A-Z][A-Z_]+)`")
_DECISION = re.compile(r"(\d{4})-[a-z0-9-]+\.md")


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _command_lines(page: Path) -> Iterator[list[str]]:
    """Yield the arguments of every `mooring` command in the shell blocks of a page."""
    for language, block in FENCE.findall(page.read_text()):
        if language not in SHELLS:
            continue
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>()")
            lexer.whitespace_split = True
            lexer.commenters = "#"
            words: list[str] = []
            for word in [*lexer, ";"]:
                if not word or not set(word) <= set("|;&<>()"):
                    words.append(word)
                    continue
                if "mooring" in words[:2]:
                    yield words[words.index("mooring") + 1 :]
                words = []


LINES = [(page, words) for page in HAND_WRITTEN for words in _command_lines(page)]


def _parse(words: list[str]) -> None:
    """Parse the line with click, without running the command."""
    command: click.Command = program()
    name, rest = "mooring", words
    context: click.Context | None = None
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        context = click.Context(command, info_name=name, parent=context)
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None  # otherwise click has raised
        name, command = found.name or "", found
    try:
        command.make_context(name, list(rest), parent=context)
    except click.exceptions.Exit:
        return  # --help and --version end here
    except ConfigError as error:
        if "cannot be read" not in str(error):  # the line names a configuration file of the reader's
            raise


@pytest.mark.parametrize("page", sorted({page for page, _ in LINES}), ids=_named)
def test_every_command_line_in_the_documentation_is_taken_by_the_real_command(page: Path) -> None:
    for words in (words for found, words in LINES if found == page):
        try:
            _parse(words)
        except (click.ClickException, ConfigError) as error:
            raise AssertionError(f"mooring {' '.join(words)}: {error}") from error


def test_a_command_line_that_does_not_exist_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        _parse(["token", "create", "--no-such-flag"])
    with pytest.raises(click.UsageError):
        _parse(["token", "crate"])


def test_every_command_is_shown_somewhere() -> None:
    shown = [" ".join(words) + " " for _, words in LINES]
    missing = [path for path in COMMANDS if not any(line.startswith(path + " ") for line in shown)]
    assert missing == []


def _limits() -> Iterator[tuple[str, str, str]]:
    """Yield (value as written, file, constant) of every limit in the table of limits."""
    for line in (ROOT / "docs/operate.md").read_text().splitlines():
        for file, constant in _CONSTANT.findall(line):
            yield line.split("|")[2], file, constant


LIMITS = tuple(_limits())


def test_every_limit_in_the_documentation_is_the_one_in_the_code() -> None:
    wrong = []
    for written, file, constant in LIMITS:
        module = import_module("mooring." + file.removesuffix(".py").replace("/", "."))
        limit = getattr(module, constant)
        value = limit.total_seconds() if isinstance(limit, timedelta) else float(limit)
        units = {"MiB": 1 << 20, "KiB": 1 << 10, "minutes": 60, "hour": 3600}
        unit = next((factor for name, factor in units.items() if name in written), 1)
        numbers = [float(number.replace(" ", "")) for number in re.findall(r"\d+(?: \d{3})*(?:\.\d+)?", written)]
        if value / unit not in numbers:
            wrong.append((constant, value, written))
    assert wrong == []


def test_the_table_of_limits_is_there() -> None:
    assert len(LIMITS) > 20


def _flags_of_the_server() -> Iterator[str]:
    for parameter in COMMANDS["server"].load().params:
        yield from (name for name in parameter.opts if name.startswith("--") and name != "--verbose")


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/access.md", [*ADMISSION, *AUTHORIZERS]),
        ("docs/certificates.md", [*SIGNERS]),
        ("docs/operate.md", [*_flags_of_the_server()]),
    ],
)
def test_every_row_of_a_table_that_users_meet_is_described(page: str, names: list[str]) -> None:
    text = (ROOT / page).read_text()
    assert [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []


def test_every_room_of_the_code_is_described_in_the_architecture() -> None:
    described = (ROOT / "docs/architecture.md").read_text()
    rooms = [path.name for path in (ROOT / "src/mooring").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if f"| `{room}/` |" not in described] == []


def test_decisions_are_numbered_once_without_gaps_and_listed() -> None:
    folder = ROOT / "docs/adr"
    files = sorted(path.name for path in folder.glob("[0-9]*.md"))
    numbers = [match[1] for name in files if (match := _DECISION.fullmatch(name))]
    assert numbers == [f"{number:04}" for number in range(1, len(files) + 1)]
    listed = re.findall(r"^\| \[(\d{4})\]\(([^)]+)\)", (folder / "README.md").read_text(), re.MULTILINE)
    assert listed == list(zip(numbers, files, strict=True))


@each_row("page", sorted((ROOT / "docs/adr").glob("[0-9]*.md")))
def test_every_decision_has_context_decision_and_consequences(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.name[:4]}: ")
    assert "\nStatus: " in text
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_every_page_of_the_documentation_can_be_reached_from_the_index() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = (
            target.partition("#")[0]
            for _, target in LINK.findall(prose_of_page(page.read_text()))
            if "://" not in target
        )
        waiting += [there for target in targets if target and (there := (page.parent / target).resolve()).exists()]
    assert [_named(page) for page in PAGES if page not in reached] == []
