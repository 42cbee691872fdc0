"""Files of comma-separated values as data: features, targets, what is missing, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.data import Csv, Preparation, batches
from engine.data.preparation import NumberColumn
from engine.errors import DTypeError, FileError, InputError, NameNotFoundError

FLOWERS = """length, colour,width,kind
1.0,red,10,rose
2.0,blue,20,tulip
3.0,red,30,rose
6.0,"white, pale",40,tulip
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_numbers_are_normalised_and_texts_are_one_hot(write: Write) -> None:
    data = Csv(write(FLOWERS), "kind")
    assert data.preparation.feature_names == [
        "length", "colour=blue", "colour=red", "colour=white, pale", "width"
    ]  # fmt: skip
    assert data.classes == ["rose", "tulip"]
    ((x, y),) = [batch for batch in batches(data).epoch() if isinstance(batch, tuple)]
    assert (x.dtype.name, y.dtype.name) == ("float32", "int64")
    lengths, widths = np.array([1, 2, 3, 6.0]), np.array([10, 20, 30, 40.0])
    np.testing.assert_allclose(x[:, 0], (lengths - 3) / lengths.std(), rtol=1e-6)
    np.testing.assert_allclose(x[:, 4], (widths - 25) / widths.std(), rtol=1e-6)
    assert x[:, 1:4].tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert y.tolist() == [0, 1, 0, 1]


def test_numbers_may_stay_as_they_are(write: Write) -> None:
    data = Csv(write(FLOWERS), "kind", features=["width", "length"], normalize=False)
    assert data[3][0].tolist() == [40, 6]


def test_a_constant_column_becomes_zero(write: Write) -> None:
    assert Csv(write("a,b\n3,1.5\n3,2.5\n"), "b")[0][0].tolist() == [0]


def test_both_parts_of_a_split_are_prepared_by_the_training_rows(write: Write) -> None:
    rows = "".join(f"{i},{i % 2}\n" for i in range(40))
    train, validation = Csv(write("x,y\n" + rows), "y", task="classification").split(0.25, seed=1)
    assert (len(train), len(validation)) == (30, 10)
    assert train.preparation == validation.preparation
    features = np.stack([train[i][0] for i in range(30)])
    np.testing.assert_allclose([features.mean(), features.std()], [0, 1], atol=1e-6)
    (number,) = train.preparation.columns
    assert isinstance(number, NumberColumn)
    seen = [
        round(float(part[i][0][0]) * number.scale + number.mean)
        for part in (train, validation)
        for i in range(len(part))
    ]
    assert sorted(seen) == list(range(40))
    again, rest = validation.split(0.5)
    assert again.preparation == rest.preparation == train.preparation, "what was learned is kept"


def test_targets_of_a_regression_are_numbers(write: Write) -> None:
    text = "a,b,c\n1,0.5,3\n2,1.5,4\n"
    x, y = Csv(write(text), "b")[1]
    assert (y.tolist(), y.dtype.name, Csv(write(text), "b").classes) == ([1.5], "float32", None)
    x, y = Csv(write(text), ["b", "c"])[0]
    assert (x.shape, y.tolist()) == ((1,), [0.5, 3])
    x, y = Csv(write(text), "c", task="regression")[1]
    assert y.tolist() == [4]


def test_without_a_target_samples_are_features(write: Write) -> None:
    data = Csv(write("a,b\n1,2\n3,4\n"), None, normalize=False)
    assert [part.tolist() for part in data[1]] == [[3, 4]]
    with pytest.raises(InputError, match="without a target"):
        data.labels()
    reconstruct = data.map(lambda sample: (sample[0], sample[0]))
    assert [part.tolist() for part in reconstruct[1]] == [[3, 4], [3, 4]]


def test_whole_numbers_may_be_classes(write: Write) -> None:
    data = Csv(write("a,b\n1,10\n2,9\n3,10.0\n"), "b", task="classification")
    assert data.classes == ["9", "10"], "in the order of numbers"
    assert data.labels().tolist() == [1, 0, 1]


