"""Agreement of ranks: a result or an error of one rank becomes the result or error of all.

All ranks raise an agreed error at the same place: the failing rank raises the original one, the
others a `GroupError` that names it.  After any other error ranks would wait for this one forever,
so `end` ends them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from engine.base.errors import GroupError
from engine.distributed.group import RankGroup, gather_values, name_ranks, share

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
_AGREED = "agreed"  # attribute of errors that all ranks raise


def mark_agreed(error: E) -> E:
    """Mark and return an error that all ranks are about to raise."""
    vars(error)[_AGREED] = True
    return error


def is_agreed(error: BaseException) -> bool:
    """Return whether all ranks raise an error, each its own."""
    return _AGREED in vars(error)


class Agreement:
    """Agreement of the ranks of a group."""

    def __init__(self, group: RankGroup) -> None:
        self.group = group

    @property
    def is_first(self) -> bool:
        """True for rank 0, the only one that writes and prints."""
        return self.group.rank == 0

    def agree(self, error: Exception | None) -> None:
        """Raise an error on all ranks if one of them has one.

        error: the error of this rank, or None.

        Raises:
            Exception: the error of this rank.
            GroupError: another rank has one.
        """
        text = "" if error is None else f"{type(error).__name__}: {error}"
        told = gather_values(self.group, text)
        failed = [rank for rank, text in enumerate(told) if text]
        if failed:
            if error is None:
                error = GroupError(f"{name_ranks(failed)} ended the training: {told[failed[0]]}")
            raise mark_agreed(error)

    def lead(self, function: Callable[[], T]) -> T:
        """Run `function` on rank 0 and return its result, which JSON can hold, on every rank.

        Raises:
            Exception: any exception of the function, on rank 0.
            GroupError: the same on the other ranks.
        """
        made, error = None, None
        if self.is_first:
            try:
                made = function()
            except Exception as problem:
                error = problem
        self.agree(error)
        result: T = share(self.group, made)
        return result

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuse to train if ranks have different models, data or options.

        facts: the values that must be the same on all ranks, for JSON, by their names in messages.

        Raises:
            GroupError: something differs; the message names it and the ranks.
        """
        told = gather_values(self.group, dict(facts))
        for key in facts:
            other = [rank for rank, each in enumerate(told) if each.get(key) != told[0][key]]
            if other:
                raise mark_agreed(
                    GroupError(
                        f"{name_ranks(other)} and rank 0 differ in {key}: "
                        f"{told[other[0]].get(key)!r} there, {told[0][key]!r} at rank 0"
                    )
                )

    def end(self, error: BaseException) -> None:
        """End all ranks, unless all of them are about to end with this error."""
        if not is_agreed(error):
            self.group.abort(f"{type(error).__name__}: {error}")
