"""Launchers: detection of mpirun, mpiexec or srun, which start this process as one rank of
several.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.base.errors import GroupError, MissingPackageError

if TYPE_CHECKING:
    from engine.distributed.group import RankGroup

PATIENCE = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Launched:
    """Facts about a launcher from the environment.

    by: the variable that names it.
    rank, size: the number of this process, and the number of processes, or None.
    here: the number of processes on this machine, or None.
    """

    by: str
    rank: int | None
    size: int | None
    here: int | None


# Variables of launchers: the number of processes, the rank of this one, the number of processes on
# this machine.  MPICH and Intel MPI have the first row, Open MPI 4 and 5 the second, MVAPICH the
# third, srun --mpi=pmi2 the first without its last variable; srun --mpi=pmix sets only RANK.
SIZES = {
    "PMI_SIZE": ("PMI_RANK", "MPI_LOCALNRANKS"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "MV2_COMM_WORLD_SIZE": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
}
RANK = "PMIX_RANK"

_worlds: list[RankGroup | None] = []  # the result of `world` after its first call


def find_launcher(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Return the facts about a launcher in an environment, by default the process's; None without
    one.
    """
    variables = os.environ if environment is None else environment

    def read_number(name: str) -> int | None:
        return int(variables[name]) if variables.get(name, "").isdecimal() else None

    for name, (rank, here) in SIZES.items():
        if read_number(name) is not None:
            return Launched(name, read_number(rank), read_number(name), read_number(here))
    return Launched(RANK, read_number(RANK), None, None) if RANK in variables else None


def world(patience: float = PATIENCE) -> RankGroup | None:
    """Return the group of all processes that a launcher has started together with this one.

    The result is None if there is only this one.  Every call returns the same group.  After the
    first call an exception that ends one rank ends all.

    patience: seconds that a rank waits for the others before it gives up: not the time of their
        computation, but the excess over this rank's.

    Raises:
        MissingPackageError: there is a launcher, and mpi4py or an MPI library is not installed.
        GroupError: the launcher is of another MPI than mpi4py uses.
    """
    if not _worlds:
        _worlds.append(_join_world(patience))
    return _worlds[0]


def is_joined() -> bool:
    """Return whether this process has already looked for its group."""
    return bool(_worlds)


def _join_world(patience: float) -> RankGroup | None:
    launcher = find_launcher()
    if launcher is None or launcher.size == 1:
        return None
    try:
        from engine.distributed.mpi import MpiGroup
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        raise MissingPackageError(
            f"a launcher has started this process as one of several ({launcher.by} is set): "
            f"that needs mpi4py and an MPI library: pip install 'edgegrad[mpi]' ({error})"
        ) from error
    group = MpiGroup(patience)
    if launcher.size not in (None, group.size):
        raise GroupError(
            f"the launcher has started {launcher.size} processes ({launcher.by}), but MPI reports "
            f"{group.size}: the launcher belongs to another MPI than mpi4py, which uses "
            f"{group.library}; start the training with the mpirun of that one"
        )
    return group if group.size > 1 else None