def test_numbers_may_be_names(write: Write) -> None:
    data = Csv(write("code,y\n80331,a\n10115,b\n80331,b\n"), "y", categorical=["code"])
    assert data.preparation.feature_names == ["code=10115", "code=80331"]


def test_a_target_of_mixed_names_is_declared(write: Write) -> None:
    path = write("a,b\n1,7\n2,seven\n3,7\n")
    with pytest.raises(InputError, match=r"'seven' is not a number.*categorical=\['b'\]"):
        Csv(path, "b")
    assert Csv(path, "b", categorical=["b"]).classes == ["7", "seven"]


# --- missing values

HOLES = "a,b,y\n1,x,0.5\n,z,1.5\n3,NA,2.5\n5,x,3.5\n"


def test_a_missing_value_is_refused_and_named(write: Write) -> None:
    with pytest.raises(
        InputError, match=r"data.csv', line 3, column 'a': the value is missing \(''\); missing='d"
    ):
        Csv(write(HOLES), "y")
    with pytest.raises(InputError, match="line 4, column 'b': the value is missing"):
        Csv(write(HOLES), "y", features=["b"])


def test_rows_with_missing_values_may_be_dropped(write: Write) -> None:
    data = Csv(write(HOLES), "y", missing="drop", normalize=False)
    assert [data[i][0].tolist() for i in range(2)] == [[1, 1], [5, 1]]
    with pytest.raises(InputError, match="a value is missing in every row"):
        Csv(write("a,b\n1,\n,2\n"), "b", missing="drop")


def test_missing_values_may_be_filled_up(write: Write) -> None:
    data = Csv(write(HOLES), "y", missing="mean")
    assert data[1][0][0] == 0, "the mean, normalised"
    assert data[2][0][1:].tolist() == [0, 0], "none of the texts"
    assert Csv(write(HOLES), "y", missing="mean", normalize=False)[1][0][0] == 3


def test_missing_values_may_stay(write: Write) -> None:
    data = Csv(write(HOLES), "y", missing="keep")
    assert np.isnan(data[1][0][0])
    assert np.isfinite(data[0][0]).all()


def test_a_missing_target_is_refused_however_features_are_treated(write: Write) -> None:
    with pytest.raises(InputError, match="line 3, column 'b': the value is missing"):
        Csv(write("a,b\n1,2\n3,\n"), "b", missing="mean")


def test_missing_values_have_names_of_ones_own(write: Write) -> None:
    data = Csv(write("a,b\n1,0.5\n-999,1.5\n"), "b", missing="drop", missing_values=["-999"])
    assert len(data) == 1


# --- prediction


