"""Plans as bytes: what comes back is equal, and no bytes crash the reader or pass its checks."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FileError, PlanError
from engine.graphs.io import onnx_io
from engine.graphs.planner.planner import make_plan
from engine.kernels.machine.target import make
from engine.plan import file_reader
from engine.plan.plan import ALIGN, Plan
from engine.plan.plan_file import Tables, Writer, from_bytes, load, make_schema, to_bytes
from engine.tools.dev.case_graphs import OneNode, list_cases
from engine.trainer.step_plan import StepPlan
from tests.support.places import GOLDENS
from tests.support.plans import chain

TARGET = make("x86_64-unknown-linux-gnu", "x86-64-v3", "", "avx2")


def golden_plan() -> Plan:
    graph = onnx_io.load(GOLDENS / "cnn" / "eval_model.onnx")
    shapes = {
        name: tuple(d if isinstance(d, int) else 4 for d in t.shape)
        for name, t in graph.inputs.items()
    }
    return make_plan(graph, shapes, target=TARGET, threads=2)


KERNELS = "0123456789abcdef"
HEAD = struct.Struct("<4sIIIQQ")  # magic, version, checksum, flags, bytes of tables, of constants


def written(*plans: Plan) -> bytes:
    return to_bytes(plans, KERNELS)


def read(data: bytes) -> Plan:
    (plan,) = from_bytes(data, KERNELS, "x.plan")
    return plan


def sealed(data: bytes | bytearray, **head: int) -> bytes:
    """A file with fields of its head changed and its checksum right."""
    names = ("magic", "version", "crc", "flags", "tables", "constants")
    fields = dict(zip(names, HEAD.unpack_from(data), strict=True)) | head
    out = bytearray(data)
    out[: HEAD.size] = HEAD.pack(*fields.values())
    struct.pack_into("<I", out, 8, zlib.crc32(out[12:]))
    return bytes(out)


def directory(data: bytes) -> tuple[int, int]:
    """Where the rows of tables and the widths of columns are."""
    tables = len(make_schema(stripped=False))
    return HEAD.size, HEAD.size + 4 * tables


def test_plans_of_all_ops_come_back_equal() -> None:
    for case in list_cases()[::5]:
        plan = make_plan(OneNode(case).graph, {}, target=TARGET, threads=2)
        data = written(plan)
        assert read(data) == plan, case.id
        assert written(read(data)) == data


def test_several_plans_share_a_file() -> None:
    some = (golden_plan(), replace(golden_plan(), name="another"), chain())
    plans = tuple(replace(p, target=some[0].target, threads=2) for p in some)
    data = written(*plans)
    assert from_bytes(data, KERNELS) == plans
    assert len(data) < 0.7 * sum(len(written(p)) for p in plans)


def test_a_plan_file_is_compact() -> None:
    plan = golden_plan()
    assert len(written(plan)) < 0.7 * len(str(plan))  # most of both are names


def test_columns_lie_where_c_can_read_them_in_place() -> None:
    """Little-endian, each at a multiple of its width, the constants at a multiple of 64."""
    data = written(golden_plan())
    *_, size, constants = HEAD.unpack_from(data)
    assert size % ALIGN == 0
    assert len(data) == size + constants
    rows_at, widths_at = directory(data)
    columns = [c for cs in make_schema(stripped=False).values() for c in cs]
    at, tables = widths_at + len(columns), Tables(data)
    for i, column in enumerate(columns):
        width, (rows,) = data[widths_at + i], (tables.rows[column.table],)
        at += -at % max(width, 1)
        numbers = [
            int.from_bytes(data[at + k * width : at + (k + 1) * width], "little")
            for k in range(rows)
        ]
        assert numbers == tables.read_column(column.table, column.name), column
        at += width * rows
    assert rows_at == HEAD.size


def test_integers_of_64_bits_and_floats_survive() -> None:
    consts = (-(1 << 63), (1 << 63) - 1, -1, 0, 0.1, float("inf"), 1 << 16, 1, 1.0, -0.0, 65535)
    step = replace(chain().steps[0], consts=consts)
    plan = replace(chain(), steps=(step, *chain().steps[1:]))
    actual_consts = read_unverified(written(plan)).steps[0].consts
    assert [(type(c), str(c)) for c in actual_consts] == [(type(c), str(c)) for c in consts]


def read_unverified(data: bytes) -> Plan:
    """Return a plan whose constants do not fit its kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reader, "verify", lambda plan: plan)
        return read(data)


