"""Circular and hyperbolic functions and their inverses: elementwise, one line each.

Forward   y = f(x)
Backward  the text beside the name; Tan reads y, the others x
Error     kernels/vector_ir/trigonometric.py
"""

from __future__ import annotations

from engine.kernels.vocabulary.formula import elementwise

OPS = (
    elementwise("Sin", "sin(x)", "Mul(dy, Cos(x))"),
    elementwise("Cos", "cos(x)", "Neg(Mul(dy, Sin(x)))"),
    elementwise("Tan", "tan(x)", "Mul(dy, Add(Mul(y, y), 1))"),
    elementwise("Asin", "asin(x)", "Div(dy, Sqrt(Sub(1, Mul(x, x))))"),
    elementwise("Acos", "acos(x)", "Neg(Div(dy, Sqrt(Sub(1, Mul(x, x)))))"),
    elementwise("Atan", "atan(x)", "Div(dy, Add(Mul(x, x), 1))"),
    elementwise("Sinh", "sinh(x)", "Mul(dy, Cosh(x))"),
    elementwise("Cosh", "cosh(x)", "Mul(dy, Sinh(x))"),
    elementwise("Asinh", "asinh(x)", "Div(dy, Sqrt(Add(Mul(x, x), 1)))"),
    elementwise("Acosh", "acosh(x)", "Div(dy, Sqrt(Sub(Mul(x, x), 1)))"),
    elementwise("Atanh", "atanh(x)", "Div(dy, Sub(1, Mul(x, x)))"),
)
