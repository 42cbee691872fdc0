from engine.tools.trimmed.link import *
