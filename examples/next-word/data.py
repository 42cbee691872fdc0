"""Sample data for the example: short messages, as a person writes them on a phone.

`python data.py` writes texts/messages.txt, one message per line, and test.txt with other messages
of the same writer.  A grammar generates them, so it is known what can be predicted: a word in
braces stands for one of the phrases listed for it.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

GRAMMAR = {
    "message": ["{greeting} {friend}, {request}", "{greeting} {friend}, {news}", "{news}",
                "{request}", "{plan}", "{plan}, {question}", "{news}, {plan}", "{thanks}",
                "{thanks}, {plan}"],
    "greeting": ["hi", "hello", "good morning", "dear", "hey"],
    "friend": ["anna", "ben", "clara", "david", "mum", "dad", "grandma"],
    "request": ["please buy {food} and {food}", "can you bring {thing} {time}?",
                "please call {person} {time}", "could you pick up {person} at {place} {time}?",
                "do not forget {thing}", "please send me the pictures from {place}"],
    "plan": ["see you at {place} {time}", "we meet at {place} {time}",
             "i will be at {place} {time}", "let us go to {place} {time}",
             "i am cooking {dish} {time}",
             "the train leaves {time}, {person} will wait at {place}"],
    "question": ["is that ok?", "do you have time?", "will you come?", "what do you think?"],
    "news": ["i am running late", "i just left {place}", "{person} is ill today",
             "the {vehicle} is late again", "it is raining at {place}", "i have found {thing}",
             "{person} says hello", "{person} was at {place} yesterday",
             "i forgot {thing} at {place}", "the {vehicle} broke down near {place}"],
    "thanks": ["thank you for {thing}", "thanks for the lovely evening",
               "thank you so much, {dish} was wonderful", "many thanks to {person} for {thing}"],
    "person": ["my sister", "my brother", "the neighbour", "the doctor", "{friend}", "{friend}"],
    "place": ["the station", "the school", "the office", "the market", "the airport", "the lake",
              "the cinema", "the library", "the bakery", "the swimming pool", "the old bridge"],
    "time": ["at {hour}", "at half past {hour}", "tomorrow", "tomorrow at {hour}", "on {day}",
             "on {day} evening", "this afternoon", "tonight", "in {count} minutes"],
    "hour": ["six", "seven", "eight", "nine", "ten", "noon"],
    "day": ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"],
    "count": ["five", "ten", "twenty", "thirty"],
    "food": ["milk", "bread", "some apples", "a bag of rice", "two lemons", "butter", "cheese",
             "a dozen eggs", "tomatoes", "coffee"],
    "dish": ["the soup", "pasta with tomatoes", "the apple pie", "fried rice", "pancakes"],
    "thing": ["the keys", "your umbrella", "the blue bag", "the tickets", "my charger",
              "the birthday present", "the book", "your coat"],
    "vehicle": ["bus", "train", "car", "tram"],
}  # fmt: skip


def message(rng: np.random.Generator) -> str:
    """Generate a message from the grammar."""
    text = "{message}"
    while place := re.search(r"\{(\w+)\}", text):
        text = text.replace(place[0], str(rng.choice(GRAMMAR[place[1]])), 1)
    return text


def write(path: str, count: int, seed: int) -> None:
    """Write messages, one per line."""
    rng = np.random.default_rng(seed)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(message(rng) + "\n" for _ in range(count)), encoding="utf-8")


if __name__ == "__main__":
    write("texts/messages.txt", 4000, seed=1)
    write("test.txt", 400, seed=2)
    print("wrote texts/messages.txt and test.txt")
