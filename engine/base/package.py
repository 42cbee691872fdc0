"""The package itself: its version, and the folder that it is installed in."""

from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).resolve().parents[1]
