"""No test sleeps for a fixed time to wait for something: it looks again until it is there, with a bound that ends a hang."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
LASTS = "how long the fault lasts that is tried"
NOTHING = "shows that nothing happens meanwhile; a slow machine cannot make it fail"
BEGUN = "lets the other task begin to wait; the result is the same when it has not"
ALLOWED = {
    "agent/test_hooks.py": {"test_a_hook_that_was_cut_off_runs_again_at_the_next_start": NOTHING},
    "faults/disk/serverseed.py": {"_change": "the interval of the schedule, whose snapshots the fault meets"},
    "faults/fleet.py": {"_machine": "the moment of a join, drawn by the seed"},
    "faults/site.py": dict.fromkeys(("faults", "leader_stops"), LASTS),
    "faults/test_etcd_members.py": {
        "test_a_restore_from_a_snapshot_is_noticed_and_never_served_silently": BEGUN,
        "test_a_password_and_its_token_are_renewed_and_wrong_ones_are_told": "the life of a token of etcd",
    },
    "server/test_sharedmemory.py": {
        "test_a_worker_that_waits_gets_the_seat_although_nothing_runs_there": NOTHING,
    },
    "server/test_http2.py": {"test_a_reply_that_the_kernel_still_holds_is_waited_for_before_the_end": NOTHING},
    "storage/test_etcd.py": {
        "test_a_version_that_tells_progress_is_asked_for_it_and_sends_no_keys_of_others": BEGUN,
        "test_after_a_restore_all_revisions_are_greater_than_those_shown_before": BEGUN,
    },
    "storage/test_etcd_deadlines.py": {
        "_call": "time of the loop of this file, which is advanced at once",
        "test_a_caller_that_comes_during_a_round_trip_waits_its_own_time_only": "as above",
    },
    "storage/test_sqlite_file.py": {
        "test_other_work_has_its_turn_during_a_large_range_and_a_slow_commit": "a commit that takes long, in another thread",
    },
}
"""Functions that sleep once, by file, and why they may."""


def sleeps(text: str) -> list[tuple[str, int]]:
    """Return the function and line of each sleep that is neither repeated in a loop nor a turn of the event loop."""
    found: list[tuple[str, int]] = []
    tree = ast.parse(text)
    names = {"sleep"} | {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name == "sleep" and alias.asname
    }

    def visit(node: ast.AST, function: str, *, in_loop: bool) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                function, in_loop = function or name, False
                if name == "sleep":  # of a clock
                    return
            case ast.ClassDef():
                function, in_loop = "", False
            case ast.While() | ast.For() | ast.AsyncFor():
                in_loop = True
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args, keywords=keywords) if (
                name in names
            ):
                given = [*args, *(keyword.value for keyword in keywords)]
                is_turn = len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value == 0
                if not in_loop and not is_turn:
                    found.append((function, node.lineno))
        for child in ast.iter_child_nodes(node):
            visit(child, function, in_loop=in_loop)

    visit(tree, "", in_loop=False)
    return found


def test_no_test_sleeps_to_wait_for_something() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    found = {name: {function for function, _ in sleeps(text)} for name, text in texts.items() if "sleep" in text}
    assert {file: functions for file, functions in found.items() if functions} == {
        file: set(functions) for file, functions in ALLOWED.items()
    }


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param("async def test():\n    await asyncio.sleep(0.05)", [2], id="a fixed time"),
        pytest.param("def test():\n    time.sleep(secs=1)", [2], id="by keyword"),
        pytest.param("from time import sleep as pause\ndef test():\n    pause(1)", [3], id="by another name"),
        pytest.param("def test():\n    def inner():\n        time.sleep(1)", [3], id="in a function of a test"),
        pytest.param("def test():\n    while not done():\n        time.sleep(0.01)", [], id="looking again"),
        pytest.param("async def test():\n    await asyncio.sleep(0)", [], id="a turn of the loop"),
        pytest.param("class Clock:\n    async def sleep(self, s):\n        await asyncio.sleep(s)", [], id="a clock"),
    ],
)
def test_a_sleep_is_found(text: str, lines: list[int]) -> None:
    assert [line for _, line in sleeps(text)] == lines
