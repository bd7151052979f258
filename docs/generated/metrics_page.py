"""The page with the definitions of all metrics, from `docs/metrics.toml`."""

import pathlib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

DEFINITIONS = pathlib.Path(__file__).parents[1] / "metrics.toml"


def make_metrics_page() -> str:
  """Returns the page with the definitions of all metrics."""
  parts = [
    """# Metrics

This page defines every metric that training, evaluations and probes print or write. This command shows the figures of a
run:

    python -m vit_jax.evaluate --workdir=runs/digits

A share is a number from 0 to 1 in files, and a percentage on the screen. In `metrics.jsonl` and TensorBoard, the name
of an evaluation precedes its figures, as in `val/top1`. In `result.json`, the figures of the evaluation `test` have no
prefix. Figures of averaged weights have the prefix `ema_`, as in `val/ema_top1`. Trackers and the report use the names
of `metrics.jsonl`. Words in capitals are placeholders.
"""
  ]
  for chapter in read_chapters():
    parts += [f"## {chapter['title']}\n", f"{chapter['text']}\n"]
    rows = [
      f"- `{each['name']}` ({each['unit']}): {' '.join(each['text'].split())} Written to: {format_places(each)}.\n"
      for each in chapter["metrics"]
    ]
    parts.append("".join(rows))
  return "\n".join(parts)


def read_chapters() -> list[dict[str, Any]]:
  """Returns the chapters of `metrics.toml`: dictionaries with `title`, `text` and `metrics`.

  A metric has `name`, `unit`, `places` and `text`, and the `pattern` of all names that its definition covers. `screen`
  is the name on the screen, if the two names differ.
  """
  read = tomllib.loads(DEFINITIONS.read_text())
  for chapter in read["chapters"]:
    for metric in chapter["metrics"]:
      metric["pattern"] = re.escape(metric["name"])
      for word, pattern in read["placeholders"].items():
        metric["pattern"] = metric["pattern"].replace(word, f"(?:{pattern})")
  chapters: list[dict[str, Any]] = read["chapters"]
  return chapters


def format_places(metric: Mapping[str, str]) -> str:
  """Returns the files that contain a metric, with its name on the screen if that differs."""
  shown = f'screen as "{metric["screen"]}"' if "screen" in metric else "screen"
  return re.sub(r"\bscreen\b", shown, metric["places"], count=1)
