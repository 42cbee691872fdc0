"""PyTorch's side of the comparison, run in the Python that EDGEGRAD_BENCH_PEERS names.

    python -m bench.families.peer --list
    python -m bench.families.peer FOLDER TAG ...

In the working directory transformers would find this repository's `kernels` for a package of that
name.  So the directory is taken off the path as soon as `bench` has been found in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    """See `torch_side.main`."""
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT]
    from bench.families import torch_side

    torch_side.main(sys.argv[1:])


if __name__ == "__main__":
    main()
