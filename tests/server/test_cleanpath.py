"""Clean form of a path, by the table of Go's own test (path.Clean) and of its ServeMux."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.server.endpoints.supervisor.routes import clean_path

CLEAN = {
    "": "/",
    "/": "/",
    "abc": "/abc",
    "/abc/def": "/abc/def",
    "/abc/": "/abc/",
    "/abc//": "/abc/",
    "//abc": "/abc",
    "///": "/",
    "/abc//def//ghi": "/abc/def/ghi",
    "/./abc/.": "/abc",
    "/abc/./": "/abc/",
    "/abc/def/..": "/abc",
    "/abc/def/../": "/abc/",
    "/abc/../..": "/",
    "/../abc": "/abc",
    "/../": "/",
    "/abc/../../././../def": "/def",
    "/.abc/..def/...": "/.abc/..def/...",
    "/%2e%2e/abc": "/%2e%2e/abc",
}


@pytest.mark.parametrize(("path", "clean"), CLEAN.items())
def test_clean_form(path: str, clean: str) -> None:
    assert clean_path(path) == clean


@given(st.text("/.ab", max_size=30))
def test_a_clean_form_is_clean(path: str) -> None:
    clean = clean_path(path)
    assert clean_path(clean) == clean
    assert clean.startswith("/")
    assert not set(clean.split("/")) & {".", ".."}
    assert "//" not in clean
