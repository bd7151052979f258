"""Workdirs of runs that were not trained: the small files of a run, with figures that tests know."""

import json

from tests import runs
from vit_jax import config
from vit_jax.training import goodput

BATCH, RECORDS = 16, 1437


def run(folder, seed=0, steps=12, top1=0.9, finished=True, rate=100.0, **changes):
  """Writes the workdir of a small digits run on two devices with 16 images per step and 100 images per second."""
  folder.mkdir(parents=True, exist_ok=True)
  made = runs.run(seed=seed, total=str(steps), **changes)
  (folder / "config.json").write_text(config.dumps(made))
  rows = [
    {"step": step, "train/loss": 2.0 / step, "train/top1": top1 * step / steps, "train/learning_rate": 1e-3,
     "images_per_second": rate, "images_per_second_per_chip": rate / 2, "data_wait": 0.25}
    for step in range(2, steps + 1, 2)
  ]  # fmt: skip
  rows.append({"step": steps, "test/top1": top1, "test/loss": 0.5, "test/images": 360})
  (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  seconds = dict.fromkeys(goodput.PHASES, 0.0) | {"step": 36.0, "start": 36.0}
  attempt = {"began": 0.0, "waited": 7.0, "seconds": seconds}
  older = {"attempts": 0, "waited": 0.0, "seconds": dict.fromkeys(goodput.PHASES, 0.0)}
  (folder / "goodput.json").write_text(json.dumps({"older": older, "attempts": [attempt, attempt]}))
  if finished:
    result = {"top1": top1, "loss": 0.5, "images": 360, "seed": seed, "steps": steps, "train_seconds": 72.0}
    account = {"goodput": 0.5, "attempts": 2, goodput.LOST: 3.0}
    (folder / "result.json").write_text(json.dumps(result | {"images_per_second": rate, "goodput": account}))
  return folder


def texts(chapter):
  """Returns every cell of a chapter's tables, by table and first cell of the row."""
  return {
    (part.title, row[0]): list(row[1:])
    for part in chapter.parts
    if hasattr(part, "rows")
    for row in part.rows
  }  # fmt: skip
