"""Spoken words to try the example with, made by a small formant synthesiser.

`python data.py` writes sounds/<word>/<number>.wav and test/<word>/<number>.wav, one second of 16
bits at 16 kHz each: voices of many pitches, throats and tempi, with noise, at any place of the
second.  The class "other" holds other words, and noise alone.

A vowel is a row of harmonics under the resonances of a throat, the formants; a consonant is noise
in a band, or a gap.  Formants after Peterson and Barney, "Control methods used in a study of the
vowels", Journal of the Acoustical Society of America 24 (1952), table II.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

RATE, HOP = 16000, 80  # samples a second, and samples between two settings of the throat
WIDTHS = np.array([80, 110, 150])[:, None, None]  # of the formants, in Hz
HARMONICS = np.arange(1, 36)[:, None]
SPREAD = np.random.default_rng(0).random((60, 1))  # of the tones that make noise, in its band

# A setting: three formants in Hz, loudness of the voice, band of the noise in Hz, its loudness.
# Behind it stands how long a sound keeps it, in seconds.
SOUNDS = {
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
WORDS = {"yes": "yees", "no": "noou", "up": "a-p", "down": "daaun", "stop": "s-too-p", "go": "goou"}
OTHERS = ("left", "rait", "wan", "tuu", "fai-", "sauen", "ai-t", "nain", "lu-t", "se-p", "")


def speak(word: str, rng: np.random.Generator) -> np.ndarray:
    """One second of one voice that says a word, or of noise: float32[16000] within [-1, 1]."""
    pitch, throat, tempo = rng.uniform(85, 255), rng.uniform(0.88, 1.18), rng.uniform(0.8, 1.3)
    out = np.zeros(RATE)
    if word:
        held = [
            (setting, round(tempo * lasts * RATE / HOP)) for setting, lasts in map(SOUNDS.get, word)
        ]
        settings = np.concatenate([np.repeat([setting], count, 0) for setting, count in held])
        settings = settings[: RATE // HOP].T
        smooth = np.hanning(9) / np.hanning(9).sum()  # the throat moves within 40 ms
        settings = np.stack([np.convolve(np.pad(s, 4, "edge"), smooth, "valid") for s in settings])
        fall = np.linspace(1.1, rng.uniform(0.75, 1), settings.shape[1])
        sound = voice(settings[:3] * throat, pitch * fall, settings[3]) + noise(*settings[4:])
        start = rng.integers(RATE - len(sound) + 1)
        out[start : start + len(sound)] = sound / np.abs(sound).max() * rng.uniform(0.25, 0.9)
    return np.clip(out + rng.normal(0, rng.uniform(0.002, 0.03), RATE), -1, 1).astype(np.float32)


def voice(formants: np.ndarray, pitch: np.ndarray, loudness: np.ndarray) -> np.ndarray:
    """Harmonics of a pitch (Hz), each as loud as the nearest formants let it be."""
    tones = HARMONICS * pitch
    peaks = (WIDTHS**2 / ((tones - formants[:, None]) ** 2 + WIDTHS**2)).sum(0) + 0.003
    return tones_of(tones, peaks * loudness / np.sqrt(HARMONICS))


def noise(low: np.ndarray, high: np.ndarray, loudness: np.ndarray) -> np.ndarray:
    """Many tones in a band (Hz), none in a simple ratio to another."""
    return tones_of(low + SPREAD * (high - low), np.repeat(loudness[None] / 8, len(SPREAD), 0))


def tones_of(frequencies: np.ndarray, loudness: np.ndarray) -> np.ndarray:
    """The sum of tones; frequencies in Hz and loudness at each setting: [tones, settings]."""
    turns = np.cumsum(np.repeat(frequencies / RATE, HOP, 1), 1) % 1
    waves = np.sin((2 * np.pi * turns).astype(np.float32))
    return np.einsum("ts,ts->s", waves, np.repeat(loudness.astype(np.float32), HOP, 1))


def write(folder: str, count: int, seed: int) -> None:
    """Write `count` WAV files of each word, and of "other", in a sub-folder a word."""
    rng = np.random.default_rng(seed)
    for word in (*WORDS, "other"):
        place = Path(folder, word)
        place.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            said = WORDS.get(word) or OTHERS[number % len(OTHERS)]
            with wave.open(str(place / f"{number:03}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE)
                file.writeframes((32767 * speak(said, rng)).astype("<i2").tobytes())


if __name__ == "__main__":
    write("sounds", 60, seed=1)
    write("test", 20, seed=2)
    print("wrote sounds/ and test/")
