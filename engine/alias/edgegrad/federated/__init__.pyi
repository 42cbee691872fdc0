from engine.federated import *
