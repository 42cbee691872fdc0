from engine.data.voices import *
