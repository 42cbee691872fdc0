from engine.federated.privacy import *
