"""Synthesised words of many speakers: a data set in which every speaker sounds different.

A sample is determined by its speaker, its word and its repetition.  So a client can generate its
own samples when it needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from edgegrad.data.features import LogMel
from edgegrad.data.voices import Voice, speak

# Pronunciations, in the synthesiser's alphabet.
WORDS = {"yes": "yees", "no": "noou", "up": "a-p", "down": "daaun", "stop": "s-too-p", "go": "goou"}
OTHERS = ("left", "rait", "wan", "tuu", "fai-", "nain")  # form one class, the last one
CLASSES = len(WORDS) + 1
SHAPE = (1, 40, 98)  # the log-mel features of one second


class Words:
    """Every word by some speakers, several times each.

    labels: of the samples, int64.  users: whose they are.
    """

    def __init__(self, speakers: Sequence[int], takes: int) -> None:
        rows = [(s, w, t) for s in speakers for w in range(CLASSES) for t in range(takes)]
        self._rows = np.array(rows, np.int64)
        self.users, self.labels = self._rows[:, 0], self._rows[:, 1]

    def take(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The features, float32, and labels of some samples."""
        features = [said(*row) for row in self._rows[chosen].tolist()]
        return np.array(features, np.float32).reshape(-1, *SHAPE), self.labels[chosen]


@lru_cache(maxsize=2000)
def said(speaker: int, word: int, take: int) -> np.ndarray:
    """The features of a word as a speaker says it for the nth time."""
    rng = np.random.default_rng((speaker, word, take))
    letters = [*WORDS.values(), OTHERS[take % len(OTHERS)]][word]
    sound = speak(letters, rng, Voice.drawn(np.random.default_rng(speaker)))
    return LogMel()(sound)
