"""Android's C library: what libraries may need of it, on every processor of a target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine.base.errors import EngineError
from engine.tools.trimmed import binary, bionic
from engine.tools.trimmed.link import link
from engine.tools.trimmed.targets import TARGETS, resolve
from tests.support.make_bionic import OLDEST, find_machines, read_map, read_table

ANDROID = [name for name in TARGETS if resolve(name).is_bionic]
MACHINES = ("aarch64", "arm", "x86_64")


@pytest.mark.parametrize("machine", MACHINES)
def test_phones_have_what_is_declared(machine: str) -> None:
    """All that a library can need, as the linker refuses others."""
    table = read_table()
    missing = [n for n in bionic.list_functions(machine) if machine not in table.get(n, ())]
    assert missing == [], "run python -m tests.support.make_bionic, or do without them"


def test_the_table_is_of_the_declared_functions() -> None:
    declared = {name for machine in MACHINES for name in bionic.list_functions(machine)}
    assert read_table().keys() == declared
    versions = [int(re.findall(r"android\D*(\d+)$", TARGETS[name].triple)[0]) for name in ANDROID]
    assert min(versions) >= OLDEST


MAP = """\
LIBC {
  global:
    first;
    vector; # arm arm64
    value; # var
    inner; # apex
};

LIBC_N { # introduced-arm64=24 introduced-x86_64=24
  global:
    helper; # arm versioned=24
    later;
} LIBC;

LIBC_P { # introduced=28
  global:
    new;
    early; # introduced-arm=21
} LIBC_N;

LIBC_PRIVATE {
  global:
    hidden;
} LIBC_P;
"""


def test_functions_that_came_later_or_are_not_for_apps_are_left_out() -> None:
    names = {"first", "vector", "value", "inner", "helper", "later", "new", "early", "hidden"}
    assert read_map(MAP, names) == {
        **{name: set() for name in names},
        "first": {"arm", "aarch64", "x86_64"},
        "vector": {"arm", "aarch64"},
        "helper": {"arm"},
        "later": {"arm"},
        "early": {"arm"},
    }
    assert find_machines([], ["introduced=21"]) == set(MACHINES)
    assert find_machines([], ["introduced=22"]) == set()


@pytest.mark.parametrize("target", ANDROID)
def test_a_library_that_needs_more_than_phones_have_does_not_link(
    target: str, tmp_path: Path
) -> None:
    """It would fail only as a program loads it: an Arm helper is on one processor, and
    `memfd_create` in Android 11.
    """
    platform = resolve(target)
    is_arm = platform.machine == "arm"
    for name, has_it in (("malloc", True), ("__aeabi_memcpy", is_arm), ("memfd_create", False)):
        source = tmp_path / f"{name}.c"
        source.write_text(
            f"extern void {name}(void);\n"
            '__attribute__((visibility("default"))) void call(void) { ' + f"{name}(); }}\n"
        )
        library = tmp_path / f"lib{name}.so"
        if has_it:
            link([], [source], platform, library, compiler="zig", flags=["-w"])
            assert binary.read(library).needs == {name}
        else:
            with pytest.raises(EngineError, match=f"undefined symbol: {name}"):
                link([], [source], platform, library, compiler="zig")
