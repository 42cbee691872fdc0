"""Which rows `make bench` runs: those marked `whole` only where -k names their workload."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def is_named(item: pytest.Item) -> bool:
        return item.name.partition("[")[2].partition("-")[0] in config.option.keyword

    left_out = [i for i in items if i.get_closest_marker("whole") and not is_named(i)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [i for i in items if i not in left_out]
