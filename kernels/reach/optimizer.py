"""Reaches of the kernels that update parameters, and of what they look at before."""

from __future__ import annotations

from engine.kernels.ops.optimizer.adafactor import PART
from engine.kernels.ops.optimizer.ranges import RANGE, RUN
from engine.kernels.reach.call import Call, Reach, Table, if_, reach
from engine.kernels.reach.index import STATUS

TABLE: Table = {}


def _ranges(c: Call) -> tuple[int, int]:
    """The end of the ranges of the parameters, and how many runs they have."""
    found = c.records("ranges", RANGE, c.count)
    if c.owned and any(record["begin"] for record in found):
        c.refuse("a range that does not begin where its tensor does, of which threads have a tile")
    ends = [record["begin"] + record["size"] for record in found]
    return max(ends, default=0), sum(-(-record["size"] // RUN) for record in found)


def _common(c: Call, *names: str) -> dict[str, int]:
    """The reaches of the arguments that most kernels of updates share, and of some states."""
    c.positive("block")
    size, _ = _ranges(c)
    return {
        "lr": 1,
        "step": 1,
        "clip": if_(c.clips, 1),
        "signal": if_(c.signalled, 1),
        "ranges": c.count * RANGE.size,
        **dict.fromkeys(("p", "g", *names), size),
    }


@reach(TABLE, "sgd", writes="p")
def _sgd(c: Call) -> Reach:
    return {**_common(c), "step": 0}


@reach(TABLE, "momentum", writes="p m")
def _momentum(c: Call) -> Reach:
    return _common(c, "m")


@reach(TABLE, "adam", writes="p m v")
def _adam(c: Call) -> Reach:
    return _common(c, "m", "v")


@reach(TABLE, "adagrad", writes="p v")
def _adagrad(c: Call) -> Reach:
    return _common(c, "v")


@reach(TABLE, "lion", writes="p m")
def _lion(c: Call) -> Reach:
    return _common(c, "m")


@reach(TABLE, "rmsprop", writes="p v u m")
def _rmsprop(c: Call) -> Reach:
    return _common(c, "v", "u", "m")


@reach(TABLE, "lamb_moments", writes="m v sums")
def _lamb_moments(c: Call) -> Reach:
    _, runs = _ranges(c)
    found = _common(c, "m", "v")
    return {**found, "lr": 0, "sums": 2 * min(runs, c.runs)}


@reach(TABLE, "lamb_apply", writes="p")
def _lamb_apply(c: Call) -> Reach:
    size, runs = _ranges(c)
    return {
        "lr": 1, "step": 1, "p": size, "m": size, "v": size, "signal": if_(c.signalled, 1),
        "ranges": c.count * RANGE.size, "sums": 2 * runs,
    }  # fmt: skip


@reach(TABLE, "square_sums", writes="sums")
def _square_sums(c: Call) -> Reach:
    c.positive("block")
    size, runs = _ranges(c)
    used = min(runs, c.runs)
    return {"x": size, "sums": if_(used, c.at + used), "ranges": c.count * RANGE.size}


@reach(TABLE, "nonfinite_counts", writes="counts")
def _nonfinite_counts(c: Call) -> Reach:
    c.positive("block")
    size, runs = _ranges(c)
    used = min(runs, c.runs)
    return {"x": size, "counts": if_(used, c.at + used), "ranges": c.count * RANGE.size}


@reach(TABLE, "gradient_signal", writes="y")
def _gradient_signal(c: Call) -> Reach:
    return {"before": if_(c.given, 1), "counts": c.runs, "y": 1}


@reach(TABLE, "clip", writes="x")
def _clip(c: Call) -> Reach:
    return {"sums": c.runs, "x": c.n}


@reach(TABLE, "clip_factor", writes="y")
def _clip_factor(c: Call) -> Reach:
    return {"sums": c.runs, "y": 1}


@reach(TABLE, "norm", writes="y")
def _norm(c: Call) -> Reach:
    return {"sums": c.runs, "y": 1}


@reach(TABLE, "update_signal", writes="y")
def _update_signal(c: Call) -> Reach:
    return {"loss": c.n, "check": 1, "y": 1, "fault": STATUS}


# --- Adafactor


def _parts(c: Call) -> dict[str, int]:
    """The reaches into what the records of the parameters say where it is."""
    found = dict.fromkeys(("elements", "rows", "columns", "kept", "partial", "joined", "sums"), 0)
    for q in c.records("table", PART, c.count):
        if min(q["tall"], q["blocks"], q["group"]) < 1:
            c.refuse(f"a parameter cut into {q['blocks']} blocks of {q['tall']} rows")
        if c.owned and q["begin"]:
            c.refuse("a parameter that does not begin where its tensor does")
        whole = q["batch"] * q["columns"]
        blocks = -(-q["rows"] // q["tall"])
        beside = min(whole, q["size"]) if q["rows"] == 1 else whole
        ends = {
            "elements": q["begin"] + min(q["size"], whole * q["rows"]),
            "rows": if_(q["is_factored"], q["row_begin"] + q["batch"] * q["rows"]),
            "columns": q["column_begin"] + beside,
            "kept": q["column_begin"] + q["kept"],
            "partial": q["partial"] + if_(blocks, (blocks - 1) * whole + beside),
            "joined": q["partial"] + (q["blocks"] - 1) * whole + q["kept"],
            "sums": 2 * (q["first_unit"] + q["units"]),
        }
        found = {name: max(found[name], end) for name, end in ends.items()}
    return found


def _heads(c: Call) -> dict[str, int]:
    return {"signal": if_(c.signalled, 1), "table": c.count * PART.size}


@reach(TABLE, "adafactor_rows", writes="rows partial")
def _adafactor_rows(c: Call) -> Reach:
    c.positive("block")
    found = _parts(c)
    return {
        **_heads(c), "step": 1, "g": found["elements"], "clip": if_(c.clips, 1),
        "rows": found["rows"], "partial": found["partial"],
    }  # fmt: skip


@reach(TABLE, "adafactor_columns", writes="partial columns")
def _adafactor_columns(c: Call) -> Reach:
    found = _parts(c)
    return {**_heads(c), "step": 1, "partial": found["joined"], "columns": found["kept"]}


@reach(TABLE, "adafactor_norms", writes="sums")
def _adafactor_norms(c: Call) -> Reach:
    c.positive("block")
    found = _parts(c)
    return {
        **_heads(c), "p": found["elements"], "g": found["elements"], "clip": if_(c.clips, 1),
        "rows": found["rows"], "columns": found["columns"], "sums": found["sums"],
    }  # fmt: skip


@reach(TABLE, "adafactor_apply", writes="p m")
def _adafactor_apply(c: Call) -> Reach:
    c.positive("block")
    found = _parts(c)
    return {
        **_heads(c), "lr": 1, "step": 1, "p": found["elements"], "g": found["elements"],
        "clip": if_(c.clips, 1), "rows": found["rows"], "columns": found["columns"],
        "m": found["elements"], "sums": found["sums"],
    }  # fmt: skip
