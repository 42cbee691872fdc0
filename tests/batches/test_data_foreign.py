"""Loaders and datasets of other packages, known by what they can do; the packages are stood in for.

These stand-ins match PyTorch 2.13 and datasets 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from engine.base.aliases import Array
from engine.data import Buckets, batches
from engine.errors import InputError, NameNotFoundError

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10) % 2


class MapStyle:
    """As torch.utils.data.Dataset: samples by index, and no iteration of its own."""

    classes = ("even", "odd")

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return X[index], int(Y[index])


class Named(MapStyle):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            return {"x": X[index]}
        return {"label": int(Y[index]), "x": X[index]}


class Loader:
    """As torch.utils.data.DataLoader, with a sampler that gets the epoch."""

    batch_size, drop_last = 4, False

    def __init__(self) -> None:
        self.dataset, self.collate_fn = MapStyle(), list
        self.sampler = Sampler()

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[Array]]:
        order = np.random.default_rng(self.sampler.epoch).permutation(10)
        for begin in range(0, 10, 4):
            yield [X[order[begin : begin + 4]], Y[order[begin : begin + 4]]]


class Sampler:
    epoch = 0

    def __len__(self) -> int:
        return 10

    def set_epoch(self, number: int) -> None:
        self.epoch = number


class IterableDataset:
    """As torch.utils.data.IterableDataset, whose name and module tell that it yields samples."""

    def __init__(self, named: bool = False) -> None:
        self.named = named

    def __iter__(self) -> Iterator[Any]:
        for x, y in zip(X, Y, strict=True):
            yield {"x": x, "label": int(y)} if self.named else (x, int(y))


IterableDataset.__module__ = "torch.utils.data.dataset"


class Feature:
    def __init__(self, names: Sequence[str] | None) -> None:
        self.names = names


class Table:
    """As datasets.Dataset: columns by name, rows by index, `with_format` for arrays."""

    def __init__(self, columns: Mapping[str, Any], chosen: Sequence[str] | None = None) -> None:
        self.columns = dict(columns)
        self.column_names = list(columns)
        self.features = {name: Feature(["even", "odd"] if name == "label" else None)
                         for name in columns}  # fmt: skip
        self.chosen = chosen

    def with_format(self, kind: str, columns: Sequence[str]) -> Table:
        assert kind == "numpy"
        return Table(self.columns, columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("rows are read by index")

    def __getitem__(self, rows: int | list[int] | slice) -> dict[str, Any]:
        assert self.chosen is not None, "the format decides"
        actual = {}
        for name in self.chosen:
            column = self.columns[name]
            if isinstance(rows, int):
                actual[name] = np.asarray(column[rows])
                continue
            places = range(len(column))[rows] if isinstance(rows, slice) else rows
            cells = [np.asarray(column[i]) for i in places]
            if len({cell.shape for cell in cells}) == 1:
                actual[name] = np.stack(cells)
            else:
                actual[name] = np.empty(len(cells), object)
                actual[name][:] = cells
        return actual


def arrays(found: Any) -> list[tuple[Array, ...]]:
    return [batch for batch in found if isinstance(batch, tuple)]


def test_a_loader_keeps_its_own_batches() -> None:
    actual_batches = batches(Loader(), batch_size=99, shuffle=True)
    assert (len(actual_batches), actual_batches.batch_size, actual_batches.samples) == (3, 4, 10)
    assert actual_batches.classes == ("even", "odd")
    first, again, other = (arrays(actual_batches.epoch(number)) for number in (1, 1, 2))
    assert [len(x) for x, _ in first] == [4, 4, 2]
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0][0], other[0][0]), "the sampler gets the epoch"
    (rest,) = arrays(actual_batches.epoch(1, 2))
    assert np.array_equal(rest[0], first[2][0])
    with pytest.raises(InputError, match="augment= needs samples; Loader yields whole batches"):
        batches(Loader(), augment=lambda sample, rng: sample)


def test_a_map_style_dataset_is_shuffled_and_split_as_ours() -> None:
    actual_batches = batches(MapStyle(), batch_size=4, shuffle=True)
    assert (len(actual_batches), actual_batches.samples, actual_batches.classes) == (
        3,
        10,
        ("even", "odd"),
    )
    x, y = arrays(actual_batches.epoch(3))[0]
    assert np.array_equal(x[:, 0] // 2 % 2, y)
    with pytest.raises(InputError, match="MapStyle: no samples"):
        batches(MapStyle(0))


def test_samples_that_are_mappings_are_ordered_by_the_models_inputs() -> None:
    x, y = arrays(batches(Named(5), names=["x", "labels"]).epoch())[0]
    assert np.array_equal(x, X[:5])
    assert np.array_equal(y, Y[:5])
    with pytest.raises(InputError, match=r"Named: sample 7 has the fields \['x'\], sample 0"):
        list(batches(Named()).epoch())


def test_targets_of_a_dataset_are_its_labels() -> None:
    class Targets(MapStyle):
        targets = Y.tolist()

        def __getitem__(self, index: int) -> Any:
            assert index == 0, "labels are known without reading samples"
            return super().__getitem__(index)

    dataset = batches(Targets()).dataset  # type: ignore[attr-defined]  # batches of a dataset
    assert sorted(dataset.split(0.4)[1].labels().tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("named", [False, True])
def test_an_iterable_dataset_yields_samples(named: bool) -> None:
    names = ["x", "labels"] if named else None
    actual_batches = batches(IterableDataset(named), batch_size=4, names=names)
    sizes = [(x.shape, y.shape) for x, y in arrays(actual_batches.epoch())]
    assert sizes == [((4, 2), (4,)), ((4, 2), (4,)), ((2, 2), (2,))]
    dropped = batches(IterableDataset(named), batch_size=4, names=names, drop_last=True)
    assert len(arrays(dropped.epoch())) == 2
    rest = arrays(actual_batches.epoch(0, 2))
    assert np.array_equal(rest[0][0], X[8:])


def test_columns_of_a_table_are_the_models_inputs() -> None:
    table = Table({"id": list("abcdefghij"), "label": Y.tolist(), "x": X.tolist()})
    actual_batches = batches(table, batch_size=4, names=["x", "labels"])
    assert actual_batches.classes == ["even", "odd"]
    x, y = arrays(actual_batches.epoch())[2]
    assert np.array_equal(x, X[8:])
    assert np.array_equal(y, Y[8:])
    with pytest.raises(NameNotFoundError, match="no column 'image' for the model's input"):
        batches(table, names=["image", "labels"])  # id or x
    with pytest.raises(InputError, match="the dataset has no rows"):
        batches(Table({"x": []}))


def test_ragged_columns_of_a_table_go_into_buckets() -> None:
    tokens = [[1] * n for n in (3, 1, 4, 1, 5)]
    table = Table({"input_ids": tokens, "attention_mask": tokens, "label": [0, 1, 0, 1, 0]})
    actual_batches = batches(
        table,
        batch_size=2,
        names=["input_ids", "attention_mask", "labels"],
        bucket_by=Buckets(lengths=[2, 5], pad={"input_ids": 0, "attention_mask": 0}),
    )
    shapes = [[part.shape for part in batch] for batch in arrays(actual_batches.epoch())]
    assert shapes == [[(2, 2), (2, 2), (2,)], [(2, 5), (2, 5), (2,)], [(1, 5), (1, 5), (1,)]]
    with pytest.raises(ValueError, match="bucket_by= pads sequences"):
        list(batches(table).epoch())


def test_a_mapping_of_datasets_asks_for_one() -> None:
    parts = {"train": Table({"x": X}), "test": Table({"x": X})}
    with pytest.raises(InputError, match=r"several datasets: 'train', 'test'; give one: data\['tr"):
        batches(parts)
