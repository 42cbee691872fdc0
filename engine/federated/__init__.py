"""Federated learning: many devices train one model, and their data stay where they are.

A device gets the parameters of a round, trains on its own data, and gives back what it has learned;
a server averages.  `parameters` has the arrays that travel, by name or as one buffer, `local` a
device's part of a round, and `output` the files of a server.  `partition` distributes samples among
the clients of a simulation; `updates` makes messages smaller, and `message` writes them as files
for devices without Flower.

`engine.federated.flower` does all of it with Flower (https://flower.ai), which provides the
transport, the strategies of the server, and the simulation of many clients.  No other module here
imports it.
"""
