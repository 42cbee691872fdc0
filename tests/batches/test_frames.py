"""DataFrames and columns by name as data: the same features as from a file of the same cells."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import Csv, Preparation, Table, batches
from engine.errors import DTypeError, EngineError, InputError, NameNotFoundError, ShapeError

COLUMNS: dict[str, Any] = {
    "length": [1.0, 2.0, None, 6.0],
    "colour": ["red", "blue", "red", "white, pale"],
    "width": [10, 20, 30, 40],
    "kind": ["rose", "tulip", "rose", "tulip"],
}
FILE = """length,colour,width,kind
1,red,10,rose
2,blue,20,tulip
,red,30,rose
6,"white, pale",40,tulip
"""


class Column:
    """A column as in polars: to_numpy and to_list, a dtype of its own."""

    def __init__(self, values: Any, dtype: str = "") -> None:
        self.values, self.dtype = values, dtype

    def to_numpy(self) -> Any:
        whole = all(isinstance(value, int | float) for value in self.values)
        return np.array(self.values, None if whole else object)

    def to_list(self) -> Any:
        return list(self.values)


class Frame:
    """A DataFrame of a package that is not installed."""

    def __init__(self, columns: dict[str, Any], categories: tuple[str, ...] = ()) -> None:
        self.columns, self.dtypes = list(columns), list[str]()
        self.shape = (len(next(iter(columns.values()))), len(columns))
        self._content = {
            name: Column(values, "Categorical" if name in categories else "")
            for name, values in columns.items()
        }

    def __getitem__(self, name: str) -> Any:
        return self._content[name]


def pandas_frame(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas", reason="needs pandas").DataFrame(columns)


def polars_frame(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars", reason="needs polars").DataFrame(columns)


SOURCES: dict[str, Any] = {
    "columns": dict, "frame": Frame, "pandas": pandas_frame, "polars": polars_frame,
}  # fmt: skip


@pytest.mark.parametrize("missing", ["drop", "mean", "median", "flag", "keep"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_frame_is_encoded_as_a_file(source: str, missing: Any, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text(FILE)
    table = Table(SOURCES[source](COLUMNS), "kind", missing=missing)
    file = Csv(tmp_path / "f.csv", "kind", missing=missing)
    assert table.preparation == file.preparation or missing == "keep"
    for mine, its in zip(table.take(np.arange(len(table))), file.take(np.arange(len(file))),
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(mine, its)
    assert table.classes == ["rose", "tulip"]


def test_the_width_is_known_before_a_model_is_made() -> None:
    table = Table(COLUMNS, "kind", missing="flag")
    assert table.width == table[0][0].size == 6
    assert table.preparation.feature_names == [
        "length", "length is missing", "colour=blue", "colour=red", "colour=white, pale", "width",
    ]  # fmt: skip
    assert table[2][0][:2].tolist()[1] == 1


def test_missing_values_are_filled_by_choice() -> None:
    columns = {"a": [1.0, None, 2.0, 9.0], "y": [0.5, 1.5, 2.5, 3.5]}
    options: dict[str, Any] = {"normalize": False}
    filled = {m: Table(columns, "y", missing=m, **options)[1][0].tolist()
              for m in ("mean", "median", "flag")}  # fmt: skip
    assert filled == {"mean": [4], "median": [2], "flag": [2, 1]}
    assert len(Table(columns, "y", missing="drop")) == 3
    with pytest.raises(InputError, match="the columns, row 1, column 'a': the value is missing"):
        Table(columns, "y")


def test_new_rows_are_prepared_as_those_of_the_training(tmp_path: Path) -> None:
    table = Table(COLUMNS, "kind", missing="flag", unknown="none")
    new: dict[str, Any] = {
        "width": [25],
        "colour": ["green"],
        "length": [float("nan")],
        "more": [0],
    }
    like = table.like(Frame(new))
    table.preparation.save(tmp_path / "p.json")
    kept = Table(new, None, preparation=Preparation.load(tmp_path / "p.json"))
    row = {name: values[0] for name, values in new.items()}
    for features in (like[0][0], kept[0][0], table.preparation.features([row])[0]):
        assert features.tolist() == [np.float32((2 - 3) / np.std([1, 2, 6])), 1, 0, 0, 0, 0]


def test_an_unknown_text_is_an_error_unless_it_may_be_one() -> None:
    table = Table(COLUMNS, "kind", missing="mean")
    new = {**COLUMNS, "colour": ["red", "green", "red", "red"]}
    with pytest.raises(
        InputError, match="row 1, column 'colour': 'green' is not one of the 3 texts"
    ):
        table.like(new)


def test_booleans_and_categories_are_texts() -> None:
    columns = {"a": [True, False, True], "b": [3, 7, 3], "y": [False, True, True]}
    table = Table(Frame(columns, ("b",)), "y")
    assert table.preparation.feature_names == ["a=False", "a=True", "b=3", "b=7"]
    assert table.classes == ["False", "True"]


DAYS = [datetime.datetime(2024, 2, 29, 17, 30), datetime.datetime(2026, 11, 23), None]


@pytest.mark.parametrize("source", ["columns", "frame", "pandas", "file"])
def test_dates_become_parts(source: str, tmp_path: Path) -> None:
    parts = ["year", "month", "day", "weekday", "day_of_year", "hour", "minute", "days"]
    columns = {"when": DAYS, "y": [0.5, 1.5, 2.5]}
    options: dict[str, Any] = {"dates": {"when": parts}, "missing": "flag", "normalize": False}
    (tmp_path / "f.csv").write_text("when,y\n2024-02-29 17:30,0.5\n2026-11-23,1.5\n,2.5\n")
    given = tmp_path / "f.csv" if source == "file" else SOURCES[source](columns)
    table = Table(given, "y", **options)
    first, second = (table[i][0].reshape(-1, 2)[:, 0].tolist() for i in (0, 1))
    seconds = datetime.timedelta(hours=17, minutes=30).total_seconds()
    days = (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days
    assert first[:-1] == [2024, 2, 29, 3, 60, 17, 30]
    assert first[-1] == np.float32(days + seconds / 86400)
    assert second[:5] == [2026, 11, 23, 0, 327]
    assert table[2][0].reshape(-1, 2)[:, 1].tolist() == [1] * 8
    assert table.preparation.feature_names[:3] == [
        "when.year",
        "when.year is missing",
        "when.month",
    ]
    again = table.preparation.features([{"when": DAYS[0]}, {"when": None}])
    np.testing.assert_array_equal(again, [table[0][0], table[2][0]])


def test_pandas_types(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas", reason="needs pandas")
    frame = pd.DataFrame(
        {
            "string": pd.array(["a", "b", None, "a"], dtype="string"),
            "whole": pd.array([1, 2, None, 4], dtype="Int64"),
            "float": np.array([1, 2, np.nan, 4], np.float32),
            "category": pd.Categorical(["x", "y", "x", None]),
            "zone": pd.date_range("2026-01-01", periods=4, tz="Europe/Berlin"),
            "y": [1.5, 2.5, 3.5, 4.5],
        },
        index=[7, 7, 8, 9],
    )
    table = Table(frame, "y", missing="mean", dates={"zone": ["day"]}, normalize=False)
    assert table.preparation.feature_names == [
        "string=a", "string=b", "whole", "float", "category=x", "category=y", "zone.day",
    ]  # fmt: skip
    x = table.take(np.arange(4))[0]
    third = np.float32(7 / 3)
    assert x.tolist() == [
        [1, 0, 1, 1, 1, 0, 1], [0, 1, 2, 2, 0, 1, 2], [0, 0, third, third, 1, 0, 3],
        [1, 0, 4, 4, 0, 0, 4],
    ]  # fmt: skip
    text = io.StringIO()
    frame.drop(columns="zone").to_csv(text, index=False)
    (tmp_path / "f.csv").write_text(text.getvalue())
    file = Csv(tmp_path / "f.csv", "y", missing="mean", normalize=False)
    np.testing.assert_array_equal(file.take(np.arange(4))[0], x[:, :-1])


BAD: list[tuple[Any, Any, dict[str, Any], type[EngineError], str]] = [
    ({}, None, {}, InputError, "no columns"),
    ({"a": [], "b": []}, "b", {}, InputError, "has columns, but no rows"),
    ({"a": [1], 1: [2], "1": [3]}, "a", {}, InputError, "two columns are named '1'"),
    ({"a": [1, 2], "b": [1]}, "b", {}, ShapeError, r"columns of different lengths, \[1, 2\] rows"),
    ({"a": np.ones((2, 2)), "b": [1.5, 2]}, "b", {}, ShapeError, r"'a' has the shape \[2, 2\]"),
    ({"a": [1, "x"], "b": [1.5, 2]}, "b", {}, InputError, "row 1, column 'a': 'x' is not a number"),
    ({"a": [{1}, {2}], "b": [1.5, 2]}, "b", {}, InputError, "a value of type set"),
    ({"a": [1j, 2j], "b": [1.5, 2]}, "b", {}, InputError, "a value of type complex"),
    ({"a": [1, float("inf")], "b": [1.5, 2]}, "b", {}, InputError, "'a': 'inf' is not finite"),
    ({"a": [1, 2], "b": [1.5, None]}, "b", {}, InputError, "row 1, column 'b': the value is miss"),
    ({"a": DAYS[:2], "b": [1.5, 2]}, "b", {}, InputError, r"dates=.'a': \['year', 'month'\]."),
    ({"a": DAYS[:2], "b": [1.5, 2]}, "b", {"dates": {"a": ["yaer"]}}, InputError, "no part 'yaer'"),
    ({"a": ["x", "y"], "b": [1.5, 2]}, "b", {"dates": {"a": ["year"]}}, InputError,
     "row 0, column 'a': 'x' is not a date"),
    ({"a": [1, 2], "b": [1.5, 2]}, "c", {}, NameNotFoundError, "no column 'c'; there are 'a', 'b'"),
    ({"a": [1, 2], "b": [1.5, 2]}, "b", {"dates": {"c": ["year"]}}, NameNotFoundError, "no column"),
    ({"a": [1, 2], "b": [1, 2]}, "b", {}, InputError, "whole numbers.*task='classification'"),
    ([[1, 2]], "b", {}, DTypeError, "expected a DataFrame, a mapping of columns or the path"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BAD)))
def test_tables_that_are_refused(number: int) -> None:
    source, label, options, error, message = BAD[number]
    with pytest.raises(error, match=message):
        Table(source, label, **options)


def test_a_frame_alone_says_not_what_to_predict() -> None:
    with pytest.raises(InputError, match=r"give Table\(frame, label=\.\.\.\)"):
        batches(Frame(COLUMNS))


def test_all_types_of_polars_are_features_or_refused() -> None:
    pl = pytest.importorskip("polars", reason="needs polars")
    pd = pytest.importorskip("pandas", reason="needs pandas")
    days = [datetime.date(2026, 1, 1 + i) for i in range(8)]
    types: dict[str, Any] = {
        "whole": pl.Int16, "real": pl.Float32, "yes": pl.Boolean, "text": pl.String,
        "category": pl.Categorical, "choice": pl.Enum(["1", "2"]), "money": pl.Decimal(10, 2),
        "day": pl.Date, "gone": pl.Int64, "kind": pl.String,
    }  # fmt: skip
    columns: dict[str, Any] = {
        "whole": range(8), "real": np.linspace(0, 1, 8), "yes": [True, False] * 4,
        "text": ["a", "b"] * 4, "category": ["c", "d"] * 4, "choice": ["1", "2"] * 4,
        "money": [i / 4 for i in range(8)], "day": days, "gone": [None, *range(7)],
        "kind": ["rose", "tulip"] * 4,
    }  # fmt: skip
    frame = pl.DataFrame(columns).cast(types)
    other = pd.DataFrame(columns).astype({"category": "category", "choice": "category"})
    options: dict[str, Any] = {"missing": "flag", "dates": {"day": ["month", "day"]}}
    mine, its = (Table(source, "kind", **options) for source in (frame, other))
    assert mine.preparation.feature_names == its.preparation.feature_names
    for ours, theirs in zip(mine.take(np.arange(8)), its.take(np.arange(8)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    with pytest.raises(InputError, match="column 'day': a date"):
        Table(frame, "kind", missing="flag")
    with pytest.raises(DTypeError, match=r"got LazyFrame; collect\(\) makes a DataFrame of it"):
        Table(frame.lazy(), "kind")
