from engine.federated.learners import *
