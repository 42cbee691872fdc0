from engine.federated.partition import *
