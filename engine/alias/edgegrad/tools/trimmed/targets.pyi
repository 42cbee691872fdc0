from engine.tools.trimmed.targets import *
