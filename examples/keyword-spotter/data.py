"""Sample data for the example: spoken words from the synthesiser `edgegrad.data.voices`.

`python data.py` writes sounds/<word>/<number>.wav and test/<word>/<number>.wav, each one second
of 16-bit samples at 16 kHz.  Voices differ in pitch, vocal tract and tempo; each word starts at a
random time and has noise added.  The class "other" contains other words and noise alone.
"""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from edgegrad.data.voices import RATE, speak

# Pronunciations, in the synthesiser's alphabet.
WORDS = {"yes": "yees", "no": "noou", "up": "a-p", "down": "daaun", "stop": "s-too-p", "go": "goou"}
OTHERS = ("left", "rait", "wan", "tuu", "fai-", "sauen", "ai-t", "nain", "lu-t", "se-p", "")


def write(folder: str, count: int, seed: int) -> None:
    """Write `count` WAV files of each word, and of "other", in a sub-folder per word."""
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
