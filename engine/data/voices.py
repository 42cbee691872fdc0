"""Spoken words to try things with, made by a small formant synthesiser: many voices, one second.

    rng = np.random.default_rng(0)
    ann = Voice.drawn(rng)
    sound = speak("yees", rng, ann)         # float32[16000], each time a little different

A vowel is a row of harmonics under the resonances of a throat, the formants; a consonant is noise
in a band, or a gap.  Formants after Peterson and Barney, "Control methods used in a study of the
vowels", Journal of the Acoustical Society of America 24 (1952), table II.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.base import arguments
from engine.base.errors import InputError

Floats = npt.NDArray[Any]

RATE, HOP = 16000, 80  # samples a second, and samples between two settings of the throat
WIDTHS = np.array([80, 110, 150])[:, None, None]  # of the formants, in Hz
HARMONICS = np.arange(1, 36)[:, None]
TONES = 60  # that make noise, spread over its band
LONGEST = 1.3  # tempo: how much longer than in SOUNDS a voice holds its sounds, at most

# A setting: three formants in Hz, loudness of the voice, band of the noise in Hz, its loudness;
# then the time in seconds for which a sound keeps it.
SOUNDS: dict[str, tuple[tuple[float, ...], float]] = {
    "a": ((730, 1090, 2440, 1, 0, 0, 0), 0.14),
    "e": ((530, 1840, 2480, 1, 0, 0, 0), 0.12),
    "i": ((270, 2290, 3010, 1, 0, 0, 0), 0.12),
    "o": ((570, 840, 2410, 1, 0, 0, 0), 0.13),
    "u": ((300, 870, 2240, 1, 0, 0, 0), 0.12),
    "r": ((420, 1300, 1600, 0.7, 0, 0, 0), 0.07),
    "l": ((360, 1100, 2600, 0.6, 0, 0, 0), 0.07),
    "w": ((290, 610, 2150, 0.6, 0, 0, 0), 0.06),
    "y": ((260, 2070, 3020, 0.6, 0, 0, 0), 0.06),
    "n": ((280, 1700, 2600, 0.4, 0, 0, 0), 0.09),
    "s": ((320, 1390, 2530, 0, 4500, 7800, 0.4), 0.13),
    "f": ((320, 1390, 2530, 0, 1500, 7000, 0.15), 0.10),
    "t": ((320, 1700, 2600, 0, 3000, 6500, 0.5), 0.03),
    "p": ((320, 900, 2300, 0, 400, 1500, 0.4), 0.03),
    "g": ((300, 1900, 2300, 0.3, 1500, 2500, 0.3), 0.04),
    "d": ((300, 1700, 2600, 0.3, 2500, 5000, 0.3), 0.04),
    "-": ((320, 1390, 2530, 0, 0, 0, 0), 0.05),
}


@dataclass(frozen=True, slots=True)
class Voice:
    """The voice of one speaker.

    pitch: in Hz.  throat: what the formants are multiplied by; above 1 it is shorter.
    tempo: what the lengths of sounds are multiplied by.
    """

    pitch: float
    throat: float
    tempo: float

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Voice:
        """Draw the voice of a random speaker."""
        return cls(rng.uniform(85, 255), rng.uniform(0.88, 1.18), rng.uniform(0.8, LONGEST))

    def varied(self, rng: np.random.Generator) -> Voice:
        """Vary the voice for one word: the throat stays, pitch and tempo change a little."""
        tempo = min(LONGEST, self.tempo * rng.uniform(0.92, 1.08))
        return Voice(self.pitch * rng.uniform(0.93, 1.07), self.throat, tempo)


def speak(word: str, rng: np.random.Generator, voice: Voice | None = None) -> Floats:
    """Return one second of sound in which a voice says a word at some point, with noise.

    word: letters of `SOUNDS`; without any there is noise alone.
    voice: by default a different one each time.

    Returns float32[16000] within [-1, 1].

    Raises:
        InputError: a letter is not a sound, or the word is too long for a second.
    """
    for letter in arguments.check_text("word", word):
        if letter not in SOUNDS:
            raise InputError(
                f"word {word!r}: {letter!r} is not one of the sounds {''.join(SOUNDS)}"
            )
    seconds = sum(SOUNDS[letter][1] for letter in word)
    if LONGEST * seconds > 0.99:
        raise InputError(f"word {word!r} takes {seconds:.2f} s; expected at most 0.76 s")
    voice = Voice.drawn(rng) if voice is None else voice.varied(rng)
    out = np.zeros(RATE)
    if word:
        held = [SOUNDS[letter] for letter in word]
        counts = [round(voice.tempo * lasts * RATE / HOP) for _, lasts in held]
        settings = np.repeat(np.array([setting for setting, _ in held]), counts, 0).T
        smooth = np.hanning(9) / np.hanning(9).sum()  # the throat moves within 40 ms
        settings = np.stack([np.convolve(np.pad(s, 4, "edge"), smooth, "valid") for s in settings])
        fall = np.linspace(1.1, rng.uniform(0.75, 1), settings.shape[1])
        sound = _list_harmonics(settings[:3] * voice.throat, voice.pitch * fall, settings[3])
        sound += _list_noise_tones(*settings[4:])
        start = rng.integers(RATE - len(sound) + 1)
        out[start : start + len(sound)] = sound / np.abs(sound).max() * rng.uniform(0.25, 0.9)
    noisy = out + rng.normal(0, rng.uniform(0.002, 0.03), RATE)
    return np.clip(noisy, -1, 1).astype(np.float32)


def _list_harmonics(formants: Floats, pitch: Floats, loudness: Floats) -> Floats:
    """Return the harmonics of a pitch (Hz), each as loud as the nearest formants make it."""
    tones = HARMONICS * pitch
    peaks = (WIDTHS**2 / ((tones - formants[:, None]) ** 2 + WIDTHS**2)).sum(0) + 0.003
    return _sum_tones(tones, peaks * loudness / np.sqrt(HARMONICS))


def _list_noise_tones(low: Floats, high: Floats, loudness: Floats) -> Floats:
    """Return many tones in a band (Hz), no two in a simple ratio."""
    spread = np.random.default_rng(0).random((TONES, 1))
    return _sum_tones(low + spread * (high - low), np.repeat(loudness[None] / 8, TONES, 0))


def _sum_tones(frequencies: Floats, loudness: Floats) -> Floats:
    """Return the sum of tones; frequencies in Hz and loudness at each setting: [tones,
    settings].
    """
    out = np.zeros(loudness.shape[1] * HOP, np.float32)
    heard = np.repeat(loudness.any(0), HOP)
    if heard.any():
        turns = np.compress(heard, np.cumsum(np.repeat(frequencies / RATE, HOP, 1), 1), 1)
        waves = np.sin((2 * np.pi * (turns - np.floor(turns))).astype(np.float32))
        loud = np.compress(heard, np.repeat(loudness.astype(np.float32), HOP, 1), 1)
        out[heard] = np.einsum("ts,ts->s", waves, loud)
    return out
