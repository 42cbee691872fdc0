"""Profiles: where the time of a step goes, by kernel, by node of the model and by phase."""

from __future__ import annotations

from engine.plan.plan import PHASES
from engine.profiling.profile import Profile
from engine.profiling.times import BY, StepTime, Total

__all__ = ["BY", "PHASES", "Profile", "StepTime", "Total"]
