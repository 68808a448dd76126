"""A statement about each row of a table, as one test: an item of its own for each row costs more than most statements do."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_row(
    names: str, rows: Iterable[Any] | Callable[[], Iterable[Any]], name: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for each row, and fail once for all rows that fail, each by its `name` and with its failure.

    `names`: the arguments for the values of a row, with commas between them, as of `pytest.mark.parametrize`. `rows`: also a
    function, which is called when the test runs. All rows share the fixtures of the test.
    """
    known = () if callable(rows) else tuple(rows)
    arguments = [argument.strip() for argument in names.split(",")]

    def statement(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            table = tuple(rows()) if callable(rows) else known
            failures: list[str] = []
            first: BaseException | None = None
            for row in table:
                values = row if len(arguments) > 1 else (row,)
                try:
                    test(**dict(zip(arguments, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as failure:
                    first = first or failure
                    failures.append(f"{name(row)}: {''.join(traceback.format_exception_only(failure)).strip()}")
            if failures or not table:
                text = "\n\n".join([f"{len(failures)} of {len(table)} rows fail", *failures])
                raise AssertionError(text) from first

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in arguments]
        run.__dict__.pop("__wrapped__", None)  # pytest would see the values as fixtures
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined] # read by pytest
        return run

    return statement
