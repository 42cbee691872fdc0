"""The server: rounds with the strategy in pyproject.toml, and an evaluation after each."""

from __future__ import annotations

from edgegrad.federated.flower import server_app

import data
from model import make_trainer

app = server_app(make_trainer, data.of_server)
