"""Spoken words to try the example with, made by the synthesiser `edgegrad.data.voices`.

`python data.py` writes sounds/<word>/<number>.wav and test/<word>/<number>.wav, one second of 16
bits at 16 kHz each: voices of many pitches, throats and tempi, with noise, at any place of the
second.  The class "other" holds other words, and noise alone.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from edgegrad.data.voices import RATE, speak

# How they sound, by the letters of the synthesiser.
WORDS = {"yes": "yees", "no": "noou", "up": "a-p", "down": "daaun", "stop": "s-too-p", "go": "goou"}
OTHERS = ("left", "rait", "wan", "tuu", "fai-", "sauen", "ai-t", "nain", "lu-t", "se-p", "")


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
