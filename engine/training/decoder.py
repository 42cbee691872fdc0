"""Decoder: a model that generates tokens, with the keys and values of earlier tokens in place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engine.base.aliases import Array
from engine.base.element_types import FLOATS
from engine.base.errors import (
    DTypeError,
    InputError,
    LabelError,
    ShapeError,
    StateError,
    UnsupportedOpError,
)
from engine.base.signatures import AT_LEAST_1, check_arguments
from engine.plan.plan import FILLED
from engine.runtime.program import BoundProgram
from engine.training.model import Model
from engine.training.planning import Decoding

IDS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
LOGITS = "logits"
LEAST_CAPACITY, LEAST_PROMPT = 128, 16  # rows of the smallest caches, tokens of the least prompt
TRIAL = (0, 1, 2)  # the tokens by which a step is compared with a prompt
CLOSE = 0.05  # of the largest score: how far a step may be from the prompt, for models in integers

_PAST = re.compile(r"past_key_values\.(.+)")


def find_caches(model: Model) -> dict[str, str]:
    """Return the inputs of a decoder that hold caches, with the outputs that add rows to them.

    Raises:
        InputError: the model has no caches, or other inputs beside them; the message names them.
        DTypeError: its caches are not of float32 or float64.
    """
    inputs, outputs = model.interface.inputs, set(model.outputs)
    presents = {n: f"present.{m[1]}" for n in model.inputs if (m := _PAST.fullmatch(n))}
    if not presents:
        raise InputError(
            f"the model has the inputs {model.inputs} and the outputs {model.outputs}: no caches; "
            "expected inputs past_key_values.0.key, past_key_values.0.value, ... and outputs "
            "present.0.key, present.0.value, ..."
        )
    for past, present in presents.items():
        if present not in outputs:
            raise InputError(f"the model has the input {past!r}, but no output {present!r}")
        dtype, shape = inputs[past].dtype, inputs[past].shape
        if dtype not in FLOATS:
            raise DTypeError(f"input {past!r} is {dtype}; supported: caches of {', '.join(FLOATS)}")
        if len(shape) != 4 or not all(isinstance(shape[axis], int) for axis in (1, 3)):
            raise InputError(
                f"input {past!r} has the shape {list(shape)}; expected [batch, heads, past, "
                "width], heads and width as numbers"
            )
    others = [n for n in model.inputs if n not in presents]
    beyond = [n for n in others if n not in (IDS, MASK, POSITIONS)]
    if beyond or IDS not in others:
        raise InputError(
            f"beside caches the model takes {others}; supported: {IDS!r}, and {MASK!r} and "
            f"{POSITIONS!r} if it has them"
        )
    answers = [n for n in model.outputs if n not in presents.values()]
    if LOGITS not in answers and len(answers) != 1:
        raise InputError(
            f"beside caches the model has the outputs {answers}; expected {LOGITS!r}, or one alone"
        )
    return presents


def find_scores(model: Model, presents: Mapping[str, str]) -> str:
    """Return the output of a decoder that holds the scores; presents: as `find_caches` found."""
    answers = [n for n in model.outputs if n not in presents.values()]
    return LOGITS if LOGITS in answers else answers[0]


def describe_use(
    model: Model, presents: Mapping[str, str], batch: int, tokens: int, rows: int
) -> Decoding:
    """Return what a plan for a prompt or a step of a decoder is made of.

    presents: as `find_caches` found.  tokens: of a prompt, or 1 for a step.
    rows: of the caches of a step; 0 for a prompt.
    """
    counts = {IDS: tokens, POSITIONS: tokens, MASK: rows or tokens}
    shapes = ((name, (batch, counts[name])) for name in model.inputs if name not in presents)
    return Decoding(tuple(presents.items()), tuple(shapes), rows, find_scores(model, presents))


@check_arguments(batch=AT_LEAST_1, capacity=AT_LEAST_1)
class Decoder:
    """Texts that a decoder continues token by token, with the cached keys and values of tokens.

        decoder = session.decoder()
        scores = decoder.append([464, 3290])      # for the token after these
        scores = decoder.append(scores.argmax(1)) # for the token after that

    Each token adds a row to each cache, in place.  Caches start with space for 128 tokens.  When
    they are full, caches of twice the size replace them, for which the model is planned once.

    The rows of a cache do not change if the parameters change later; `truncate(0)` discards them.

    Several Python threads may not use one decoder at the same time.
    """

    def __init__(
        self,
        find: Callable[[], tuple[Model, int | None]],
        *,
        batch: int = 1,
        capacity: int | None = None,
    ) -> None:
        """Start without tokens; see `Session.decoder`."""
        self._find, self._batch, self._limit = find, batch, capacity
        self._model = find()[0]
        self._presents = find_caches(self._model)
        self._scores = find_scores(self._model, self._presents)
        self._step: BoundProgram | None = None
        self._rows = 0  # of the caches of `_step`
        self._prompt = self._choose_prompt(1)  # tokens of the prompt that was planned last
        self._length = 0

    def __repr__(self) -> str:
        return f"Decoder(batch={self.batch}, length={self.length}, capacity={self.capacity})"

    @property
    def batch(self) -> int:
        """The number of texts."""
        return self._batch

    @property
    def length(self) -> int:
        """The number of tokens of each text so far."""
        return self._length

    @property
    def capacity(self) -> int | None:
        """The largest number of tokens; None if only memory limits it."""
        return self._limit

    @property
    def is_stale(self) -> bool:
        """True if the model was replaced, so that a new decoder is needed."""
        return self._find()[0] is not self._model

    def append(self, tokens: Any) -> Array:
        """Add tokens to the texts, and compute the scores of the next token.

        The first tokens of a text are computed together, later ones one after another.

        Args:
            tokens: integers [batch, count]; or [count] for a single text, or [batch] for one token
                per text.

        Returns:
            The scores [batch, vocabulary] of the token after them.

        Raises:
            InputError: there are no tokens, or more than the caches hold.
            DTypeError, ShapeError: the tokens have another type or shape.
            LabelError: a token is out of range.
            UnsupportedOpError: a node reads a cache in a way that is not supported, or the model
                derives positions from the size of its caches.
            StateError: the model was replaced.
        """
        ids = self._check_tokens(tokens)
        model, seed = self._find()
        if model is not self._model:
            raise StateError("the model of this decoder was replaced; make a new decoder")
        count = ids.shape[1]
        with model.memory.lock.take():
            model.require_values()
            model.state.settle()
            if self._length or count == 1:
                step = self._make_room(self._length + count, seed)
                for column in ids.T:
                    scores = self._answer_step(column, step, self._length, seed)
                    self._length += 1
                return scores
            self._prompt = self._choose_prompt(count)
            step = self._make_room(count, seed)
            scores = self._answer_prompt(ids, step, seed)
            self._length = count
            return scores

    def truncate(self, length: int) -> None:
        """Discard all tokens after the first `length`.

        Raises:
            InputError: the texts have fewer tokens.
        """
        if not 0 <= length <= self._length:
            raise InputError(f"length is {length}; expected 0 to {self._length}")
        self._length = length

    # --- checks

    def _check_tokens(self, tokens: Any) -> Array:
        """Return tokens as integers [batch, count]."""
        ids = np.asarray(tokens)
        if ids.dtype.kind not in "iu" and ids.size:
            raise DTypeError(f"tokens are {ids.dtype}; expected integers")
        if ids.ndim == 1:
            ids = ids[None] if self.batch == 1 else ids[:, None]
        if ids.ndim != 2 or ids.shape[0] != self.batch:
            raise ShapeError(
                f"tokens have the shape {list(np.shape(tokens))}; expected [{self.batch}, count] "
                "for the texts of this decoder"
            )
        count = ids.shape[1]
        if not count:
            raise InputError("there are no tokens to add; expected one or more")
        if self._limit is not None and self._length + count > self._limit:
            raise InputError(
                f"{count} more tokens after {self._length}: the caches hold {self._limit}; give "
                "the decoder a larger capacity, or truncate it"
            )
        return ids

    def _check_step(self, step: BoundProgram, rows: int, seed: int | None) -> None:
        """Compare a step in new caches with the model's answer to the whole text.

        A model may compute positions, or the window of its attention, from the size of the past.
        In caches with a capacity that is another number than the tokens before.

        Raises:
            UnsupportedOpError: they differ.
        """
        trial = TRIAL[: min(rows, self._prompt)]
        ids, known = np.tile(np.array(trial, np.int64), (self.batch, 1)), len(trial) - 1
        expected = self._answer_prompt(ids, step, seed)
        largest = float(np.abs(expected).max())
        try:
            actual = self._answer_step(ids[:, known], step, known, seed)
        except LabelError as error:
            differs = str(error)
        else:
            if np.allclose(actual, expected, rtol=0, atol=CLOSE * largest, equal_nan=True):
                return
            differs = f"scores differ by {np.abs(actual - expected).max():.3g} of {largest:.3g}"
        raise UnsupportedOpError(
            f"with caches of {rows} rows, the model computes other results than for a whole text "
            f"({differs}): it derives positions or a window from the size of the past, or does not "
            f"hide rows by {MASK!r}; supported: models that take {MASK!r} and {POSITIONS!r}, or "
            "whose Attention or GroupQueryAttention reads the caches directly, with windows at "
            "least as long as the capacity"
        )

    # --- programs

    def _choose_prompt(self, count: int) -> int:
        """Return the tokens of the plan for a prompt: a power of two, within the limit."""
        size = LEAST_PROMPT
        while size < count:
            size *= 2
        return size if self._limit is None else max(count, min(size, self._limit))

    def _get_prompt_program(self) -> BoundProgram:
        decoding = describe_use(self._model, self._presents, self.batch, self._prompt, 0)
        return self._model.get_prompt_program(decoding)

    def _make_room(self, needed: int, seed: int | None) -> BoundProgram:
        """Return the program of a step in caches with as many rows as needed.

        If it is a new one, it gets the rows that count so far.
        """
        if self._step is not None and self._rows >= needed:
            return self._step
        rows = max(self._rows, LEAST_CAPACITY)
        while rows < needed:
            rows *= 2
        if self._limit is not None:
            rows = min(rows, self._limit)
        self._get_prompt_program()  # before the step, as it may need larger regions
        decoding = describe_use(self._model, self._presents, self.batch, 1, rows)
        step = self._model.make_step_program(decoding)
        self._check_step(step, rows, seed)
        if self._step is not None:
            kept = slice(0, self._length)
            for past in self._presents:
                step.inputs[past][:, :, kept] = self._step.inputs[past][:, :, kept]
        self._step, self._rows = step, rows
        return step

    def _fill(self, places: dict[str, Array], ids: Array, before: int) -> None:
        """Write the tokens and what the model takes of them, for tokens after `before` others.

        Places beyond the tokens get token 0 and the last position, and are hidden.
        """
        count = ids.shape[1]
        places[IDS][...] = 0
        places[IDS][:, :count] = ids
        if POSITIONS in places:
            at = np.arange(places[POSITIONS].shape[1])
            places[POSITIONS][...] = before + np.minimum(at, count - 1)
        if MASK in places:
            places[MASK][...] = np.arange(places[MASK].shape[1]) < before + count

    def _answer_prompt(self, ids: Array, step: BoundProgram, seed: int | None) -> Array:
        """Return the scores after first tokens, whose rows the caches of a step get."""
        program, count = self._get_prompt_program(), ids.shape[1]
        self._fill(program.inputs, ids, 0)
        program.inputs[FILLED][...] = count
        program.run(self._model.state.draws, seed)
        for past, present in self._presents.items():
            step.inputs[past][:, :, :count] = program.outputs[present][:, :, :count]
        return program.outputs[self._scores][:, -1].copy()

    def _answer_step(self, ids: Array, step: BoundProgram, before: int, seed: int | None) -> Array:
        """Return the scores after one more token of each text."""
        self._fill(step.inputs, ids[:, None], before)
        step.inputs[FILLED][...] = before
        step.run(self._model.state.draws, seed)
        return step.outputs[self._scores][:, -1].copy()
