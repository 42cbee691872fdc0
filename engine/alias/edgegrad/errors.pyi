from engine.errors import *
