from engine.tools.trimmed import *
