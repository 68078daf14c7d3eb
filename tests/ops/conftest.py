"""Counts the contract checks and prints their number at the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from _pytest.terminal import TerminalReporter

NAME = "contract checks"


@pytest.fixture
def checked(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """`checked(n)`: n more checks were made. The numbers travel with the reports, also from workers."""

    def count(checks: int = 1) -> None:
        record_property(NAME, checks)

    return count


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    total = sum(
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == NAME
    )
    if total:
        terminalreporter.write_line(f"{NAME}: {total}")
