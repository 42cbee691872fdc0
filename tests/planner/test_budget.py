"""Plans under a budget: what runs again, what it takes, and that no number changes by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import pytest

from engine.api import CheckpointState, Module
from engine.base.aliases import Array
from engine.base.plan_options import PlanOptions
from engine.errors import BudgetError
from engine.graphs.ir.graph import Graph, Node
from engine.graphs.offline.differentiate import differentiate
from engine.graphs.passes.infer import infer
from engine.graphs.passes.simplify import forward_part
from engine.graphs.planner import lower, planner
from engine.graphs.planner.budget import Ladder, Rung
from engine.graphs.planner.draft import Draft, DraftCall
from engine.graphs.planner.lifetimes import (
    compute_liveness_bound,
    count_work_bytes,
    find_lifetimes,
    merge_inplace,
)
from engine.graphs.planner.planner import Planner
from engine.graphs.planner.recompute import find_places, find_repeats, repeat
from engine.graphs.planner.search import Chosen, Search
from engine.graphs.planner.timeline import MemoryProfile, Timeline
from engine.kernels.analysis.cost import predict_steps
from engine.kernels.binaries.load import get_linker
from engine.kernels.machine.target import Target, detect_host
from engine.kernels.vocabulary.op import TensorType
from engine.plan.plan import KernelSpec, Plan
from engine.runtime.arena import allocate
from engine.runtime.program import BoundProgram
from engine.tools.dev.case_graphs import with_loss
from tests.support.places import GOLDENS

BUDGETS = 20
PLENTY = 1 << 50  # bytes
SIDE = 64


@pytest.fixture(autouse=True)
def only_the_loss_is_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values of `Drawn` that only gradients need count as backward pass, though they are
    outputs.

    Otherwise all of it would be the forward pass, in which nothing runs again.
    """

    def part(graph: Graph) -> set[Node]:
        return forward_part(
            replace(graph, outputs=[n for n in graph.outputs if n == "loss"] or graph.outputs)
        )

    monkeypatch.setattr(lower, "forward_part", part)


class Trained:
    """The training model of a golden, planned within budgets."""

    def __init__(self, name: str) -> None:
        self.state = CheckpointState.load_checkpoint(GOLDENS / name / "checkpoint")
        module = Module(GOLDENS / name / "training_model.onnx", self.state, threads=2)
        self.model = module.session.training
        trace = np.load(GOLDENS / name / "trace.npz")
        values = (trace["x"][0], trace["y"][0])
        self.batch = dict(zip(self.model.inputs, values, strict=True))
        self.free = self.plan(PLENTY)

    def plan(self, budget: int) -> Plan:
        self.model.memory.planning = PlanOptions(budget=budget)
        return self.model.plan({name: value.shape for name, value in self.batch.items()})

    def run(self, plan: Plan) -> bytes:
        """Return all that a step changes: outputs, gradients, statistics."""
        program = self.model.load(plan)
        kept = {name: np.array(r) for name, r in self.state.regions.items()}
        for name, value in self.batch.items():
            program.inputs[name][...] = value
        for name, value in program.inputs.items():
            if name not in self.batch:
                value[...] = 1  # the flag that gradients start over
        program.run(0, 7)
        data = [np.array(v).tobytes() for v in program.outputs.values()]
        for name, region in self.state.regions.items():
            data.append(region.tobytes())
            region[...] = kept[name]
        return b"".join(data)


class Drawn:
    """Loss and gradients of a random graph of products, softmaxes and sums, planned likewise."""

    def __init__(self, seed: int, names: Mapping[int, str] = MappingProxyType({})) -> None:
        """names: of the results of some nodes, by their numbers; others are y0, y1 and so on."""
        rng = np.random.default_rng(seed)
        square = TensorType("f32", (SIDE, SIDE))
        self.batch = {n: rng.standard_normal(square.dims).astype(np.float32) for n in "xw"}
        known, nodes = ["x", "w"], []
        for n in range(14):
            op, count = [("MatMul", 2), ("Softmax", 1), ("Add", 2)][rng.integers(3)]
            reads = [*rng.choice(known, count - 1), known[-1]]
            known.append(names.get(n, f"y{n}"))
            nodes.append(Node(op, tuple(map(str, reads)), (known[-1],), name=f"{op}{n}"))
        self.differentiated(nodes, known[-1], self.batch["x"])

    def differentiated(self, nodes: list[Node], output: str, dy: Array) -> None:
        """Plan the nodes with their gradients, where dy is the one of an output."""
        inputs = {name: TensorType("f32", x.shape) for name, x in self.batch.items()}
        join = {"join": np.array([0, 0, -1])}
        plain = Graph("drawn", inputs, [output], join, nodes, {"": 17, "engine": 1})
        graph = with_loss(plain, {output: dy})
        names = differentiate(graph, "loss", list(inputs), infer(graph.copy()).types)
        graph.outputs = ["loss", *names.values()]
        self.planner = Planner(graph, target=detect_host(), threads=2, closed=True)
        self.free = self.plan(PLENTY)

    def plan(self, budget: int) -> Plan:
        self.planner.options = PlanOptions(budget=budget)
        return self.planner.plan({name: value.shape for name, value in self.batch.items()})

    def run(self, plan: Plan) -> bytes:
        """The loss and the gradients."""
        work = allocate(plan.compute_region_bytes("work"), zero=False)
        work.view(np.uint8)[...] = 0xFF  # NaN: whatever is read before it is written shows
        program = BoundProgram(plan, get_linker(detect_host()).get_addresses, {"work": work})
        for name, value in self.batch.items():
            program.inputs[name][...] = value
        program.run()
        return b"".join(np.array(v).tobytes() for v in program.outputs.values())


