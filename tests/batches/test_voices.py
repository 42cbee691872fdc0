"""Synthesised words: seconds of sound that depend on the voice, the word and the draw alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.data.features import LogMel
from engine.data.voices import LONGEST, RATE, SOUNDS, Voice, speak
from engine.errors import DTypeError, InputError


@pytest.mark.parametrize("word", ["yees", "s-too-p", "f", "".join(SOUNDS)[8:], ""])
def test_a_word_is_a_second_of_sound(word: str) -> None:
    slow = Voice(pitch=90, throat=1.0, tempo=LONGEST)
    for voice in (None, slow):
        sound = speak(word, np.random.default_rng(3), voice)
        assert sound.shape == (RATE,)
        assert sound.dtype == np.float32
        assert 0.001 < np.abs(sound).max() <= 1
        np.testing.assert_array_equal(sound, speak(word, np.random.default_rng(3), voice))


def test_a_speaker_is_more_like_themself_than_like_another() -> None:
    """By the mean spectrum of a vowel, over several draws."""
    low, high = Voice(100, 0.9, 1.0), Voice(230, 1.15, 1.0)
    rng, features = np.random.default_rng(0), LogMel()

    def spectrum(voice: Voice) -> np.ndarray:
        actual: np.ndarray = features(speak("aaaa", rng, voice)).max(1)
        return actual

    draws = [[spectrum(voice) for _ in range(3)] for voice in (low, high)]
    within = [np.abs(a - b).mean() for own in draws for a, b in itertools.pairwise(own)]
    between = [np.abs(a - b).mean() for a, b in zip(*draws, strict=True)]
    assert max(within) < min(between)


def test_what_cannot_be_spoken_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="'k' is not one of the sounds"):
        speak("kat", rng)
    with pytest.raises(InputError, match=r"takes 1\.40 s; expected at most 0\.76 s"):
        speak("a" * 10, rng)
    with pytest.raises(DTypeError, match="word: expected text"):
        speak(3, rng)  # type: ignore[arg-type]  # refused
