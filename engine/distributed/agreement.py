"""Agreement: what one rank does or meets becomes what all of them go on with.

An error that is agreed upon is raised by all ranks at the same place: by the one that has met it as
it is, by the others as a `GroupError` that tells of it.  Any other error leaves ranks that wait for
this one, and so `end` ends them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from engine.base.errors import GroupError
from engine.distributed.group import Group, everyone, named, share

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
_AGREED = "agreed"  # the attribute of errors that all ranks raise


def agreed(error: E) -> E:
    """The error, which all ranks are about to raise."""
    vars(error)[_AGREED] = True
    return error


def is_agreed(error: BaseException) -> bool:
    """Whether all ranks raise an error, each its own."""
    return _AGREED in vars(error)


class Agreement:
    """The agreement of the ranks of a group."""

    def __init__(self, group: Group) -> None:
        self.group = group

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone writes and tells."""
        return self.group.rank == 0

    def agree(self, error: Exception | None) -> None:
        """Raise an error on all ranks if one of them has one.

        error: that of this rank; None: it has none.

        Raises:
            Exception: that of this rank.
            GroupError: another rank has one.
        """
        text = "" if error is None else f"{type(error).__name__}: {error}"
        told = everyone(self.group, text)
        failed = [rank for rank, text in enumerate(told) if text]
        if failed:
            if error is None:
                error = GroupError(f"{named(failed)} ended the training: {told[failed[0]]}")
            raise agreed(error)

    def lead(self, function: Callable[[], T]) -> T:
        """What a function returns at rank 0, where alone it is called; it is what JSON holds.

        Raises:
            Exception: as the function, at rank 0.
            GroupError: the same, at the others.
        """
        found, error = None, None
        if self.is_first:
            try:
                found = function()
            except Exception as problem:
                error = problem
        self.agree(error)
        result: T = share(self.group, found)
        return result

    def check_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuse to train where ranks have other models, data or options.

        facts: what must be the same on all ranks, as JSON holds it, by what messages call it.

        Raises:
            GroupError: something differs; the message names it and the ranks.
        """
        told = everyone(self.group, dict(facts))
        for key in facts:
            other = [rank for rank, found in enumerate(told) if found.get(key) != told[0][key]]
            if other:
                raise agreed(
                    GroupError(
                        f"{named(other)} and rank 0 differ in {key}: "
                        f"{told[other[0]].get(key)!r} there, {told[0][key]!r} at rank 0"
                    )
                )

    def end(self, error: BaseException) -> None:
        """End all ranks, unless all of them are about to end with this error."""
        if not is_agreed(error):
            self.group.abort(f"{type(error).__name__}: {error}")
