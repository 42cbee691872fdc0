"""Parts of pages that follow from declarations.

They stand between `<!-- made: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_PART = re.compile(r"(<!-- made: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def make_again(page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with its parts made again.

    parts: functions that make them, by name.
    """
    return _PART.sub(lambda part: f"{part[1]}{parts[part['name']]()}{part[3]}", page)