class Recurrent(Drawn):
    """Loss and gradients of stacked bidirectional layers, planned likewise."""

    def __init__(self, kind: str, gates: int, layers: int = 3) -> None:
        rng, steps, batch, n = np.random.default_rng(0), 64, 4, 32
        self.batch = {"x": rng.standard_normal((steps, batch, 2 * n)).astype(np.float32)}
        nodes, y = [], "x"
        for i in range(layers):
            w, r = (0.2 * rng.standard_normal((2, gates * n, k)) for k in (2 * n, n))
            self.batch |= {f"w{i}": w.astype(np.float32), f"r{i}": r.astype(np.float32)}
            attrs = {"hidden_size": n, "direction": "bidirectional"}
            read = (y, f"w{i}", f"r{i}")
            nodes += [
                Node(kind, read, (f"y{i}",), attrs, name=f"layer{i}"),
                Node("Transpose", (f"y{i}",), (f"t{i}",), {"perm": [0, 2, 1, 3]}, name=f"turn{i}"),
                Node("Reshape", (f"t{i}", "join"), (f"f{i}",), name=f"join{i}"),
            ]
            y = f"f{i}"
        self.differentiated(nodes, y, self.batch["x"])


@pytest.mark.parametrize("seed", [0, 1, 3, 6])
def test_random_graphs_keep_to_budgets(seed: int) -> None:
    assert budgets(Drawn(seed)) > 1


def test_values_may_have_the_names_of_what_runs_again() -> None:
    one = Drawn(0)
    with pytest.raises(BudgetError) as refused:
        one.plan(1)
    added = [b.name for b in one.plan(refused.value.least).buffers if b.name.endswith("/again")]
    assert added
    for name in added:
        assert budgets(Drawn(0, {12 if name == "y0/again" else 0: name})) > 1


@pytest.mark.parametrize(("kind", "gates", "percent"), [("LSTM", 4, 70), ("GRU", 3, 78)])
def test_recurrent_layers_keep_to_budgets(kind: str, gates: int, percent: int) -> None:
    """Products of X and the walk make gates again, together; results are kept.

    The gates of all layers but one are most of what a stack would keep.
    """
    one = Recurrent(kind, gates)
    assert budgets(one) > 1
    with pytest.raises(BudgetError) as refused:
        one.plan(1)
    work = one.free.compute_region_bytes("work")
    assert refused.value.least - (one.free.nbytes - work) < work * percent / 100


@pytest.mark.parametrize("name", ["mobilenet", "transformer"])
def test_models_keep_to_budgets(name: str) -> None:
    assert budgets(Trained(name)) > 3


def budgets(one: Trained | Drawn) -> int:
    """Plan within budgets from the least to what needs none; return how many plans there are.

    More is never slower, less has never a higher peak, and results are equal to the last bit.
    """
    with pytest.raises(BudgetError, match="the smallest possible budget") as refused:
        one.plan(1)
    least, most = refused.value.least, one.free.nbytes
    assert least <= most
    expected = one.run(one.free)
    before, ran = None, set[tuple[float, int]]()
    for budget in np.linspace(least, most, BUDGETS).astype(int).tolist():
        plan = one.plan(budget)
        assert plan.nbytes <= budget
        now = sum(predict_steps(plan)), plan.compute_region_bytes("work")
        if before is not None:
            assert now[0] <= before[0]
            assert now[1] >= before[1]
        before = now
        if now not in ran:
            assert one.run(plan) == expected
        ran.add(now)
    assert str(plan) == str(one.free)
    with pytest.raises(BudgetError):
        one.plan(least - 1)
    return len(ran)


