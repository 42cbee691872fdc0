from engine.reports import *
