"""The work of a body, judged before it is decoded."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.apimachinery.codec.json import MAX_BODY, work_size
from mooring.apimachinery.patch import MAX_COPIED
from mooring.apimachinery.patch import work_size as patch_work_size


@pytest.mark.parametrize(
    ("body", "media", "size"),
    [
        pytest.param(b"a: &b [1]\nc: *b", "application/yaml", MAX_BODY, id="an alias"),
        pytest.param(b"a: &b [1]\nc: *b", "application/apply-patch+YAML; charset=utf-8", MAX_BODY, id="in an apply"),
        pytest.param(b"a: &b [1]", "application/yaml", 9, id="an anchor alone"),
        pytest.param(b"verbs: ['*']", "application/yaml", 12, id="a star"),
        pytest.param(b'{"a":"&*"}', "application/json", 10, id="JSON has no aliases"),
    ],
)
def test_yaml_may_grow_by_aliases(body: bytes, media: str, size: int) -> None:
    assert work_size(body, media) == size


@pytest.mark.parametrize(
    ("operations", "more"),
    [
        pytest.param([{"op": "add"}, {"op": "copy"}], MAX_COPIED, id="a copy"),
        pytest.param([{"op": "move"}, None, {}], 0, id="none"),
        pytest.param({"op": "copy"}, 0, id="no list"),
    ],
)
def test_a_json_patch_may_grow_by_copies(operations: Any, more: int) -> None:
    assert patch_work_size(operations, 5) == 5 + more
