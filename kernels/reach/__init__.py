"""How far kernel calls reach into their operands, by the numbers that they are given."""
