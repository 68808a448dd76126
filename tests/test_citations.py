"""Every kind of broken citation is found, and no valid one."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.citations import Repository, anchors, prose_of_python, prose_of_script
from tests.support.rows import each_row

FILES = {
    "README.md": "# Mooring\n\n[pages](docs/index.md)\n",
    "docs/index.md": "# Pages\n\n## First `page`, and more\n\n```sh\n## no heading\n```\n",
    "docs/architecture.md": "# Architecture\n\n## Laws\n\n1. One.\n2. Two.\n\n## More\n\n1. No law.\n",
    "docs/adr/README.md": "# Decisions\n",
    "docs/adr/0001-rooms.md": "# 0001: Rooms\n",
    "docs/adr/0002-layers.md": "# 0002: Layers\n",
    "src/mooring/__init__.py": "",
    "src/mooring/clock.py": "import time\n\nTICK = 1\n\n\nclass Clock:\n    def now(self) -> float:\n        return time.time()\n",
    "src/mooring/pki/__init__.py": "CURVE: str\n",
    "src/mooring/pki/pem.py": "def read() -> None:\n    pass\n",
    "tests/test_clock.py": "def test_now() -> None:\n    pass\n",
    "tests/support/peers.py": "",
    "bench/growth.sh": "# measures growth\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def found(root: Path) -> list[str]:
    return [str(finding) for finding in Repository(root).findings()]


def test_a_repository_whose_citations_lead_somewhere_has_no_finding(root: Path) -> None:
    assert found(root) == []


SENTENCES = [
    # (sentence, what is found, or None)
    ("Kept by docs/index.md#first-page-and-more.", None),
    ("Kept by docs/index.md#second-page.", "docs/index.md has no heading #second-page"),
    ("Kept by docs/index.md#no-heading.", "docs/index.md has no heading #no-heading"),
    ("Kept by docs/other.md#first-page.", "there is no page docs/other.md"),
    ("Kept by SECURITY.md.", "there is no page SECURITY.md"),
    ("A file `NNNN-a-few-words.md` for each.", None),
    ("See ADR 0001 and ADRs 0001, 0002.", None),
    ("See ADR 0003.", "there is no decision 0003"),
    ("See ADRs 0001 and 0003.", "there is no decision 0003"),
    ("See decision 0007.", "there is no decision 0007"),
    ("See docs/adr/0002, docs/adr/0002-layers.md.", None),
    ("See docs/adr/0004.", "there is no decision 0004"),
    ("See docs/adr/0002-rooms.md.", "there is no page docs/adr/0002-rooms.md"),
    ("By law 2, and laws 1-2.", None),
    ("By law 3.", "docs/architecture.md has no law 3"),
    ("By laws 1 and 4.", "docs/architecture.md has no law 4"),
    ("Measured by bench/growth.sh in src/mooring/pki/pem.py; `pki/pem.py`, `pki/`, `pem.py`, `tests/support/`.", None),
    ("Measured by bench/fairness.py.", "there is no bench/fairness.py"),
    ("In src/mooring/pki/der.py.", "there is no src/mooring/pki/der.py"),
    ("In `pki/der.py`.", "there is no pki/der.py"),
    ("In `pki/der`.", "there is no pki/der"),
    ("In `der.py`.", "there is no der.py"),
    ("In `wire/`, `core/v1` and k8s.io/api/tests/none.go.", None),
    ("In every tests/test_*.py.", None),
    ("In every tests/never_*.py.", "there is no tests/never_*.py"),
    (
        "Of `mooring.pki.pem`, `mooring.pki.pem.read`, `mooring.pki.CURVE`, `mooring.clock.Clock.now`, `mooring.clock.TICK`.",
        None,
    ),
    ("Of `mooring.dev/name` and `mooring.db`.", None),
    ("Of `mooring.pki.der`.", "there is no mooring.pki.der"),
    ("Of `mooring.pki.pem.write`.", "there is no mooring.pki.pem.write"),
    ("Of `mooring.clock.Clock.then`.", "there is no mooring.clock.Clock.then"),
    ("Of `mooring.wire.pem`.", "there is no mooring.wire.pem"),
    ("Proved by tests/test_clock.py::test_now and `test_now` in `test_clock`.", None),
    ("Proved by tests/test_clock.py::test_then.", "tests/test_clock.py has no test_then"),
    ("Proved by tests/test_calendar.py::test_then.", "there is no tests/test_calendar.py"),
    ("Proved by `test_then`.", "there is no test test_then"),
    ("Rules of reference/kubernetes.md 7.11.", "reference/kubernetes.md is kept outside the repository"),
    ("Rules of kubernetes.md 7.11.", "kubernetes.md is kept outside the repository"),
    ("Rules of reference/k3s.md.", "reference/k3s.md is kept outside the repository"),
    ("Rules of seed 004.", "seed 004 is kept outside the repository"),
]


FORMS = [
    # (file, its text around a sentence, the line of the sentence)
    ("docs/page.md", "# Page\n\n{}\n", 3),
    ("src/mooring/kept.py", '"""Keeps.\n\n{}\n"""\n', 3),
    ("tests/test_kept.py", "LIMIT = 1\n# {}\n", 2),
    ("tests/kept.sh", "true\n# {}\n", 2),
    ("Makefile", "check: # {}\n", 1),
]


@each_row("form, sentence", itertools.product(FORMS, SENTENCES), lambda row: f"{row[0][0]}, {row[1][0]}")
def test_a_citation_is_found_when_it_leads_nowhere(
    root: Path, form: tuple[str, str, int], sentence: tuple[str, str | None]
) -> None:
    (file, text, line), (citation, what) = form, sentence
    (root / file).write_text(text.format(citation))
    findings = found(root)
    (root / file).unlink()
    assert findings == ([f"{file}:{line}: {what}"] if what else [])


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("[text](index.md)", None),
        ("[text](index.md#first-page-and-more)", None),
        ("[text](#page)", None),
        ("[text](../tests/support/peers.py)", None),
        ("[text](https://example.com/none.md#none)", None),
        ("[0001](adr/0001-rooms.md)", None),
        ("[text](none.md)", "the link to none.md leads nowhere"),
        ("[text](index.md#none)", "index.md has no heading #none"),
        ("[text](#none)", "page.md has no heading #none"),
        ("[text](../tests/support/peers.py#none)", "../tests/support/peers.py has no heading #none"),
        ("[decision 0002](adr/0001-rooms.md)", "the link says 0002 and leads to 0001-rooms.md"),
    ],
)
def test_a_link_is_found_when_it_leads_nowhere(root: Path, link: str, what: str | None) -> None:
    (root / "docs/page.md").write_text(f"# Page\n\n```text\n[text](nowhere.md)\n```\n\n{link}\n")
    assert found(root) == ([f"docs/page.md:7: {what}"] if what else [])


def test_a_page_shows_only_imports_that_work(root: Path) -> None:
    block = "```python\nfrom mooring.pki.pem import read\nfrom mooring.clock import Clock, Calendar\n```\n"
    (root / "docs/page.md").write_text(f"# Page\n\n{block}")
    assert found(root) == ["docs/page.md:5: there is no mooring.clock.Calendar"]


def test_a_citation_that_goes_on_in_the_next_line_is_found(root: Path) -> None:
    (root / "src/mooring/kept.py").write_text("LIMIT = 1\n# Chosen by decision\n# 0009, for speed.\n")
    assert found(root) == ["src/mooring/kept.py:2: there is no decision 0009"]


def test_the_changelog_describes_the_past_and_its_links_lead_somewhere(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("# Changes\n\n`pki/der.py` is gone, see [the page](docs/none.md).\n")
    assert found(root) == ["CHANGELOG.md:3: the link to docs/none.md leads nowhere"]


def test_code_cites_nothing() -> None:
    source = 'HINT = "see ADR 0009"\n\n\ndef read() -> None:\n    """See ADR 0001."""\n    print("# law 9")  # see ADR 0002\n'
    assert prose_of_python(source).splitlines() == ["", "", "", "", '    """See ADR 0001."""', "# see ADR 0002"]
    assert prose_of_script("echo 'ADR 0009'\n  # see ADR 0001\n").splitlines() == ["", "  # see ADR 0001"]


def test_anchors_are_those_of_github() -> None:
    page = "# A `token`, of course\n\n## Keys & flags\n\n## [Linked](x.md) heading\n\n## test/e2e/auth\n\n## Keys & flags\n"
    assert anchors(page) == {"a-token-of-course", "keys--flags", "linked-heading", "teste2eauth", "keys--flags-1"}
