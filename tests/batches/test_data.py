"""Batches: of arrays, datasets, iterables and functions; shuffled, resumed, made ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.base.aliases import Array
from engine.data import Arrays, Batches, Buckets, Dataset, batches
from engine.data.samples import Batch, Sample, find_columns
from engine.errors import DTypeError, InputError, NameNotFoundError, ShapeError

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10) % 3


class Squares(Dataset):
    """A dataset as users write them: slow to read, so a thread reads ahead."""

    def __init__(self, count: int = 10) -> None:
        self.count = count
        self.readers_seen: set[str] = set()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        self.readers_seen.add(threading.current_thread().name)
        return np.full(3, index, np.float32), np.asarray(index**2)


def tuples(source: Iterator[Batch]) -> list[tuple[Array, ...]]:
    listed = list(source)
    assert all(isinstance(batch, tuple) for batch in listed)
    return [batch for batch in listed if isinstance(batch, tuple)]


def same(left: Iterator[Batch], right: Iterator[Batch]) -> bool:
    pairs = list(zip(left, right, strict=True))
    return all(
        np.array_equal(a, b)
        for one, other in pairs
        for a, b in zip(
            one.values() if isinstance(one, dict) else one,
            other.values() if isinstance(other, dict) else other,
            strict=True,
        )
    )


def loader_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("edgegrad data")]


# --- sizes and order


def test_the_last_batch_is_smaller() -> None:
    actual_batches = batches((X, Y), batch_size=4)
    assert (len(actual_batches), actual_batches.samples, actual_batches.batch_size) == (3, 10, 4)
    assert [len(x) for x, _ in tuples(actual_batches.epoch())] == [4, 4, 2]
    assert np.array_equal(np.concatenate([x for x, _ in tuples(actual_batches.epoch())]), X)


def test_drop_last_leaves_out_what_does_not_fill_a_batch() -> None:
    actual_batches = batches((X, Y), batch_size=4, drop_last=True)
    assert (len(actual_batches), actual_batches.samples) == (2, 8)
    assert [len(x) for x, _ in tuples(actual_batches.epoch())] == [4, 4]
    with pytest.raises(InputError, match=r"no batch: 10 samples, batches of 11"):
        batches((X, Y), batch_size=11, drop_last=True)


def test_shuffled_epochs_hold_every_sample_once_in_orders_of_their_own() -> None:
    actual_batches = batches((X, Y), batch_size=3, shuffle=True, seed=7)
    orders = []
    for number in range(3):
        rows = [(x, y) for x, y in tuples(actual_batches.epoch(number))]
        order = np.concatenate([x[:, 0] for x, _ in rows]).astype(int) // 2
        assert sorted(order) == list(range(10))
        assert np.array_equal(np.concatenate([y for _, y in rows]), Y[order]), "targets go along"
        orders.append(tuple(order))
    assert len(set(orders)) == 3


def test_another_seed_is_another_order() -> None:
    one, other = (batches((X, Y), shuffle=True, seed=s) for s in (0, 1))
    assert not same(one.epoch(), other.epoch())


def jitter(sample: Sample, rng: np.random.Generator) -> Sample:
    return sample[0] + rng.standard_normal(sample[0].shape).astype(np.float32), *sample[1:]


SOURCES: list[Callable[[], Batches]] = [
    lambda: batches((X, Y), batch_size=3, shuffle=True, seed=5),
    lambda: batches({"x": X, "y": Y}, batch_size=3, shuffle=True, seed=5, augment=jitter),
    lambda: batches(Squares(), batch_size=3, shuffle=True, seed=5, augment=jitter),
    lambda: batches(lambda epoch: ((X + epoch, Y) for _ in range(4))),
    lambda: batches([(X[:5], Y[:5]), (X[5:], Y[5:]), (X, Y), (X, Y)]),
    lambda: batches(
        ([[1] * n for n in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3)],),
        batch_size=3,
        shuffle=True,
        bucket_by=[3, 6, 9],
    ),
]


@pytest.mark.parametrize("make", SOURCES)
def test_an_epoch_resumes_exactly(make: Callable[[], Batches]) -> None:
    """A loader made again, as after a crash, continues with the same bytes from any batch on."""
    for number in (0, 3):
        whole = list(make().epoch(number))
        assert len(whole) == len(list(make().epoch(number))) >= 4
        for start in (0, 1, 3, len(whole)):
            assert same(iter(whole[start:]), make().epoch(number, start))


@given(
    samples=st.integers(1, 40),
    size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop=st.booleans(),
    number=st.integers(0, 3),
    data=st.data(),
)
def test_any_epoch_resumes_anywhere(
    samples: int, size: int, shuffle: bool, drop: bool, number: int, data: st.DataObject
) -> None:
    assume(samples >= size or not drop)
    actual_batches = batches(np.arange(samples), batch_size=size, shuffle=shuffle, drop_last=drop)
    whole = [batch[0].tolist() for batch in tuples(actual_batches.epoch(number))]
    start = data.draw(st.integers(0, len(actual_batches)))
    assert [batch[0].tolist() for batch in tuples(actual_batches.epoch(number, start))] == whole[
        start:
    ]
    seen = [i for batch in whole for i in batch]
    assert len(seen) == len(set(seen)) == actual_batches.samples
    assert actual_batches.samples == (samples // size * size if drop else samples)


def test_an_epoch_does_not_depend_on_the_ones_before() -> None:
    once, often = SOURCES[1](), SOURCES[1]()
    for number in (0, 1, 0):
        list(often.epoch(number))
    assert same(once.epoch(2), often.epoch(2))


@pytest.mark.parametrize(
    ("position", "error", "text"),
    [
        ((0, 5), InputError, "start=5, but an epoch has 4 batches"),
        ((-1, 0), InputError, "epoch -1"),
        ((0, -1), InputError, "epoch 0, batch -1"),
        ((0.5, 0), DTypeError, "epoch: expected a whole number"),
    ],
)
def test_positions_that_are_none(position: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        batches((X, Y), batch_size=3).epoch(*position)


def test_a_stream_that_ends_before_the_start_of_a_resumed_epoch_says_so() -> None:
    with pytest.raises(InputError, match="start=3, but list yields 2 batches"):
        list(batches([(X, Y), (X, Y)]).epoch(0, 3))


# --- kinds of sources


def test_names_give_dicts_and_the_model_gives_their_order() -> None:
    (batch,) = batches({"y": Y, "x": X, "id": Y}).epoch()
    assert isinstance(batch, dict)
    assert list(batch) == ["y", "x", "id"]
    (x, y) = tuples(batches({"y": Y, "x": X, "id": Y}, names=["x", "y"]).epoch())[0]
    assert np.array_equal(x, X)
    assert np.array_equal(y, Y)
    (x, y) = tuples(batches([{"label": Y, "x": X}], names=["x", "labels"]).epoch())[0]
    assert np.array_equal(y, Y), "a column label serves an input labels"


def test_a_missing_column_is_named_with_the_nearest() -> None:
    with pytest.raises(NameNotFoundError, match=r"no column 'image' .* 'images', 'id', .*; near"):
        batches({"images": X, "id": X, "labels": Y}, names=["image", "labels"])


@pytest.mark.parametrize(
    ("wanted", "known", "selected"),
    [
        (["x", "labels"], ["x", "y"], ["x", "y"]),
        (["x", "labels"], ["label", "image"], ["image", "label"]),
        (["x", "target"], ["image", "labels"], ["image", "labels"]),
        (["a", "b", "labels"], ["b", "y", "a"], ["a", "b", "y"]),
        (["x"], ["y", "image"], ["image"]),
    ],
)
def test_columns_of_other_names_serve_where_only_one_can(
    wanted: list[str], known: list[str], selected: list[str]
) -> None:
    assert find_columns(wanted, known, "data") == selected


@pytest.mark.parametrize(
    ("wanted", "known"),
    [
        (["x", "labels"], ["image", "id", "labels"]),
        (["a", "b", "labels"], ["image", "labels"]),
        (["x", "labels"], ["x", "y", "target"]),
        (["x", "labels"], ["x", "image"]),
    ],
)
def test_columns_of_other_names_are_not_guessed(wanted: list[str], known: list[str]) -> None:
    with pytest.raises(NameNotFoundError, match="no column"):
        find_columns(wanted, known, "data")


def test_arrays_are_not_copied() -> None:
    dataset = Arrays((X, Y))
    assert all(np.shares_memory(a, b) for a, b in zip(dataset.columns, (X, Y), strict=True))


def test_one_array_is_a_batch_of_one_input() -> None:
    assert [len(batch) for batch in batches(X, batch_size=5).epoch()] == [1, 1]


def test_lists_are_columns_of_numbers() -> None:
    ((x, y),) = tuples(batches([[[1.0], [2.0]], [0, 1]]).epoch())
    assert (x.shape, y.tolist()) == ((2, 1), [0, 1])


def test_memory_maps_are_read_batch_by_batch(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, X)
    mapped = np.load(path, mmap_mode="r")
    dataset = Arrays((mapped, Y))
    column = dataset.columns[0]
    assert isinstance(column, np.ndarray)
    assert isinstance(column.base, np.memmap)
    assert not dataset.cheap, "a thread reads ahead"
    actual_batches = batches((mapped, Y), batch_size=4, shuffle=True)
    assert same(actual_batches.epoch(1), batches((X, Y), batch_size=4, shuffle=True).epoch(1))
    assert all(not isinstance(x, np.memmap) for x, _ in tuples(actual_batches.epoch()))


class Tensor:
    """Tensor like PyTorch's: numbers come out after detach and cpu only."""

    def __init__(self, value: Array, ready: int = 0) -> None:
        self.value, self.ready = value, ready

    def detach(self) -> Tensor:
        return Tensor(self.value, 1)

    def cpu(self) -> Tensor:
        return Tensor(self.value, self.ready + 1)

    def numpy(self) -> Array:
        assert self.ready == 2, "a tensor that requires grad, or on another device"
        return self.value

    def __array__(self) -> Array:
        raise TypeError("call numpy()")


