"""Rules of samples: how the outputs of each kind of node hold them, see sample_flow.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from engine.base.element_types import FLOATS
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.ir.sites import get_declaration
from engine.graphs.offline.sample_graph import LINEAR, SampleGraph
from engine.graphs.offline.sample_values import SUM, Flow, LossValue, MixedError, SampleRows
from engine.kernels.vocabulary.facts import Samples
from engine.system.paths import Paths

ADVICE = "; let the gradient be computed for each sample alone, or train on whole batches"


class SampleRules(SampleGraph):
    """The rules by which samples are followed through the nodes of a graph.

    own_statistics: whether batch normalisations may take their statistics over a part of a batch.
    owners: for nodes of gradients that a user wrote, the node that has them.
    """

    def __init__(
        self,
        graph: Graph,
        flows: dict[str, Flow],
        samples: int,
        own_statistics: bool,
    ) -> None:
        super().__init__(graph, flows, samples)
        self.own_statistics = own_statistics
        self.paths = Paths.of(graph.metadata)
        self.owners: dict[str, str] = {}

    def follow(self, node: Node) -> None:
        """Find out how the outputs of a node hold samples."""
        if not any(self.flows.get(name) for name in node.list_reads()):
            return
        flow = self._follow(node)
        flows = flow if isinstance(flow, tuple) else (flow,) * len(node.outputs)
        self.flows.update((n, f) for n, f in zip(node.outputs, flows, strict=True) if n)

    def _follow(self, node: Node) -> Flow | tuple[Flow, ...]:
        flows = [self.flows.get(name) for name in node.inputs]
        if any(isinstance(flow, LossValue) for flow in flows):
            return self._follow_loss(node, flows)
        how = self.find_samples(node)
        rule = _RULES.get(how)
        if rule is None:
            raise self.explain_mixed(node, "is not known to keep samples apart")
        numbered = any(isinstance(flow, SampleRows) and flow.numbers for flow in flows)
        if numbered and how is not Samples.GATHERED_ND:
            raise self.explain_mixed(node, "computes with the numbers of samples in the batch")
        return rule(self, node)

    def explain_mixed(self, node: Node, why: str) -> MixedError:
        """Return the error of a node that mixes samples, or may."""
        name, owner = self.paths.title_node(node.name), self.owners.get(node.name)
        if owner is None:
            return MixedError(f"node {name} ({node.op}) {why}")
        where = f"of the gradient of node {self.paths.title_node(owner)}"
        return MixedError(f"node {name} ({node.op}) {where} {why}{ADVICE}")

    # --- what is reduced

    def _follow_loss(self, node: Node, flows: Sequence[Flow]) -> LossValue:
        """Return the loss that a node computes a linear function of."""
        first, *more = flows
        kinds = {flow for flow in flows if flow is not None}
        (loss, *others) = kinds
        if others or not isinstance(loss, LossValue):
            raise self.explain_mixed(node, "joins values that are reduced in different ways")
        how, op = self.find_samples(node), get_declaration(self.graph, node)
        is_real = all(self.types[o].dtype in FLOATS for o in node.outputs if o)
        is_moved = op.keeps_elements or how in LINEAR or node.op == "Neg"
        if is_moved and is_real and isinstance(first, LossValue) and not any(more):
            return loss
        if node.op in ("Add", "Sub", "Sum") or how is Samples.CONCATENATED:
            terms = list(node.inputs)
        elif node.op == "Where" and first is None:
            terms = list(node.inputs[1:])
        else:
            terms = []
        if terms and (loss.is_mean or all(self.flows.get(n) or self.is_zero(n) for n in terms)):
            return loss
        is_product = node.op == "Mul" or how in (Samples.MATMUL, Samples.GEMM, Samples.EINSUM)
        is_alone = sum(flow is not None for flow in flows) == 1
        if is_product and is_alone and (len(flows) == 2 or how is Samples.EINSUM):
            return loss
        if node.op == "Div" and isinstance(first, LossValue) and more == [None]:
            return loss
        raise self.explain_mixed(
            node, "computes something of a loss over all samples that is not linear"
        )

    def follow_cross_entropy(self, node: Node) -> tuple[Flow, ...]:
        """Follow a loss, and the logarithms of the probabilities of each sample."""
        loss, scores = self._follow_reduced_entropy(node), self.flows[node.inputs[0]]
        assert isinstance(scores, SampleRows)
        return (loss, scores.to(0))[: len(node.outputs)]

    def _follow_reduced_entropy(self, node: Node) -> Flow:
        scores, labels = (self.flows.get(name) for name in node.inputs[:2])
        if not (isinstance(scores, SampleRows) and isinstance(labels, SampleRows)):
            raise self.explain_mixed(node, "has scores or labels that belong to no sample")
        if scores.axis or labels.axis or scores.step != labels.step:
            raise self.explain_mixed(node, "has samples elsewhere than on the first axis")
        reduction = node.attrs.get("reduction", b"mean")
        reduction = reduction.decode() if isinstance(reduction, bytes) else reduction
        weights = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2] else None
        ignore = node.attrs.get("ignore_index")
        if reduction == "none":
            return labels.to(0)
        if reduction == "sum":
            return LossValue(is_mean=False)
        if weights is None and ignore is None:
            return LossValue(is_mean=True)
        if labels.source is None:
            raise self.explain_mixed(
                node, "weighs samples by labels that are not an input of the model"
            )
        known = None
        if weights is not None:
            if weights not in self.constants:
                raise self.explain_mixed(node, "weighs samples by weights that are not a constant")
            known = tuple(float(w) for w in self.constants[weights])
        return LossValue(True, labels.source, ignore, known)

    def follow_reduction(self, node: Node) -> Flow:
        flow, rank = self._get_only_samples(node), self.types[node.inputs[0]].rank
        axes = node.attrs.get("axes")
        how = self.find_samples(node)
        if how is Samples.REDUCED_AXIS:
            axes = [node.attrs.get("axis", 0)]
        elif axes is None and len(node.inputs) > 1 and node.inputs[1]:
            axes = self.constants[node.inputs[1]].tolist()
        gone = {a % rank for a in axes} if axes else set(range(rank))
        if axes is not None and not axes and node.attrs.get("noop_with_empty_axes"):
            gone = set()
        if flow.axis not in gone:
            kept = node.attrs.get("keepdims", 1)
            return flow.to(flow.axis - (0 if kept else sum(a < flow.axis for a in gone)))
        if how not in (Samples.MEAN, Samples.SUM):
            raise self.explain_mixed(
                node, "reduces the samples, to neither their mean nor their sum"
            )
        return LossValue(is_mean=how is Samples.MEAN)

    # --- what keeps samples apart

    def _get_only_samples(self, node: Node) -> SampleRows:
        """Return the samples of input 0; all other inputs are constant."""
        flows = [self.flows.get(name) for name in node.inputs]
        flow = flows[0]
        if not isinstance(flow, SampleRows) or any(flows[1:]):
            raise self.explain_mixed(node, "reads samples elsewhere than in its first input")
        return flow

    def _check_aligned(
        self, node: Node, names: Sequence[str], from_end: int, step: tuple[int, int]
    ) -> None:
        """Refuse constants that are not the same for each sample.

        from_end: the place of the samples' axis, counted from the last.

        Raises:
            MixedError: one of them is not.
        """
        for name in filter(None, names):
            axis = self.types[name].rank - from_end
            if self.flows.get(name) is None and axis >= 0 and not self.is_same(name, axis, step):
                raise self.explain_mixed(
                    node, f"has {name!r}, which is as long as the samples, but none"
                )

    def follow_elementwise(self, node: Node) -> Flow:
        """Follow samples that all operands have at the same axis, counted from the last."""
        op = get_declaration(self.graph, node)
        names = [n for k, n in enumerate(node.inputs) if n and k not in op.type_only]
        flows = {name: self.flows.get(name) for name in names}
        layouts = {
            (self.types[name].rank - flow.axis, flow.step)
            for name, flow in flows.items()
            if isinstance(flow, SampleRows)
        }
        if not layouts:  # the type of samples is read, and nothing of them
            return None
        if len(layouts) != 1:
            raise self.explain_mixed(node, "meets samples on different axes")
        ((from_end, step),) = layouts
        self._check_aligned(node, names, from_end, step)
        first = flows[names[0]]
        source = first.source if op.keeps_elements and isinstance(first, SampleRows) else None
        return SampleRows(self.types[node.outputs[0]].rank - from_end, step[0], source, step[1])

    def follow_first_axis(self, node: Node) -> Flow:
        flow = self._get_only_samples(node)
        if flow.axis or flow.step != (1, 1):
            raise self.explain_mixed(node, "has samples elsewhere than on its first axis")
        return flow.to(0)

    def follow_gemm(self, node: Node) -> Flow:
        a, *_ = flows = [self.flows.get(name) for name in node.inputs]
        places = int(not node.attrs.get("transA")), int(bool(node.attrs.get("transB")))
        if self._is_summed(flows[:2], places) and not any(node.inputs[2:]):
            return SUM
        if node.attrs.get("transA") or not isinstance(a, SampleRows) or a.axis or flows[1]:
            raise self.explain_mixed(node, "sums over the samples")
        if len(flows) > 2 and flows[2] is not None:
            added = flows[2]
            if not isinstance(added, SampleRows) or added.to(0) != a.to(0) or added.axis != 0:
                raise self.explain_mixed(node, "meets samples on different axes")
        self._check_aligned(node, node.inputs[2:], 2, a.step)
        return a.to(0)

    def _is_summed(self, flows: Sequence[Flow], axes: Sequence[int]) -> bool:
        """Return whether a product sums over the samples of both operands, along these axes."""
        a, b = flows
        return (
            isinstance(a, SampleRows)
            and isinstance(b, SampleRows)
            and (a.axis, b.axis) == tuple(axes)
            and a.step == b.step
        )

    def follow_matmul(self, node: Node) -> Flow:
        """Follow samples on a batch axis of both, or on an axis of one that the product keeps."""
        ranks = [self.types[name].rank for name in node.inputs]
        out = self.types[node.outputs[0]].rank
        places = ranks[0] - 1, max(ranks[1] - 2, 0)
        if self._is_summed([self.flows.get(name) for name in node.inputs], places):
            return SUM
        layouts = {
            (place, rank - flow.axis, flow.step)
            for place, (name, rank) in enumerate(zip(node.inputs, ranks, strict=True))
            if isinstance(flow := self.flows.get(name), SampleRows)
        }
        summed = {(0, 1), (1, 2) if ranks[1] > 1 else (1, 1)}
        from_ends = {(from_end, step) for _, from_end, step in layouts}
        apart = len(from_ends) == 1 and (len(layouts) == 1 or next(iter(from_ends))[0] > 2)
        if not apart or any((place, from_end) in summed for place, from_end, _ in layouts):
            raise self.explain_mixed(node, "multiplies samples with each other, or sums over them")
        ((from_end, step),) = from_ends
        if from_end > 2:
            self._check_aligned(node, node.inputs, from_end, step)
        if from_end == 2 and ranks[1] == 1:
            from_end = 1
        elif from_end > 2:
            from_end -= sum(rank == 1 for rank in ranks)
        return SampleRows(out - from_end, step[0], None, step[1])

    def follow_einsum(self, node: Node) -> Flow:
        """Follow samples that have one letter in all operands, which the result has, too."""
        equation = node.attrs["equation"].replace(" ", "")
        given, arrow, result = equation.partition("->")
        terms = given.split(",")
        letters = {
            (term[flow.axis], flow.step)
            for term, name in zip(terms, node.inputs, strict=True)
            if isinstance(flow := self.flows.get(name), SampleRows) and "." not in equation
        }
        if len(letters) != 1 or not arrow:
            raise self.explain_mixed(node, "multiplies samples with each other, or sums over them")
        ((letter, step),) = letters
        for term, name in zip(terms, node.inputs, strict=True):
            flow = self.flows.get(name)
            if isinstance(flow, SampleRows) and term.count(letter) > 1:
                raise self.explain_mixed(
                    node, "multiplies samples with each other, or sums over them"
                )
            if flow is None and letter in term:
                self._check_aligned(node, [name], len(term) - term.index(letter), step)
        if letter not in result:
            return SUM
        return SampleRows(result.index(letter), step[0], None, step[1])

    def follow_transpose(self, node: Node) -> Flow:
        flow, rank = self._get_only_samples(node), self.types[node.inputs[0]].rank
        order = list(node.attrs.get("perm", range(rank)[::-1]))
        return flow.to(order.index(flow.axis))

    def follow_reshape(self, node: Node) -> Flow:
        """Follow samples to where as many elements are before them as were, and as many in each.

        Axes in front of theirs may become one with it: then it goes through them so many turns.
        """
        flow = self._get_only_samples(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        before = math.prod(old[: flow.axis]) * flow.turns
        for axis, size in enumerate(new):
            outside = math.prod(new[:axis])
            turns = before // outside if outside else 0
            if turns and outside * turns == before and size % (turns * self.samples) == 0:
                rows = size // (turns * self.samples)
                if rows and size > 1:
                    return SampleRows(axis, rows, flow.source, turns)
        raise self.explain_mixed(node, "shapes samples into each other")

    def follow_spread(self, node: Node) -> Flow:
        """Follow longer axes; a Tile of the samples' axis goes through the samples again."""
        flow = self._get_only_samples(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        axis = flow.axis + len(new) - len(old)
        times = new[axis] // old[flow.axis]
        return SampleRows(axis, flow.rows, None, flow.turns * times)

    def follow_resize(self, node: Node) -> Flow:
        """Follow a node that leaves the axis of the samples as long as it is."""
        flow = self._get_only_samples(node)
        old, new = self.types[node.inputs[0]].dims, self.types[node.outputs[0]].dims
        cropped = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        if cropped or old[flow.axis] != new[flow.axis]:
            raise self.explain_mixed(node, "changes how many samples there are")
        return flow.to(flow.axis)

    def follow_pad(self, node: Node) -> Flow:
        flow, rank = self._get_only_samples(node), self.types[node.inputs[0]].rank
        pads = node.attrs.get("pads")
        if pads is None:
            pads = self.find_value(node, 1)
        axes = self.find_value(node, 3) if len(node.inputs) > 3 else None
        places = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
        count = len(places)
        if pads is None or any(
            int(pads[k]) or int(pads[k + count])
            for k, place in enumerate(places) if place == flow.axis
        ):  # fmt: skip
            raise self.explain_mixed(node, "pads the samples")
        return flow.to(flow.axis)

    def follow_norm(self, node: Node) -> Flow:
        flow = self._get_only_samples(node)
        if flow.axis in self.list_normalised(node):
            raise self.explain_mixed(node, "normalises over the samples")
        return flow.to(flow.axis)

    def follow_axis_apart(self, node: Node) -> Flow:
        """Follow a node that works along one axis, which must not be the samples' axis."""
        flow, rank = self._get_only_samples(node), self.types[node.inputs[0]].rank
        how = self.find_samples(node)
        given = how is Samples.INPUT_AXIS_APART
        axis = self.find_value(node, 1) if given else node.attrs.get("axis", -1)
        if how is Samples.MATRICES_APART:
            places = {rank - 1, rank - 2}
        else:
            places = {int(np.asarray(axis)) % rank}
        if flow.axis in places:
            raise self.explain_mixed(node, "works along the samples")
        return flow.to(flow.axis)

    def follow_batch_norm(self, node: Node) -> Flow:
        learns = self.find_samples(node) is Samples.BATCH_STATISTICS
        if (learns or node.attrs.get("training_mode")) and not self.own_statistics:
            raise self.explain_mixed(node, "takes its statistics over all samples")
        return self.follow_first_axis(node)

    def follow_gather(self, node: Node) -> Flow:
        data, index = (self.flows.get(name) for name in node.inputs)
        t, places = (self.types[name] for name in node.inputs)
        axis = node.attrs.get("axis", 0) % t.rank
        if data is None and isinstance(index, SampleRows):
            return index.to(axis + index.axis)
        if isinstance(data, SampleRows) and index is None and axis != data.axis:
            return data.to(data.axis + (places.rank - 1 if axis < data.axis else 0))
        if isinstance(data, SampleRows) and index is None:
            taken = self.find_value(node, 1)
            if taken is not None and np.array_equal(taken, np.arange(t.dims[axis])):
                return data.to(axis)
        raise self.explain_mixed(node, "takes places out of the samples")

    def follow_gather_nd(self, node: Node) -> Flow:
        """Follow GatherND, by indices of each sample, of all, or that hold the sample's number."""
        data, index = (self.flows.get(name) for name in node.inputs)
        ranks = [self.types[name].rank for name in node.inputs]
        batch = node.attrs.get("batch_dims", 0)
        end, last = batch + int(self.types[node.inputs[1]].dims[-1]), ranks[1] - 1
        if isinstance(index, SampleRows) and index.axis == last:
            raise self.explain_mixed(node, "takes places out of the samples")
        if data is None and isinstance(index, SampleRows) and not index.numbers:
            if index.axis < batch:
                self._check_aligned(node, node.inputs[:1], ranks[0] - index.axis, index.step)
            return index.to(index.axis)
        if not isinstance(data, SampleRows):
            raise self.explain_mixed(node, "takes places out of the samples")
        if data.axis >= end and index is None:
            return data.to(data.axis - end + last)
        if data.axis < batch and index is None:
            self._check_aligned(node, node.inputs[1:], ranks[1] - data.axis, data.step)
            return data.to(data.axis)
        if data.axis < batch and isinstance(index, SampleRows) and not index.numbers:
            if (data.axis, data.step) == (index.axis, index.step):
                return data.to(data.axis)
        elif batch <= data.axis < end and data.step == (1, 1):
            known = {axis: self.find_numbers(node.inputs[1], axis) for axis in range(batch, last)}
            if isinstance(index, SampleRows):
                known = {index.axis: index.numbers}
            for axis, numbers in known.items():
                if axis >= batch and numbers == {data.axis - batch}:
                    return SampleRows(axis)
        raise self.explain_mixed(node, "takes places out of the samples")

    def follow_gather_elements(self, node: Node) -> Flow:
        """Follow GatherElements, each sample by places of its own, or all by the same."""
        flows, t = [self.flows.get(name) for name in node.inputs], self.types[node.inputs[0]]
        axis = node.attrs.get("axis", 0) % t.rank
        kinds = {(f.axis, f.step) for f in flows if isinstance(f, SampleRows)}
        dims = {self.types[name].dims[next(iter(kinds))[0]] for name in node.inputs}
        if len(kinds) != 1 or len(dims) != 1 or next(iter(kinds))[0] == axis:
            raise self.explain_mixed(node, "takes places out of the samples")
        ((place, step),) = kinds
        self._check_aligned(node, node.inputs, t.rank - place, step)
        return SampleRows(place, step[0], None, step[1])

    def follow_join(self, node: Node) -> Flow:
        """Follow a join or split along another axis than the samples', or turn by turn."""
        names = node.inputs[:1] if self.find_samples(node) is Samples.SPLIT else node.inputs
        flows = [self.flows.get(name) for name in names]
        kinds = {(f.axis, f.step) for f in flows if isinstance(f, SampleRows)}
        rank = self.types[names[0]].rank
        axis = node.attrs.get("axis", 0) % rank
        if len(kinds) != 1:
            raise self.explain_mixed(node, "joins or parts the samples")
        ((place, step),) = kinds
        if axis != place:
            is_last = axis == rank - 1 and step == (1, 1)
            numbers = self.find_joined_numbers(node, place) if is_last else frozenset()
            self._check_aligned(node, [] if numbers else names, rank - place, step)
            return SampleRows(place, step[0], None, step[1], numbers)
        parts = [self.types[o].dims[axis] for o in node.outputs if o]
        turn = self.samples * step[0]
        if None in flows or len(set(parts)) != 1 or parts[0] % turn or not parts[0]:
            raise self.explain_mixed(node, "joins or parts the samples")
        return SampleRows(place, step[0], None, parts[0] // turn)

    def follow_slice(self, node: Node) -> Flow:
        """Follow a slice along another axis than the samples', or of whole turns through them."""
        flow, rank = self._get_only_samples(node), self.types[node.inputs[0]].rank
        new = self.types[node.outputs[0]].dims[flow.axis]
        begins, axes, steps = (self.find_value(node, k) for k in (1, 3, 4))
        if begins is None and "starts" in node.attrs:
            begins = np.asarray(node.attrs["starts"])
            axes = np.asarray(node.attrs.get("axes", range(len(begins))))
        if begins is None:
            raise self.explain_mixed(node, "takes samples out of the batch, or changes their order")
        places = range(rank) if axes is None else [int(a) % rank for a in axes]
        turn = self.samples * flow.rows
        for k, place in enumerate(places[: len(begins)]):
            begin = int(begins[k]) + (flow.turns * turn if begins[k] < 0 else 0)
            stride = 1 if steps is None else int(steps[k])
            whole = stride == 1 and max(begin, 0) % turn == 0 and new and new % turn == 0
            if place == flow.axis and not whole:
                raise self.explain_mixed(
                    node, "takes samples out of the batch, or changes their order"
                )
        source = flow.source if new == flow.turns * turn else None
        return SampleRows(
            flow.axis, flow.rows, source if self._is_whole(node) else None, new // turn
        )

    def _is_whole(self, node: Node) -> bool:
        """Return whether a node leaves all of its input as it is."""
        return self.types[node.inputs[0]].dims == self.types[node.outputs[0]].dims

    def follow_recurrent(self, node: Node) -> tuple[Flow, ...]:
        """Follow a recurrent layer, whose states may have samples, too."""
        first = bool(node.attrs.get("layout", 0))
        axes = {0: 1 - first, 4: 0, 5: 1 - first, 6: 1 - first}
        flows = {k: self.flows.get(name) for k, name in enumerate(node.inputs) if name}
        x = flows[0]
        if not isinstance(x, SampleRows) or any(
            flow is not None and (not isinstance(flow, SampleRows) or axes.get(k) != flow.axis
                                  or flow.step != x.step)
            for k, flow in flows.items()
        ):  # fmt: skip
            raise self.explain_mixed(node, "has samples elsewhere than on the axis of its batch")
        for k, axis in axes.items():
            if flows.get(k) is None and k in flows:
                name = node.inputs[k]
                self._check_aligned(node, [name], self.types[name].rank - axis, x.step)
        return tuple(x.to(0 if first else 1 if 0 < k < 3 else 2) for k in range(len(node.outputs)))


_Rule = Callable[[SampleRules, Node], Flow | tuple[Flow, ...]]
_RULES: dict[Samples, _Rule] = {
    Samples.ELEMENTWISE: SampleRules.follow_elementwise,
    Samples.FIRST_AXIS: SampleRules.follow_first_axis,
    Samples.KEPT: SampleRules.follow_reshape,
    Samples.TRANSPOSED: SampleRules.follow_transpose,
    Samples.EXPANDED: SampleRules.follow_spread,
    Samples.TILED: SampleRules.follow_spread,
    Samples.RESIZED: SampleRules.follow_resize,
    Samples.PADDED: SampleRules.follow_pad,
    Samples.CONCATENATED: SampleRules.follow_join,
    Samples.SPLIT: SampleRules.follow_join,
    Samples.SLICED: SampleRules.follow_slice,
    Samples.GATHERED: SampleRules.follow_gather,
    Samples.GATHERED_EACH: SampleRules.follow_gather_elements,
    Samples.GATHERED_ND: SampleRules.follow_gather_nd,
    Samples.AXIS_APART: SampleRules.follow_axis_apart,
    Samples.INPUT_AXIS_APART: SampleRules.follow_axis_apart,
    Samples.MATRICES_APART: SampleRules.follow_axis_apart,
    Samples.NORMALISED: SampleRules.follow_norm,
    Samples.SOFTMAX: SampleRules.follow_norm,
    Samples.BATCH_NORM: SampleRules.follow_batch_norm,
    Samples.BATCH_STATISTICS: SampleRules.follow_batch_norm,
    Samples.MEAN: SampleRules.follow_reduction,
    Samples.SUM: SampleRules.follow_reduction,
    Samples.REDUCED: SampleRules.follow_reduction,
    Samples.REDUCED_AXIS: SampleRules.follow_reduction,
    Samples.GEMM: SampleRules.follow_gemm,
    Samples.MATMUL: SampleRules.follow_matmul,
    Samples.EINSUM: SampleRules.follow_einsum,
    Samples.RECURRENT: SampleRules.follow_recurrent,
    Samples.CROSS_ENTROPY: SampleRules.follow_cross_entropy,
}
