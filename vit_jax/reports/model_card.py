"""Model cards: the README.md of weights on the Hugging Face Hub.

A card describes the model, the results of its run with intervals, the training, and how to load the uploaded files.
Paths are left out, because they may contain private names.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.evals.intervals import METHODS, compute_figure_intervals
from vit_jax.evals.metrics import is_share
from vit_jax.inference.stored import StoredWeights
from vit_jax.reports.recorded import RecordedRun
from vit_jax.schema import ConfigError, show
from vit_jax.storage import hub_addresses

_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
# Config keys whose values may be paths. The keys may also occur inside a value, such as a dict.
_PATH_KEY = re.compile(
  r"(?<![A-Za-z])(?:paths?|from|teacher|label(?:s|led)|root|dir|folders?|index|classes|files?|manifest)(?![A-Za-z])"
  r"[\w.]*['\"]?\s*:"
)
_ADDRESS = re.compile(r"\bhf:[\w.-]+/[\w.-]+(?:@[\w.:-]+)?")
_MODEL = re.compile(
  r"(?<![\w/])(?:R\d*\+|ViT|CCT|CVT|DeiT\d?|EVA\d*|Mixer|DINOv\d|Swin|BiT)[\w-]*/\d+(?:x\d+)?(?![\w/])"
)
# Parts of paths on POSIX and Windows, and file names.
_PATH = re.compile(
  r"[/\\]|\.(?:txt|csv|jsonl?|npz|npy|safetensors|pth?|bin|tar|zip|gz|parquet|tfrecords?|png|jpe?g|ya?ml|toml|log)\b",
  re.IGNORECASE,
)
_MARKUP = re.compile(r"[\\`|<>\[\]*#&]")


def check_licence(licence: str | None) -> str:
  """Returns the licence of an upload.

  Args:
    licence: the name of a licence on the Hub, or None if the user gave none.

  Raises:
    ConfigError: the name is missing or is not the name of a licence.
  """
  advice = "Write the name of a licence on the Hub, such as apache-2.0, cc-by-4.0 or other"
  if licence is None:
    raise ConfigError(f"licence: missing. An upload requires a licence (--licence=NAME or licence=NAME). {advice}")
  if not _LICENCE.fullmatch(licence):
    raise ConfigError(f"licence: {show(licence)} is not a name. {advice}")
  return licence


def make_card(
  repository: str,
  licence: str,
  use: StoredWeights,
  sidecar: Mapping[str, Any],
  run: RecordedRun | None = None,
  averaged: bool = False,
) -> str:
  """Returns the text of a model card.

  Args:
    repository: owner and name of the repository.
    licence: name of the licence on the Hub.
    use: the uploaded weights.
    sidecar: content of the uploaded config.json, or {} without this file.
    run: the run that trained the weights, or None for weights of a file.
    averaged: whether the uploaded weights are the moving average of the run.
  """
  description = use.description
  library, loading = _describe_loading(repository, sidecar)
  header: dict[str, Any] = {
    "license": licence,
    "library_name": library,
    "pipeline_tag": "image-classification" if description.classes else "image-feature-extraction",
    "tags": ["vit_jax", "vision"],
  }
  if run and run.run.init.from_ and hub_addresses.is_address(run.run.init.from_):
    header["base_model"] = hub_addresses.parse_address(run.run.init.from_).repository
  size, data = description.image_size, use.data
  normalisation = ", ".join(f"{key} {_format_values(values)}" for key, values in data.normalisation.items())
  chapters = [
    f"# {repository.partition('/')[2]}",
    f"Model: {description}. Images: {size} px, RGB, {normalisation} for pixels of 0 to 1.",
    *(_make_run_chapters(run, averaged) if run else []),
    loading,
    f"## Licence\n\n{licence}",
  ]
  front = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items())
  return f"---\n{front}\n---\n\n" + "\n\n".join(chapters) + "\n"


def _make_run_chapters(run: RecordedRun, averaged: bool) -> list[str]:
  """Returns the chapters about the results and the training of a run."""
  intervals = compute_figure_intervals(run.figures)
  rows = [
    f"| {_escape(label)} | {_format_figure(name, value)} | {_format_interval(name, intervals.get(name))} |"
    for name, value in run.figures.items()
    if (label := _select_figure(name, averaged)) and not name.endswith(("images", "_std"))
  ]
  state = "" if run.result else f"The run has not finished: the weights are those of step {run.steps:,}.\n\n"
  state += "The weights are the moving average of the trained weights.\n\n" if averaged else ""
  results = f"## Results\n\n{state}" + "\n".join(["| figure | value | 95 % interval |", "|---|---|---|", *rows])
  chapters = [f"{results}\n\n{METHODS}"] if rows else []
  config = run.run
  facts = {
    "recipe": _describe_recipe(str(run.recipe.get("config", "unknown"))),
    "data": config.data.name + (f", {run.records:,} training images" if run.records else ""),
    "task": config.task.name,
    "length": f"{config.total} with batch {config.batch}",
    "optimizer": config.optim.name,
    "seed": str(config.seed),
  }
  if config.init.from_:
    facts["initial weights"] = config.init.from_ if hub_addresses.is_address(config.init.from_) else "a file"
  about = str(run.recipe.get("about") or "").strip().partition("\n")[0]
  lines = ["## Training", "" if _contains_path(about) else _escape(about)]
  lines.append("\n".join(f"- {key}: {_escape(value)}" for key, value in facts.items()))
  if changes := _select_changes(run.recipe.get("changes")):
    lines.append("Changes of the recipe:\n\n" + "\n".join(f"    {change}" for change in changes))
  return [*chapters, "\n\n".join(line for line in lines if line)]


def _select_figure(name: str, averaged: bool) -> str:
  """Returns the name of a figure in the card, or "" for a figure of the other weights.

  Figures of the moving average have names such as "val/ema_top1".
  """
  evaluation, slash, metric = name.rpartition("/")
  if metric.startswith("ema_") != averaged:
    return ""
  return f"{evaluation}{slash}{metric.removeprefix('ema_')}"


def _describe_recipe(text: str) -> str:
  """Returns the file name and argument of a recipe. Omits the folder, and an argument that may contain a path."""
  named = re.match(r"(.*?\.py|[^:]*)(?::(.*))?$", text, re.DOTALL)
  file, argument = (named[1], named[2]) if named else ("", None)
  name = re.split(r"[/\\]", file)[-1]
  return name if argument is None or _contains_path(argument) else f"{name}:{argument}"


def _select_changes(changes: object) -> list[str]:
  """Returns the changes of a recipe without those that contain paths."""
  return [
    " ".join(change.split())
    for change in (changes if isinstance(changes, list) else ())
    if isinstance(change, str) and not _PATH_KEY.search(change) and not _contains_path(change)
  ]


def _contains_path(text: str) -> bool:
  """Returns whether a text may contain a path. Names of models and addresses on the Hub do not count."""
  return bool(_PATH.search(_MODEL.sub("", _ADDRESS.sub("", text))))


def _escape(text: str) -> str:
  """Returns a text in one line, without characters that Markdown interprets."""
  return _MARKUP.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))


def _describe_loading(repository: str, sidecar: Mapping[str, Any]) -> tuple[str, str]:
  """Returns the name of the main library and a chapter with the code that loads the uploaded files."""
  own = f'import vit_jax\n\nmodel = vit_jax.load("hf:{repository}")\nbest = model.predict("photo.jpg")'
  parts = [f"With vit_jax (extra hub):\n\n```python\n{own}\n```"]
  library = "vit_jax"
  if isinstance(sidecar.get("architecture"), str):
    library = "timm"
    code = f'import timm\n\nmodel = timm.create_model("hf-hub:{repository}", pretrained=True).eval()'
    parts.insert(0, f"With timm:\n\n```python\n{code}\n```")
  if names := sidecar.get("architectures"):
    library = "transformers"
    code = f'from transformers import {names[0]}\n\nmodel = {names[0]}.from_pretrained("{repository}")'
    parts.insert(0, f"With Transformers:\n\n```python\n{code}\n```")
  return library, "\n\n".join(["## Load", *parts])


def _format_figure(name: str, value: float) -> str:
  return f"{value:.2%}" if is_share(name) else f"{value:.4f}"


def _format_interval(name: str, ends: Sequence[float] | None) -> str:
  return f"{_format_figure(name, ends[0])} to {_format_figure(name, ends[1])}" if ends else ""


def _format_values(values: Sequence[float]) -> str:
  return "(" + ", ".join(f"{value:g}" for value in values) + ")"