def test_tensors_are_arrays() -> None:
    ((x, y),) = tuples(batches((Tensor(X), Tensor(Y))).epoch())
    assert np.array_equal(x, X)
    ((x, y),) = tuples(batches([(Tensor(X), Tensor(Y))]).epoch())
    assert np.array_equal(y, Y)


def test_batches_are_returned_as_they_are() -> None:
    actual_batches = batches((X, Y))
    assert batches(actual_batches) is actual_batches


def test_functions_get_the_epoch_if_they_take_one() -> None:
    told = batches(lambda epoch: [(X + epoch, Y)])
    assert tuples(told.epoch(3))[0][0][0, 0] == 3

    def nothing() -> Iterator[tuple[Array, Array]]:
        yield X, Y

    quiet = batches(nothing)
    assert len(tuples(quiet.epoch(0)) + tuples(quiet.epoch(1))) == 2
    with pytest.raises(TypeError, match="number of batches is unknown"):
        len(quiet)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iterator_is_used_once(prefetch: int) -> None:
    actual_batches = batches(iter([(X, Y)]), prefetch=prefetch)
    assert len(list(actual_batches.epoch(0))) == 1
    with pytest.raises(InputError, match=r"yields its batches once.*batches\(lambda epoch"):
        actual_batches.epoch(1)