def test_steps_that_repeat_others_are_marked_and_names_say_nothing() -> None:
    first, *others = chain().steps
    steps = (replace(first, source="n0/again"), *(replace(s, again=True) for s in others))
    plan = read(written(replace(chain(), steps=steps)))
    assert [s.again for s in plan.steps] == [False, True, True]
    assert [s.title for s in plan.steps] == ["n0/again", "n1 (again)", "n2 (again)"]
    assert "  # n1 (again)\n" in str(plan)
    assert StepPlan(plan).recomputed == ["n1", "n2"]


def test_names_may_hold_any_character() -> None:
    names = "caf\u00e9 \0 \U0001f40d"
    plan = replace(chain(), name=names, steps=(replace(chain().steps[0], source=names),
                                               *chain().steps[1:]))  # fmt: skip
    assert read(written(plan)) == plan
    with pytest.raises(PlanError, match="is not Unicode"):
        written(replace(chain(), name="\ud800"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threads": 1 << 64}, "does not fit"),
        ({"lower_bound": -1}, "does not fit"),
        ({"kernels": ()}, "unknown kernel"),
    ],
)
def test_what_no_file_can_say_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        written(replace(chain(), **change))


def test_a_file_is_for_one_target() -> None:
    with pytest.raises(PlanError, match="one target"):
        written(chain(), replace(chain(), target="another"))


GOOD = written(chain())
SIZE = HEAD.unpack_from(GOOD)[4]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a plan file"),
        (b"ONNX" + bytes(60), "not a plan file"),
        (GOOD[:-1], "the head says"),
        (GOOD[:40], "the head says"),
        (sealed(GOOD, version=2), "version 2, expected"),
        (GOOD[:-1] + b"\x7f", "checksum"),
        (GOOD[:100] + bytes([GOOD[100] ^ 1]) + GOOD[101:], "checksum"),
        (sealed(GOOD, flags=2), "flags 2"),
        (sealed(GOOD, flags=1), "column"),
        (sealed(GOOD, tables=SIZE - 64, constants=0), "truncated"),
        (sealed(GOOD, tables=1 << 63), "the head says"),
        (sealed(GOOD, constants=1 << 63), "the head says"),
        (sealed(GOOD[:64], tables=64, constants=0), "truncated in the directory"),
        (sealed(GOOD[:SIZE] + bytes(64), tables=SIZE + 64, constants=0), "after the last"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(PlanError, match=rf"x\.plan: .*{words}"):
        read(data)


def test_a_huge_number_of_rows_is_refused_before_they_are_made() -> None:
    rows_at, widths_at = directory(GOOD)
    for i, columns in enumerate(make_schema(stripped=False).values()):
        bad = bytearray(GOOD)
        struct.pack_into("<I", bad, rows_at + 4 * i, 0xFFFFFFFF)
        with pytest.raises(PlanError, match=r"truncated|width"):
            read(sealed(bad))
        first = widths_at + [c for cs in make_schema(stripped=False).values() for c in cs].index(
            columns[0]
        )
        bad[first] = 0  # a column of zeros takes no bytes
        with pytest.raises(PlanError, match=r"width|truncated|fit"):
            read(sealed(bad))


def test_another_kernel_set_is_refused() -> None:
    with pytest.raises(PlanError, match=f"made for kernel set {KERNELS}, this is another"):
        from_bytes(GOOD, "another")


def test_stripped_files_are_for_libraries() -> None:
    with pytest.raises(PlanError, match="for libraries"):
        read(Writer(KERNELS, "x", 1, stripped=True).to_bytes())


def test_load_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.plan").write_bytes(GOOD)
    assert load(tmp_path / "x.plan", KERNELS) == (chain(),)
    with pytest.raises(FileError, match=r"cannot read plans '.*y\.plan': No such file"):
        load(tmp_path / "y.plan", KERNELS)


def test_a_sealed_plan_that_breaks_a_rule_is_refused() -> None:
    wild = replace(chain(), buffers=(replace(chain().buffers[0], offset=1 << 40),
                                     *chain().buffers[1:]))  # fmt: skip
    with pytest.raises(PlanError, match="alignment"):
        read(written(wild))


@pytest.mark.parametrize("plan", [chain(), golden_plan()], ids=["chain", "cnn"])
def test_any_damage_is_a_plan_error_or_a_verified_plan(plan: Plan) -> None:
    """Damage with a right checksum: prefixes, then random bytes changed."""
    data = written(plan)
    size = HEAD.unpack_from(data)[4]
    for n in range(HEAD.size, size, max(1, size // 400)):
        with pytest.raises(PlanError):
            read(sealed(data[:n], tables=n // 64 * 64, constants=0))
    dice = random.Random(7)
    refused = 0
    for _ in range(600):
        bad = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(HEAD.size, size)
            bad[place] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
        try:
            read(sealed(bad))
        except PlanError:
            refused += 1
    assert refused > 100