def test_a_plan_within_a_budget_says_how_much_was_searched() -> None:
    """One that was made without a search does not."""
    one = Trained("mobilenet")
    assert "searched" not in one.free.summary()
    with pytest.raises(BudgetError) as error:
        one.plan(1)
    plan = one.plan(error.value.least)
    ways, most = plan.searched
    assert 0 < ways <= most
    assert f"searched {ways:,} of at most {most:,} ways; most work bytes live at" in plan.summary()


def test_a_plan_tells_what_holds_most_of_its_memory() -> None:
    """By the values that live while a step runs, counted one after another."""
    plan = Trained("transformer").free
    place, held = plan.find_fullest()
    work = [b for b in plan.buffers if b.region == "work"]
    live = [sum(b.nbytes for b in work if b.first <= n <= b.last) for n in range(len(plan.steps))]
    assert live[place] == max(live) == sum(b.nbytes for b in held)
    assert held[0].nbytes == max(b.nbytes for b in held)
    assert plan.steps[place].source in plan.describe_fullest()
    assert all(b.name in plan.describe_fullest() for b in held[:5])


def test_a_budget_takes_the_fastest_rung_that_fits_and_makes_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rungs that are made for one limit are those that all levels would have given."""
    ladders = list[Ladder]()

    class Noted(Ladder):
        def __init__(self, draft: Draft, target: Target, threads: int) -> None:
            super().__init__(draft, target, threads)
            ladders.append(self)

    monkeypatch.setattr(planner, "Ladder", Noted)
    Trained("transformer").plan(PLENTY)
    one, most = ladders[0], ladders[0].usual.peak
    made = set[tuple[int, Chosen]]()
    rung_of = one._make_rung

    def note(number: int, chosen: Chosen, limit: int, ordered: bool = False) -> Rung:
        made.add((number, chosen))
        return rung_of(number, chosen, limit, ordered)

    rungs, levels = one._sought
    monkeypatch.setattr(one, "_make_rung", note)
    limits = np.linspace(one.lowest.peak, most - 1, 3 * BUDGETS).astype(int).tolist()
    counts, firsts = list[int](), list[Rung]()
    for limit in limits:
        made.clear()
        firsts.append(next(one.list_within(limit)))
        counts.append(len(made))
    every = [*rungs, *(rung_of(level.order, level.chosen, level.limit) for level in levels)]
    slower = [rung for rung in every if rung.seconds >= one.usual.seconds]
    for limit, first in zip(limits, firsts, strict=True):
        best = min((r for r in slower if r.peak <= limit), key=lambda r: (r.seconds, r.peak))
        assert (first.seconds, first.peak) == (best.seconds, best.peak)
        assert next(one.list_within(limit)) == first
    assert len(levels) > 10
    assert max(counts) <= len(levels) // 2
    with pytest.raises(StopIteration):
        next(one.list_within(one.lowest.peak - 1))


def test_plans_within_a_budget_are_the_same_every_time() -> None:
    one, other = Trained("mobilenet"), Trained("mobilenet")
    with pytest.raises(BudgetError) as refused:
        one.plan(1)
    budget = (one.free.nbytes + refused.value.least) // 2
    assert str(one.plan(budget)) == str(other.plan(budget))
    assert str(one.plan(budget)) == str(other.plan(budget))  # by a ladder that is known


@pytest.mark.parametrize("seed", range(4))
def test_timelines_know_what_lives(seed: int) -> None:
    """Timelines equal the draft's memory for any set of repeated calls, small values and scratch
    aside.
    """
    one, rng = Drawn(seed), np.random.default_rng(seed)
    draft = next(iter(one.planner._recipes.values()))[0][1].make_draft()
    whole, known = count_work_bytes(draft), find_repeats(draft)
    timeline = Timeline(draft, known, whole, whole, [1.0] * len(draft.calls))
    for share in (0, 0.2, 0.5, 1):
        chosen = [n for n in known if rng.random() < share]
        profile = timeline.profile(chosen)
        assert profile is not None
        again = Draft(dict(draft.values), list(draft.calls), draft.inputs, draft.outputs)
        repeat(again, known, chosen)
        blocks = merge_inplace(again, find_lifetimes(again, again.calls))
        assert profile.peak == pytest.approx(compute_liveness_bound(blocks), rel=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_profiles_of_changes_are_those_made_anew(seed: int) -> None:
    """Profiles of changes in any order equal new ones to the byte, and so does the predicted
    excess.
    """
    one, rng = Drawn(seed), np.random.default_rng(seed)
    draft = next(iter(one.planner._recipes.values()))[0][1].make_draft()
    whole, known = count_work_bytes(draft), find_repeats(draft)
    timeline = Timeline(draft, known, whole, whole, [1.0] * len(draft.calls))
    profile, taken = MemoryProfile(timeline), 0
    for _ in range(60):
        added = {n for n in known if rng.random() < 0.2} - profile.chosen
        removed = {n for n in profile.chosen if rng.random() < 0.3}
        change = profile.change(sorted(added), sorted(removed))
        anew = timeline.profile((profile.chosen | added) - removed)
        assert (change is None) == (anew is None)
        if change is not None and anew is not None:
            limit = int(rng.uniform(0.3, 1) * profile.peak)
            assert profile.compute_excess_after(change, limit) == anew.compute_excess(limit)
            profile.take(change)
            assert profile.keys == anew.keys
            assert profile.live.tolist() == anew.live.tolist()
            assert profile.seconds == pytest.approx(anew.seconds)
            taken += 1
    assert taken > 10


@pytest.mark.parametrize("seed", range(4))
def test_to_give_up_what_holds_nothing_where_too_much_lives_is_no_help(seed: int) -> None:
    """So the search need not try that; of what holds something there, some helps."""
    one, rng = Drawn(seed), np.random.default_rng(seed)
    draft = next(iter(one.planner._recipes.values()))[0][1].make_draft()
    whole, known = count_work_bytes(draft), find_repeats(draft)
    timeline = Timeline(draft, known, whole, whole, [1.0] * len(draft.calls))
    helps, left_out = 0, 0
    for _ in range(40):
        profile = timeline.profile([n for n in known if rng.random() < 0.5])
        assert profile is not None
        limit = int(rng.uniform(0.2, 1) * profile.peak)
        holding = profile.list_holding(limit)
        for n in profile.needs:
            change = profile.change(removed=[n])
            if change is None:
                continue
            left = profile.compute_excess_after(change, limit)
            assert n in holding or left >= profile.compute_excess(limit)
            helps += left < profile.compute_excess(limit)
            left_out += n not in holding
    assert min(helps, left_out) > 0


def test_a_search_ends_where_nothing_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An excess that rounding made smaller was taken for a better one, until the effort was spent.

    Each choice leaves less than the one before it, by whole bytes.
    """
    left: list[list[int]] = []
    reach, better = Search.reach, Search._find_better

    def begin(self: Search, chosen: Chosen, limit: int) -> tuple[Chosen, bool]:
        left.append([])
        return reach(self, chosen, limit)

    def note(self: Search, now: MemoryProfile, limit: int) -> MemoryProfile | None:
        left[-1].append(now.compute_excess(limit))
        return better(self, now, limit)

    monkeypatch.setattr(Search, "reach", begin)
    monkeypatch.setattr(Search, "_find_better", note)
    with pytest.raises(BudgetError):
        Trained("mobilenet").plan(1)
    assert sum(map(len, left)) > 20
    for one in left:
        assert all(isinstance(nbytes, int) for nbytes in one)
        assert all(b < a for a, b in pairwise(one))


