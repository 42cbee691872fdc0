from engine.data.features import *
