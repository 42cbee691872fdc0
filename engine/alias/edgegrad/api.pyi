from engine.api import *
