"""Notebooks: whether this process is the kernel of one."""

from __future__ import annotations

import sys


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; look only at imported modules."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config
