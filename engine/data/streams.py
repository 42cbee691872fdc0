"""Batches that an iterable yields, or an iterable that a function makes for each epoch."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any

from engine.base.errors import DTypeError, InputError
from engine.data.loader import Batches, check_position
from engine.data.prefetch import run_ahead
from engine.data.samples import Batch, Sample, as_batch, as_sample, order_batch, refuse_nan, stack

_END = object()


class Stream(Batches):
    """Batches in the order in which a source yields them; it alone decides on sizes and shuffling.

    An epoch that begins at a later batch reads and drops the ones before it.  A resumed epoch is
    therefore exact if the source yields the same each time it is asked for that epoch.

    Args:
        source: an iterable of batches; or a function that makes one, called with the number of the
            epoch, or with nothing if it takes nothing.
        names: inputs of the model, by which batches that are mappings are ordered.
        prefetch: batches made ahead by a thread; 0: none.
        allow_nan: whether floating-point arrays may hold NaN.
        what: what the source is called in messages.
    """

    def __init__(
        self,
        source: Any,
        *,
        names: Sequence[str] | None = None,
        prefetch: int = 2,
        allow_nan: bool = False,
        what: str = "the iterable",
    ) -> None:
        self.source, self.names, self.what = source, names, what
        self.prefetch, self.allow_nan = prefetch, allow_nan
        self._used = False
        with contextlib.suppress(TypeError, NotImplementedError):
            self._count: int | None = len(source)
            return
        self._count = None

    def __len__(self) -> int:
        if self._count is None:
            raise TypeError(f"{self.what}: the number of batches is unknown")
        return self._count

    def epoch(self, number: int = 0, start: int = 0) -> Iterator[Batch]:
        number, start = check_position(number, start)
        return self._list_batches(self._begin(number), start)

    def _begin(self, number: int) -> Iterable[Any]:
        """Return an iterable of the batches of an epoch."""
        source = self.source
        if callable(source) and not isinstance(source, Iterable):
            made: object = source(number) if _takes_number(source) else source()
            if not isinstance(made, Iterable):
                raise DTypeError(
                    f"{self.what}: the function of an epoch must return an iterable of batches, "
                    f"got {type(made).__name__}"
                )
            return made
        set_epoch(source, number)
        if isinstance(source, Iterator):
            if self._used:
                raise InputError(
                    f"{self.what}: an iterator yields its batches once, "
                    "and they are used up; give a list, a DataLoader, or a function that makes an "
                    "iterator: batches(lambda epoch: ...)"
                )
            self._used = True
        iterable: Iterable[Any] = source
        return iterable

    def _list_batches(self, source: Iterable[Any], start: int) -> Iterator[Batch]:
        iterator = iter(source)
        tasks = (partial(self._read, iterator, index, index >= start) for index in count())
        yielded = 0
        try:
            with contextlib.closing(run_ahead(tasks, self.prefetch)) as batches:
                for batch in batches:
                    if batch is _END:
                        break
                    if yielded >= start:
                        yield batch
                    yielded += 1
        finally:
            if inspect.isgenerator(iterator) and iterator is not self.source:
                iterator.close()
        if not yielded:
            raise InputError(f"{self.what} yields no batches")
        if yielded < start:
            raise InputError(f"start={start}, but {self.what} yields {yielded} batches")

    def _read(self, iterator: Iterator[Any], index: int, keep: bool) -> Any:
        """Return the next batch; `_END` after the last one; anything of a batch that is not
        kept.
        """
        item = next(iterator, _END)
        if item is _END or not keep:
            return item
        what = f"{self.what}, batch {index}"
        batch = order_batch(as_batch(item, what), self.names, what)
        if not self.allow_nan:
            fields = batch if isinstance(batch, dict) else dict(enumerate(batch))
            for name, array in fields.items():
                told = repr(name) if isinstance(name, str) else f"field {name}"
                refuse_nan(array, f"{what}, {told}", lambda row: f"sample {row}")
        return batch


def set_epoch(source: object, number: int) -> None:
    """Tell a source which epoch begins, as samplers of PyTorch and datasets of Hugging Face ask."""
    for place in (source, getattr(source, "sampler", None), getattr(source, "dataset", None)):
        tell = getattr(place, "set_epoch", None)
        if callable(tell):
            tell(number)


def _takes_number(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with one argument."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    except ValueError:  # a function of C without a signature
        return True
    return True


def group_samples(
    samples: Iterable[Any], batch_size: int, drop_last: bool, what: str
) -> Iterator[Batch]:
    """Yield batches of an iterable of samples, the last one smaller unless it is dropped."""
    iterator = iter(samples)
    for index in count():
        group = list(islice(iterator, batch_size))
        if not group or (drop_last and len(group) < batch_size):
            return
        named: list[str] | None = None
        members: list[Sample] = []
        for item in group:
            names, sample = as_sample(item, f"{what}, batch {index}")
            if members and names != named:
                raise InputError(f"{what}, batch {index}: samples with unequal names of fields")
            named = names
            members.append(sample)
        arrays = stack(members, named)
        yield arrays if named is None else dict(zip(named, arrays, strict=True))