def test_a_preparation_serves_other_rows(write: Write, tmp_path: Path) -> None:
    data = Csv(write(FLOWERS), "kind")
    data.preparation.save(tmp_path / "preparation.json")
    kept = Preparation.load(tmp_path / "preparation.json")
    assert kept == data.preparation
    other = Csv(
        write("kind,width,length,colour,more\ntulip,20,2.0,blue,1\n", "other.csv"),
        "kind",
        preparation=kept,
    )
    assert np.array_equal(other[0][0], data[1][0])
    assert (int(other[0][1]), other.classes) == (1, ["rose", "tulip"])
    rows = [{"length": 2, "colour": "blue", "width": "20"}]
    assert np.array_equal(kept.features(rows)[0], data[1][0])
    holes = Csv(write(HOLES), "y", missing="mean").preparation
    holes.save(tmp_path / "preparation.json")
    assert Preparation.load(tmp_path / "preparation.json") == holes
    actual_features = holes.features([{"a": None, "b": ""}, {"a": float("nan"), "b": "x"}])
    assert actual_features.tolist() == [[0, 0, 0], [0, 1, 0]]
    filled = Csv(write("a,b\n,x\n", "new.csv"), None, preparation=holes)
    assert filled[0][0].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("row", "error", "text"),
    [
        ({"length": 1, "colour": "blue"}, NameNotFoundError, "row 0: no column 'width'"),
        ({"length": "x", "colour": "blue", "width": 1}, InputError, "expected a number, got 'x'"),
        ({"length": None, "colour": "red", "width": 1}, InputError, "'length': the value is miss"),
        (
            {"length": 1, "colour": "bleu", "width": 1},
            InputError,
            "not one of the 3 .*nearest: 'blue'",
        ),
    ],
)
def test_rows_that_cannot_be_prepared(
    write: Write, row: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Csv(write(FLOWERS), "kind").preparation.features([row])


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        ("length,width,kind\n1,2,rose\n", NameNotFoundError, "no column 'colour'"),
        (
            "length,colour,width,kind\n1,green,2,rose\n",
            InputError,
            "line 2, column 'colour': 'green'",
        ),
        (
            "length,colour,width,kind\n1,red,2,lily\n",
            InputError,
            "'lily' is not one of the classes",
        ),
        (
            "length,colour,width,kind\nx,red,2,rose\n",
            InputError,
            "column 'length': 'x' is not a number",
        ),
        (
            "length,colour,width,kind\n1,red,,rose\n",
            InputError,
            "column 'width': the value is miss",
        ),
    ],
)
def test_files_that_do_not_fit_a_preparation(
    write: Write, rows: str, error: type[Exception], text: str
) -> None:
    learned = Csv(write(FLOWERS), "kind").preparation
    with pytest.raises(error, match=text):
        Csv(write(rows, "other.csv"), "kind", preparation=learned)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is not a preparation of a table"),
        ("[1]", "is not a preparation of a table"),
        ('{"format": 9}', "format 9; expected 1"),
        ('{"format": 1, "columns": [{"kind": "Date"}]}', "a column of the kind 'Date'"),
    ],
)
def test_files_that_are_no_preparation(write: Write, content: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        Preparation.load(write(content, "p.json"))


def test_a_preparation_that_cannot_be_read_or_written(write: Write, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read"):
        Preparation.load(tmp_path / "none.json")
    with pytest.raises(FileError, match="cannot write"):
        Csv(write(FLOWERS), "kind").preparation.save(tmp_path / "none" / "p.json")


# --- files of other forms


@pytest.mark.parametrize(
    ("content", "options"),
    [
        (b"\xef\xbb\xbf" + FLOWERS.encode(), {}),
        (FLOWERS.replace("\n", "\r\n").encode(), {}),
        (FLOWERS.replace("\n", "\n\n").encode(), {}),
        (FLOWERS.encode("utf-16"), {"encoding": "utf-16"}),
        (FLOWERS.replace(", colour", ",colour").replace("white, pale", "white, pale")
         .replace(",", ";").replace("; pale", ", pale").encode(), {"delimiter": ";"}),
    ],
    ids=["byte order mark", "line ends of Windows", "empty lines", "UTF-16", "semicolons"],
)  # fmt: skip
def test_forms_of_files(write: Write, content: bytes, options: Any) -> None:
    plain, other = Csv(write(FLOWERS), "kind"), Csv(write(content, "o.csv"), "kind", **options)
    assert plain.preparation == other.preparation
    assert all(np.array_equal(plain[i][0], other[i][0]) for i in range(4))


def test_a_file_without_a_header(write: Write) -> None:
    data = Csv(write("1,2.5\n3,4.5\n"), "1", header=False, normalize=False)
    assert [part.tolist() for part in data[1]] == [[3], [4.5]]


# --- bad input


@pytest.mark.parametrize(
    ("content", "target", "options", "error", "text"),
    [
        ("a;b\n1;2\n", "b", {}, InputError, r"one column, 'a;b'.*pass delimiter=';'"),
        ("a\tb\n1\t2\n", "b", {}, InputError, r"pass delimiter='\\t'"),
        ("a,b\n1,2\n", "b", {"delimiter": ";"}, InputError, "pass delimiter=','"),
        ("a,b\n1,2\n", "b", {"delimiter": ",,"}, InputError, "delimiter=',,'"),
        ("a,b\n1,2\n", "b", {"delimiter": "\n"}, InputError, "other than a quote or a line end"),
        ("a,b\n1,2\n", "b", {"delimiter": 3}, DTypeError, "delimiter"),
        ("a,b\n1,2\n3\n", "b", {}, InputError, "line 3: 1 fields, expected 2"),
        ("a,b\n1,2,3\n", "b", {}, InputError, "line 2: 3 fields, expected 2; a field that holds"),
        ("a,b\n1,2\nx,3\n", "b", {}, InputError, r"line 3, column 'a': 'x' is not a number, but"),
        ("a,b\n1,2\n,3\nx,3\n", "b", {"missing": "mean"}, InputError, "line 4, column 'a': 'x'"),
        ("a,b\n1,x\n2,3\n", "b", {}, InputError, "line 2, column 'b': 'x' is not a number"),
        ("a,b\ninf,1.5\n2,3\n", "b", {}, InputError, "line 2, column 'a': 'inf' is not finite"),
        ("a,b\n1,2\n", "c", {}, NameNotFoundError, "no column 'c'; there are 'a', 'b'"),
        ("colour,b\n1,2\n", "color", {}, NameNotFoundError, "nearest: 'colour'"),
        ("a,b\n1,2\n", "b", {"features": ["z"]}, NameNotFoundError, "no column 'z'"),
        ("a,b\n1,2\n", "b", {"categorical": ["z"]}, NameNotFoundError, "no column 'z'"),
        ("a,b\n1,2\n", "b", {"features": ["a", "b"]}, InputError, "'b' is both a feature and"),
        ("a,b\n1,2\n", "b", {"features": []}, InputError, "no column is left"),
        ("b\n1.5\n", "b", {}, InputError, "no column is left"),
        ("a,a,b\n1,2,3\n", "b", {}, InputError, "two columns are named 'a'"),
        (",a,b\n0,1,2.5\n", "b", {}, InputError, "column 0 has no name; .* index=False"),
        ("1,2\n3,4\n", "2", {}, InputError, "numbers for names, 1, 2; .*header=False"),
        ("", "b", {}, InputError, "has no text"),
        ("\n\n", "b", {}, InputError, "has no text"),
        ("a,b\n", "b", {}, InputError, "a header, but no rows"),
        ("a,b\n1,2\n3,4\n", "b", {}, InputError, "whole numbers, .*task='classification' or task"),
        ("a,b\n1,2\n3,2\n", "b", {"task": "classification"}, InputError, "of one class, '2'"),
        ("a,b\n1,x\n3,x\n", "b", {}, InputError, "all targets are of one class, 'x'"),
        ("a,b\n1,0.5\n", "b", {"task": "classification"}, InputError, "'0.5' is not a class"),
        ("a,b\n1,x\n", "b", {"task": "regression"}, InputError, "not a number; a regression"),
        ("a,b,c\n1,2,3\n", ["b", "c"], {"task": "classification"}, InputError, "several columns"),
        ("a,b\n1,2\n", "b", {"task": "guess"}, InputError, "task='guess'"),
        ("a,b\n1,2\n", "b", {"missing": "skip"}, InputError, "missing='skip'"),
        ("a,b\nNA,1.5\n", "b", {"missing": "mean"}, InputError, "column 'a' has no values"),
        ('a,b\n"1,2\n', "b", {}, InputError, "unexpected end of data"),
        (b"a,b\n\xff\xfe,2\n", "b", {}, InputError, "is not utf-8.*pass encoding="),
        (b"a,b\n1,2\n", "b", {"encoding": "utf-9"}, InputError, "encoding='utf-9' is unknown"),
        ("a,b\n" + "".join(f"t{i},{i}.5\n" for i in range(1001)), "b", {}, InputError,
         "column 'a' has 1001 different texts, as 't0'; up to 1000"),
    ],
)  # fmt: skip
def test_files_that_are_refused(
    write: Write, content: Any, target: Any, options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Csv(write(content), target, **options)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read '.*none.csv': No such file"):
        Csv(tmp_path / "none.csv", "b")


def test_a_class_of_one_row_cannot_be_in_both_parts(write: Write) -> None:
    data = Csv(write("a,b\n1,x\n2,x\n3,y\n"), "b")
    with pytest.raises(InputError, match="'y' has one sample"):
        data.split(0.5)
    train, validation = data.split(0.34, stratify=False)
    assert (len(train), len(validation)) == (2, 1)