def test_what_reads_what_is_changed_runs_again_before_that_alone() -> None:
    """y = f(p); p += 1; z = g(y): y cannot be made again for z; without the change it can."""
    draft = Draft()
    for name, region in (("p", "param"), ("y", "work"), ("z", "work"), ("s", "work")):
        draft.add(name, TensorType("f32", (SIDE,)), region=region)
    spec = KernelSpec("map", ("a:f32[] -> y:f32[] = neg(a)", 1))
    first = DraftCall(spec, (("r", "p"), ("w", "y")), (), "first", "fwd", ())
    early = DraftCall(spec, (("r", "y"), ("w", "s")), (), "early", "fwd", ())
    change = DraftCall(spec, (("r", "s"), ("u", "p")), (), "change", "opt", ())
    late = DraftCall(spec, (("r", "y"), ("w", "z")), (), "late", "bwd", ())
    draft.calls = [first, early, change, late]
    assert find_places(find_repeats(draft), [0]) is None
    draft.calls = [first, early, late, change]
    assert find_places(find_repeats(draft), [0]) == {0: 2}
    repeat(draft, find_repeats(draft), [0])
    assert [call.source for call in draft.calls] == ["first", "early", "first", "late", "change"]
    assert [call.again for call in draft.calls] == [False, False, True, False, False]
    assert draft.calls[3].args[0] == ("r", "y/again")
