from engine.data.tokens import *