# --- bad input


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ((X, Y[:9]), ShapeError, "field 0 has 10, field 1 has 9"),
        ({"x": X, "y": Y[:3]}, ShapeError, "'x' has 10, 'y' has 3"),
        ((X[:0], Y[:0]), InputError, "no samples"),
        ((), InputError, "no arrays"),
        ({}, InputError, "no arrays"),
        ([], InputError, "an empty list"),
        (Squares(0), InputError, "no batch: 0 samples"),
        ((X, 3), ShapeError, "field 1 is one value"),
        ((X, np.array([object()] * 10)), InputError, "got objects: object"),
        (3.5, DTypeError, "cannot make batches of float; expected arrays"),
        ("photos/", DTypeError, "cannot make batches of str"),
        (None, DTypeError, "cannot make batches of NoneType"),
    ],
)
def test_sources_that_are_none(source: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        batches(source)


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ([(X, Y), (X, Y[:9])], ShapeError, "list, batch 1: arrays of different lengths"),
        ([(X, Y), (X[:0], Y[:0])], InputError, "list, batch 1: no samples"),
        ([(X, 3)], ShapeError, "batch 0: field 1 is one number"),
        (lambda: iter(()), InputError, "the function <lambda> yields no batches"),
        (lambda: 3, DTypeError, "must return an iterable of batches, got int"),
        (lambda: ["text"], InputError, "batch 0: expected arrays, got str"),
        ([(X, Y), (X, Y, Y[:0])], ShapeError, "field 2 has 0"),
    ],
)
def test_batches_that_are_none(source: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        list(batches(source).epoch())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 0}, InputError, "batch_size=0"),
        ({"batch_size": -3}, InputError, "batch_size=-3"),
        ({"batch_size": 2.5}, DTypeError, "batch_size: expected a whole number"),
        ({"seed": -1}, InputError, "seed=-1"),
        ({"seed": "x"}, DTypeError, "seed"),
        ({"prefetch": -1}, InputError, "prefetch=-1"),
        ({"shuffle": "yes"}, DTypeError, "shuffle: expected True or False"),
        (
            {"augment": 3},
            DTypeError,
            "augment: expected a function, text",
        ),
        ({"names": "x"}, InputError, "expected a list of names"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        batches((X, Y), **options)


@pytest.mark.parametrize("option", [{"augment": jitter}, {"bucket_by": [3]}, {"drop_last": True}])
def test_what_needs_samples_is_refused_of_batches(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="needs samples; list yields whole batches"):
        batches([(X, Y)], **option)


def test_a_nan_is_named_by_sample_and_column(tmp_path: Path) -> None:
    flawed = X.copy()
    flawed[6, 1] = np.nan
    text = r"field 0 has NaN in sample 6, column 1"
    with pytest.raises(InputError, match=text):
        batches((flawed, Y))
    np.save(tmp_path / "x.npy", flawed)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    late = batches((mapped, Y), batch_size=4, shuffle=True)
    with pytest.raises(InputError, match=text):
        list(late.epoch())
    with pytest.raises(InputError, match=r"list, batch 1, 'x' has NaN in sample 6"):
        list(batches([{"x": X}, {"x": flawed}]).epoch())
    for source in ((flawed, Y), (mapped, Y), [(flawed, Y)]):
        assert len(list(batches(source, allow_nan=True).epoch())) == 1


def test_infinities_are_values() -> None:
    endless = np.array([[np.inf, -np.inf], [0, 1]], np.float32)
    assert len(list(batches(endless).epoch())) == 1


def test_augmentation_gets_samples_in_the_order_of_the_model() -> None:
    def check(sample: Sample, rng: np.random.Generator) -> Sample:
        assert [array.shape for array in sample] == [(2,), ()]
        return sample

    list(batches({"id": Y, "y": Y, "x": X}, names=["x", "y"], augment=check).epoch())


def test_augmentation_in_place_does_not_change_the_data() -> None:
    before = X.copy()

    def spoil(sample: Sample, rng: np.random.Generator) -> Sample:
        sample[0][...] = 0
        return sample

    with pytest.raises(ValueError, match="read-only"):
        list(batches((X, Y), augment=spoil).epoch())
    assert np.array_equal(X, before)


# --- made ahead


def test_threads_end_with_the_epoch() -> None:
    actual_batches = batches(Squares(50), batch_size=5)
    list(actual_batches.epoch())
    assert not loader_threads()


def test_threads_end_when_the_consumer_stops() -> None:
    epoch = batches(Squares(50), batch_size=5).epoch()
    next(epoch)
    assert loader_threads(), "batches are made ahead"
    epoch.close()  # type: ignore[attr-defined]  # every epoch is a generator
    assert not loader_threads()


def test_threads_end_when_an_exception_passes() -> None:
    def consume() -> None:
        for _ in batches(Squares(50), batch_size=5).epoch():
            raise KeyError("of the loop's body")

    with pytest.raises(KeyError) as caught:
        consume()
    del caught  # its traceback holds the epoch
    assert not loader_threads()


def test_work_ahead_is_bounded() -> None:
    made: list[int] = []

    def source() -> Iterator[Array]:
        for i in range(100):
            made.append(i)
            yield X

    epoch = batches(source, prefetch=3).epoch()
    next(epoch)
    next(epoch)
    assert len(made) <= 5
    epoch.close()  # type: ignore[attr-defined]  # every epoch is a generator


def test_a_generator_is_closed_when_the_consumer_stops() -> None:
    closed: list[bool] = []

    def source() -> Iterator[Array]:
        try:
            while True:
                yield X
        finally:
            closed.append(True)

    epoch = batches(source).epoch()
    next(epoch)
    epoch.close()  # type: ignore[attr-defined]  # every epoch is a generator
    assert closed == [True]


class Broken(Squares):
    def __getitem__(self, index: int) -> Sample:
        if index == 7:
            self.fail()
        return super().__getitem__(index)

    def fail(self) -> None:
        raise OSError("the disk is gone")


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_reaches_the_caller_in_its_place_with_its_traceback(prefetch: int) -> None:
    epoch = batches(Broken(), batch_size=3, prefetch=prefetch).epoch()
    assert len([next(epoch), next(epoch)]) == 2
    with pytest.raises(OSError, match="the disk is gone") as caught:
        next(epoch)
    assert "fail" in [entry.name for entry in caught.traceback]
    assert not loader_threads()


def test_samples_are_read_by_a_thread_ahead_and_by_none_without() -> None:
    ahead, here = Squares(), Squares()
    list(batches(ahead, batch_size=2).epoch())
    list(batches(here, batch_size=2, prefetch=0).epoch())
    assert here.readers_seen == {threading.current_thread().name}
    assert here.readers_seen.isdisjoint(ahead.readers_seen)


def test_several_readers_make_the_same_batches() -> None:
    many = Squares(40)
    many.readers = 3
    assert same(
        batches(many, batch_size=3, shuffle=True, prefetch=4).epoch(1),
        batches(Squares(40), batch_size=3, shuffle=True, prefetch=0).epoch(1),
    )


def test_samples_of_unequal_shapes_point_to_buckets() -> None:
    ragged = [[1, 2], [3], [4, 5, 6]]
    with pytest.raises(ShapeError, match=r"shapes \[1\], \[2\], \[3\]; bucket_by= pads"):
        list(batches((ragged, [0, 1, 0])).epoch())


# --- views of datasets


def test_split_divides_class_by_class() -> None:
    labels = np.array([0] * 20 + [1] * 5 + [2] * 2)
    dataset = Arrays((np.arange(27), labels), classes=["a", "b", "c"])
    train, validation = dataset.split(0.2, seed=3)
    assert np.bincount(validation.labels()).tolist() == [4, 1, 1]
    assert np.bincount(train.labels()).tolist() == [16, 4, 1]
    seen = [int(part[i][0]) for part in (train, validation) for i in range(len(part))]
    assert sorted(seen) == list(range(27))
    assert validation.classes == ["a", "b", "c"]
    again = dataset.split(0.2, seed=3)[1]
    assert [int(again[i][0]) for i in range(6)] == [int(validation[i][0]) for i in range(6)]


@pytest.mark.parametrize(
    ("labels", "share", "options", "error", "text"),
    [
        ([0, 0, 1], 0.5, {"stratify": True}, InputError, "'b' has one sample, which cannot be in"),
        ([0.5, 1.5, 0.5], 0.5, {"stratify": True}, DTypeError, "labels of type float64"),
        ([0, 0, 1], 0.0, {}, InputError, "share=0.0; expected a number between 0 and 1"),
        ([0, 0, 1], 1.5, {}, InputError, "share=1.5"),
        ([0, 0, 1], "x", {}, DTypeError, "share: expected a number"),
        ([0], 0.5, {"stratify": False}, InputError, "one sample cannot be divided"),
    ],
)
def test_splits_that_are_none(
    labels: list[float], share: Any, options: Any, error: type[Exception], text: str
) -> None:
    dataset = Arrays((np.arange(len(labels)), np.array(labels)), classes=["a", "b"])
    with pytest.raises(error, match=text):
        dataset.split(share, **options)


def test_a_split_without_classes_divides_all() -> None:
    train, validation = Arrays((X, Y.astype(np.float32))).split(0.3)
    assert (len(train), len(validation)) == (7, 3)


def test_map_changes_samples_when_they_are_read() -> None:
    copied = Squares().map(lambda sample: (sample[0], sample[0]))
    x, y = tuples(batches(copied).epoch())[0]
    assert np.array_equal(x, y)


def test_subsets_name_indices_that_are_none() -> None:
    assert len(Arrays(X).subset([3, 4])) == 2
    with pytest.raises(InputError, match="expected 0 to 9"):
        Arrays(X).subset([10])
    with pytest.raises(InputError, match="no indices"):
        Arrays(X).subset([])


# --- sequences of unequal lengths

WORDS = [list(range(1, n + 1)) for n in (3, 1, 4, 1, 5, 9, 2, 6)]


def test_buckets_pad_to_few_lengths() -> None:
    actual_batches = batches(
        {"ids": WORDS, "tags": WORDS, "labels": list(range(8))},
        names=["ids", "attention_mask", "tags", "labels"],
        batch_size=2,
        shuffle=True,
        bucket_by=Buckets(lengths=[3, 6, 9], pad={"ids": 0, "tags": -100}, mask=True),
    )
    seen = []
    for ids, mask, tags, labels in tuples(actual_batches.epoch(2)):
        assert ids.shape[1] in {3, 6, 9}
        assert ids.shape == mask.shape == tags.shape
        for row, real, tag, label in zip(ids, mask, tags, labels, strict=True):
            words = WORDS[label]
            assert row.tolist() == words + [0] * (len(row) - len(words))
            assert tag.tolist() == words + [-100] * (len(row) - len(words))
            assert real.tolist() == [1] * len(words) + [0] * (len(row) - len(words))
            seen.append(int(label))
    assert sorted(seen) == list(range(8))
    assert len(actual_batches) == len(list(actual_batches.epoch(2)))
    assert actual_batches.samples == 8


def test_buckets_without_lengths_hold_about_as_many_samples() -> None:
    sequences = [[0] * n for n in range(1, 101)]
    actual_batches = batches(
        [sequences, list(range(100))], batch_size=5, bucket_by=Buckets(count=4)
    )
    lengths = [x.shape[1] for x, _ in tuples(actual_batches.epoch())]
    assert sorted(set(lengths)) == [26, 51, 76, 100]
    assert all(15 <= 5 * lengths.count(n) <= 35 for n in set(lengths))


def test_buckets_drop_what_does_not_fill_a_batch() -> None:
    actual_batches = batches((WORDS, np.arange(8)), batch_size=2, drop_last=True, bucket_by=[4, 9])
    assert [x.shape for x, _ in tuples(actual_batches.epoch())] == [(2, 4), (2, 4), (2, 9)]
    assert actual_batches.samples == 6


def test_a_mask_without_names_stands_after_the_sequence() -> None:
    buckets = Buckets(lengths=[9], mask=True)
    ids, mask, labels = tuples(batches((WORDS, np.arange(8)), bucket_by=buckets).epoch())[0]
    assert mask.sum(1).tolist() == [len(words) for words in WORDS]
    assert (ids.shape, labels.shape) == ((8, 9), (8,))


def test_long_sequences_are_cut_if_asked() -> None:
    actual_batches = batches((WORDS, np.arange(8)), bucket_by=Buckets(lengths=[4], truncate=True))
    assert tuples(actual_batches.epoch())[0][0][5].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("source", "buckets", "error", "text"),
    [
        ((WORDS, Y[:8]), [4], InputError, "sample 5 has length 9, the largest bucket 4"),
        ((WORDS, Y[:8]), [], InputError, r"lengths \[\]; expected positive"),
        ((WORDS, Y[:8]), [0], InputError, r"lengths \[0\]; expected positive"),
        ((WORDS, Y[:8]), [1.5], DTypeError, r"bucket_by\[0\]: expected a whole number"),
        ({"ids": WORDS}, {"pad": {"idx": 0}}, NameNotFoundError, "no field 'idx'.*nearest: 'ids'"),
        ((WORDS, Y[:8]), {"pad": {}}, InputError, "expected a value for each sequence"),
        ((WORDS, Y[:8]), {"pad": 0}, DTypeError, "pad: expected a mapping"),
        ((WORDS, [[1]] * 8), {"pad": {0: 0, 1: 0}}, ShapeError, "unequal lengths in a sample"),
        ((Y[:8], WORDS), [9], ShapeError, "field 0 holds single values"),
    ],
)
def test_buckets_that_are_none(
    source: Any, buckets: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        list(
            batches(
                source, bucket_by=Buckets(**buckets) if isinstance(buckets, dict) else buckets
            ).epoch()
        )
