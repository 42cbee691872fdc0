"""Trainers: the loop around a module and its optimizer, and what people hang into it."""
