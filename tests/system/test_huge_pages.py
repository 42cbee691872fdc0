"""Large memory asks for huge pages, in the engine and in builds; Linux tells which memory did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.runtime.arena import HUGE_BYTES, HUGE_PAGE, allocate
from tests.support.builds import load, make_build, needs_cc
from tests.support.places import GOLDENS

SMAPS = Path("/proc/self/smaps")
pytestmark = pytest.mark.skipif(
    not SMAPS.exists() or not Path("/sys/kernel/mm/transparent_hugepage").exists(),
    reason="this kernel has no transparent huge pages",
)


def flags(address: int) -> set[str]:
    """Return the kernel's flags of the memory at an address; `hg` means that huge pages are
    requested.
    """
    distinct, inside = set[str](), False
    for line in SMAPS.read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(head[1], 16) <= address < int(head[2], 16)
        elif inside and line.startswith("VmFlags:"):
            distinct = set(line.split()[1:])
    return distinct


@pytest.mark.parametrize("zero", [True, False])
def test_large_memory_of_the_engine_asks_for_huge_pages(zero: bool) -> None:
    memory = allocate(4 * HUGE_BYTES, zero=zero)
    assert memory.ctypes.data % HUGE_PAGE == 0, "otherwise chance decides how much of it is in them"
    assert "hg" in flags(memory.ctypes.data + 2 * HUGE_BYTES)
    assert not zero or not memory.any()
    small = allocate(HUGE_BYTES // 64, zero=zero)
    assert small.nbytes == HUGE_BYTES // 64


@needs_cc
def test_large_memory_of_a_build_asks_for_huge_pages() -> None:
    trainer = load(make_build("cnn", batches=(1024,))).Trainer(GOLDENS / "cnn/checkpoint")
    address = trainer.state._handle.pointer.value
    assert address % HUGE_PAGE == 0, "otherwise chance decides how much of it is in them"
    assert "hg" in flags(address + HUGE_BYTES // 2)
