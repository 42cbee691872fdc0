"""Summary: the progress of the training, and the figures that most people look for first."""

from __future__ import annotations

from engine.drawing import amounts
from engine.drawing.page import escape
from engine.trainer.metrics.named import is_share
from engine.trainer.reports.record import Record
from engine.trainer.reports.section import Section

MAX_METRICS = 4  # that have a tile


def render(record: Record) -> str:
    """Return tiles with a title and a figure each."""
    tiles = [("epochs", f"{len(record.rows):,} of {record.epochs:,}", "")]
    tiles += _list_best(record)
    if record.rows:
        last = record.rows[-1]
        metrics = [name for name in last if name.startswith("val_") and name != "val_loss"]
        tiles += [
            (name, amounts.measure(last[name], is_share(name)), "last epoch")
            for name in ("loss", "val_loss", *metrics[:MAX_METRICS])
            if name in last
        ]
        if "samples_per_second" in last:
            speed = amounts.format_rate(last["samples_per_second"]).removesuffix(" samples/s")
            tiles.append(("samples a second", speed, "last epoch"))
    tiles.append(("steps", f"{record.step:,}", f"{record.samples:,} samples"))
    skipped = sum(int(row.get("skipped", 0)) for row in record.rows)
    if skipped:
        tiles.append(("skipped updates", f"{skipped:,}", "gradients were not finite"))
    tiles.append(("time", amounts.format_duration(record.seconds), ""))
    peak = max(
        [p.memory for p in record.points] + [int(r.get("memory", 0)) for r in record.rows],
        default=0,
    )
    if peak:
        tiles.append(("peak memory", amounts.format_size(peak), "of the process"))
    return (
        '<dl class="tiles">'
        + "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
            + (f"<small>{escape(note)}</small>" if note else "")
            + "</dd></div>"
            for name, value, note in tiles
        )
        + "</dl>"
    )


def _list_best(record: Record) -> list[tuple[str, str, str]]:
    """Return the best value of the monitored column, if any epoch has it."""
    for row in record.rows:
        if row["epoch"] == record.best and record.monitor in row:
            value = amounts.measure(row[record.monitor], is_share(record.monitor))
            return [(f"best {record.monitor}", value, f"epoch {int(row['epoch']) + 1}")]
    return []


SECTION = Section("summary", "Summary", render)
