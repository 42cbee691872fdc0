from engine.tools.cli import *
