"""The file of a model: what is known of it at once, its graph when it is needed, its constants."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.base import arguments
from engine.base.aliases import Array
from engine.base.errors import EngineError, InternalError, MissingPackageError
from engine.runtime import mapping
from engine.runtime.arena import make_view
from engine.runtime.mapping import Content
from engine.system import forks
from engine.system.files import NOTE
from engine.system.installation import COMPILERS
from engine.training import artifact_set, plan_cache
from engine.training.artifact_set import SetId
from engine.training.interface import Interface, compute_external_digest, list_pieces
from engine.training.memory import Memory
from engine.training.plan_cache import Records

if TYPE_CHECKING:
    from engine.graphs.ir.graph import Graph

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview

BUFFER, UPDATED, RESET = "_grad.accumulation.buffer", "_grad.accumulation.out", "lazy_reset_grad"
FROZEN_BYTES = 4096  # from this size on, a constant of a model is kept once for all plans
_PLANNER = ("onnx", "google", *COMPILERS)  # packages that only planning needs


class ModelFile:
    """The file of one ONNX model.

    Its graph is read when something is planned or exported.  Everything else needs only its
    interface, which is kept with its plans if there are records (see plan_cache.py).

    what: what messages call the model.
    digest: the digest of everything in the file that decides plans, and of the selection.
    interface: see `Interface`.
    frozen: the offsets of its large constants in region frozen.
    records: where what planning finds out is kept; None if it is not.  The constructor takes what
        makes them for the folder of the model, if that is known.
    selected: the values that are the outputs instead of the file's outputs; None for the model as
        it is.

    Raises:
        FileError: the file cannot be read.
        ModelError: it is not a model.
        MissingPackageError: it must be read by a package that is not installed.
    """

    def __init__(
        self,
        source: ModelSource,
        memory: Memory,
        threads: int,
        what: str,
        *,
        records: Callable[[str | None], Records] | None = None,
        selected: Sequence[str] | None = None,
    ) -> None:
        self.what, self.memory, self.threads = what, memory, threads
        self.selected = None if selected is None else tuple(selected)
        self.frozen: dict[str, int] = {}
        self.records: Records | None = None
        self._purpose = ""  # of the planning that goes on
        if isinstance(source, bytearray | memoryview):
            source = bytes(arguments.check_bytes(what, source))
        self._source: str | os.PathLike[str] | bytes = source
        self._pieces: list[Content | tuple[int, int]] = []  # of the file while `_graphs` is None
        self._graphs: tuple[Graph, Graph] | None = None  # as loaded, and after constant folding
        self.make_records = records
        self.content_digest = ""  # the digest of the file
        self.digest = ""
        if records is not None and isinstance(source, str | os.PathLike | bytes):
            self.interface = self._open(source, records)
        else:
            self._graphs = self._load(None)
            self.interface = Interface.of(*self._graphs, FROZEN_BYTES)

    def make_setting(self) -> plan_cache.Setting:
        """Return the kernel set, target and number of threads that plans of this model run on."""
        kernels = self.memory.kernels
        return kernels.name, kernels.target.name, self.threads

    @property
    def artifacts(self) -> SetId:
        """The set of artifacts that the file says it is of."""
        return SetId.parse(self.interface.notes.get(artifact_set.PROPERTY.removeprefix(NOTE)))

    @property
    def source(self) -> str | os.PathLike[str] | bytes:
        """The path or the bytes of the file that it was opened from."""
        return self._source

    def _open(
        self, source: str | os.PathLike[str] | bytes, make: Callable[[str | None], Records]
    ) -> Interface:
        """Return the interface of a model, from the records or from its graph, which is then kept.

        make: makes the records of a folder.
        """
        data: Content
        if isinstance(source, bytes):
            data, records = source, make(None)
        else:
            path = arguments.check_path("model", source)
            data, records = mapping.read(path, "model"), make(os.path.dirname(path))
        self.digest = self.content_digest = plan_cache.digest_model(data)
        if self.selected is not None:
            self.digest = plan_cache.make_key("selected", self.digest, self.selected)
        key = plan_cache.make_key("interface", self.digest, FROZEN_BYTES)
        raw = records.get(key)
        if raw is not None:
            with contextlib.suppress(ValueError, LookupError, TypeError):  # no interface
                interface = Interface.from_bytes(raw, len(data))
                stamps = interface.notes.get(mapping.STAMPS.removeprefix(NOTE))
                if stamps is not None:
                    mapping.check_stamps(stamps, self._path)
                if compute_external_digest(self._path, interface.external) == interface.stamp:
                    self._keep(interface, records)
                    self._pieces = [data]
                    return interface
        with self.planning("read", records):
            from engine.graphs.passes.infer import FOLD_BYTES

            self._graphs = graph, folded = self._load(data)
        interface = Interface.of(graph, folded, FROZEN_BYTES)
        if _may_be_kept(graph):
            beside = graph.external, self._path, FOLD_BYTES
            known = interface.locate_constants(folded.initializers, data, *beside)
            records.put(key, known.to_bytes())
            self._keep(known, records)
            records.tell(self.digest, None)
        return interface

    def _keep(self, interface: Interface, records: Records) -> None:
        """Keep records of this model from now on, under a digest of all that decides its plans.

        The digest includes external data that may be folded into other constants.  Larger data
        decides no plan, unless its values turn out to decide shapes; such plans are not kept.
        """
        self.records = records
        if interface.external:
            self.digest = plan_cache.make_key("external", self.digest, interface.stamp)

    @property
    def _path(self) -> str:
        """The path of the file; "" if it was opened from bytes."""
        return "" if isinstance(self._source, bytes) else os.fspath(self._source)

    def _load(self, data: Content | None) -> tuple[Graph, Graph]:
        """Read the graph, and make another one of it by constant folding.

        data: the content of the file, if it is at hand.
        """
        from engine.graphs.io import onnx_io

        graph = onnx_io.load(self._source, data)
        if self.selected is not None:
            from engine.graphs.offline.export import select

            graph = select(graph, self.selected)
        return graph, fold_constants(graph)

    @contextlib.contextmanager
    def planning(self, purpose: str, records: Records | None) -> Iterator[None]:
        """Explain how to go on if a package that only planning needs is missing.

        purpose: what is to be done with the model; messages name the outermost of nested purposes.

        Raises:
            MissingPackageError: it is; the message says what to do.
            StateError: this process was forked at a moment after which it cannot plan.
        """
        forks.require_whole()
        outer = self._purpose
        self._purpose = outer or purpose
        try:
            yield
        except ModuleNotFoundError as error:
            if outer or (error.name or "").partition(".")[0] not in _PLANNER:
                raise
            complaint, folder = "", None
            if records is not None and records.beside is not None:
                complaint = records.explain_unusable(self.digest, self.make_setting())
            if records is not None:
                folder = records.folder
            command = plan_cache.make_command(folder, self.threads)
            raise MissingPackageError(
                f"the {self.what} must be {purpose}, which needs the package {error.name!r}, and "
                f"it is not installed (pip install edgegrad); {complaint}or run `{command}` where "
                f"it is, and copy {plan_cache.PREPARED} to the model's folder"
            ) from error
        finally:
            self._purpose = outer

    def _load_graphs(self) -> tuple[Graph, Graph]:
        """Return the graph as loaded, and after constant folding; read them if they were not."""
        if self._graphs is None:
            with self.planning("read", self.records):
                self._graphs = self._load(self._join_content())
            self._pieces = []
            if self.frozen:
                self.freeze()
        return self._graphs

    def _join_content(self) -> Content:
        """Return the file of the model again, of its pieces and what region frozen holds."""
        if len(self._pieces) == 1 and isinstance(self._pieces[0], mapping.MappedFile):
            return self._pieces[0]
        parts = [
            self.memory.frozen[slice(*p)].data if isinstance(p, tuple) else memoryview(p)
            for p in self._pieces
        ]
        if sum(part.nbytes for part in parts) >= mapping.LARGE:
            return mapping.spill(parts)
        return b"".join(parts)

    @property
    def graph(self) -> Graph:
        """The model as loaded."""
        return self._load_graphs()[0]

    @property
    def constants(self) -> Graph:
        """The model after constant folding."""
        return self._load_graphs()[1]

    def list_contents(self) -> Iterator[tuple[str, Array]]:
        """Yield the large constants by name, with their values."""
        if self._graphs is not None:
            values = self._graphs[1].initializers
            yield from ((each.name, values[each.name]) for each in self.interface.large)
        else:
            (data,) = self._pieces
            assert not isinstance(data, tuple)
            yield from self.interface.list_contents(data, self._path)

    def freeze(self) -> None:
        """Let region frozen hold the large constants, which have their places there, alone."""
        if self._graphs is None:
            frozen, (data,) = self.memory.frozen, self._pieces
            assert not isinstance(data, tuple)
            for each, (name, array) in zip(self.interface.large, self.list_contents(), strict=True):
                if self.frozen[name] not in self.memory.laid:
                    make_view(frozen, self.frozen[name], each.dtype, each.shape)[...] = array
            self._pieces = [*list_pieces(self.interface.large, self.frozen, data)]
            self.interface = replace(self.interface, made=b"")
            return
        graph, folded = self._graphs
        for each in self.interface.large:
            mine = make_view(self.memory.frozen, self.frozen[each.name], each.dtype, each.shape)
            if self.frozen[each.name] in self.memory.laid:
                mine.flags.writeable = False
            else:
                mine[...] = folded.initializers[each.name]
            folded.initializers[each.name] = mine
            if each.name in graph.initializers:
                graph.initializers[each.name] = mine


def _may_be_kept(graph: Graph) -> bool:
    """Return whether the file of a model and this package alone decide the plans of the model.

    They do not where operators are a user's own.  Of external data the digest has what is small
    enough to be folded, see `_keep`.
    """
    from engine.kernels.vocabulary.op import MS, OURS

    return _list_domains(graph) <= {"", MS, OURS}


def _list_domains(graph: Graph) -> set[str]:
    """Return the domains of all nodes, including the nodes of subgraphs."""
    domains = {node.domain for node in graph.nodes}
    inner = (getattr(value, "graph", None) for n in graph.nodes for value in n.attrs.values())
    return domains.union(*(_list_domains(body) for body in inner if body is not None))


def fold_constants(graph: Graph) -> Graph:
    """Return a copy of a graph whose constants are folded, if it has large ones."""
    from engine.graphs.passes.control import has_control_flow
    from engine.graphs.passes.foreign import give_pool_grads_input
    from engine.graphs.passes.infer import infer

    copy = graph.copy()
    large = any(a.nbytes >= FROZEN_BYTES for a in graph.initializers.values())
    if large and not has_control_flow(graph):
        try:
            infer(give_pool_grads_input(copy))
        except InternalError:
            raise
        except EngineError:
            pass  # planning knows more: values of inputs, and single floats for half ones
    return copy
