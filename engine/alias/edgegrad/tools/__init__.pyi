from engine.tools import *
