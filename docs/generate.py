"""Generates pages of the documentation site from the code: keys of configs, flags, exit codes, and the first page.

MkDocs calls the functions `on_...` for each build. `pages()` returns the same pages for tests.
"""

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import math
import pathlib
import re
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from unittest import mock

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from launch import errors as launch_errors  # noqa: E402
from launch import flags as launch_flags  # noqa: E402
from vit_jax import cli, config, evals, runtime, schema, tasks  # noqa: E402
from vit_jax.__main__ import VERBS  # noqa: E402
from vit_jax.data import augment, catalog, crops, erasing, loader, mixup, order, policies, stream, warping  # noqa: E402
from vit_jax.evals import probes  # noqa: E402
from vit_jax.models import attention_outputs, rotary, table, vit_choices, vit_heads  # noqa: E402
from vit_jax.models.published.model import Registered  # noqa: E402
from vit_jax.optim import schedules, value_schedules  # noqa: E402
from vit_jax.schema import expected  # noqa: E402
from vit_jax.tasks import dinov2_choices, distill, masked_patches  # noqa: E402
from vit_jax.training import build  # noqa: E402

GROUP = "those of its keys"
EARLY = "The page is generated from the code.\n"
MODELS = {  # function of a family -> its names in words
  "vit": "ViT, hybrids, DeiT, DeiT III, DINOv2, DINOv3, SigLIP, rope-vit, EVA-02, ViT-5",
  "compact": "ViT-Lite, CVT and CCT",
  "bit": "BiT",
  "mixer": "Mixer",
  "swin": "Swin",
  "efficientnet": "EfficientNet",
}


class Key(typing.NamedTuple):
  """A key of a config, as the reference describes it.

  Attributes:
    name: the key.
    type: type and range in words.
    default: the default, or "required".
    text: its entry in the docstring.
  """

  name: str
  type: str
  default: str
  text: str


def on_files(files, config):
  """Adds the generated pages to those of the folder, see MkDocs' hooks."""
  from mkdocs.structure.files import File  # not needed by tests of the pages

  for path, text in pages().items():
    files.append(File.generated(config, path, content=text))
  return files


def on_page_markdown(markdown, page, config, files):
  """Replaces links to files of the repository by their text, because the site does not contain these files."""
  return re.sub(r"\[([^\]]+)\]\((?:\.\./)+[\w/.-]+\.py\)", r"\1", markdown)


def on_post_build(config):
  """Replaces the address of the script for the search in pages on a disk by a local copy."""
  site = pathlib.Path(config.site_dir)
  for file in site.rglob("*.html"):
    up = "../" * (len(file.relative_to(site).parts) - 1)
    text = file.read_text()
    file.write_text(text.replace("https://unpkg.com/iframe-worker/shim", f"{up}assets/frame-worker.js"))


def pages() -> dict[str, str]:
  """Returns {path: Markdown text} of all generated pages."""
  return {
    "index.md": first_page(),
    "reference/config.md": config_page(),
    "reference/data.md": data_page(),
    "reference/model.md": model_page(),
    "reference/evals.md": evaluations_page(),
    "reference/flags.md": flags_page(),
    "reference/launch.md": launch_page(),
    "reference/exit-codes.md": exit_codes_page(),
    "reference/metrics.md": metrics_page(),
    "reference/python.md": python_page(),
  }


def first_page() -> str:
  """Returns the README with links that are relative to the folder of the documentation."""
  return (ROOT / "README.md").read_text().replace("](docs/", "](")


# Keys of configs.


def config_page() -> str:
  """Returns the page with the keys of a run, of `optim` and of `task`."""
  parts = ["# Config keys\n", EARLY, "## Keys of a run\n"]
  parts.append("The choices `model`, `data`, `optim`, `task` and `evals` have arguments of their own, listed below.\n")
  parts.append(listed(keys_of(config.Run)))
  groups = {"init": config.Init, "mesh": config.Mesh, "checkpoint": config.Checkpoint}
  for name, kind in (groups | {"log": config.Log, "limits": config.Limits}).items():
    parts += [f"## {name}\n", f"{sentence(kind)}\n", listed(keys_of(kind))]
  parts += ["## Keys of a measurement\n", f"{sentence(config.Measurement)}\n", listed(keys_of(config.Measurement))]
  parts += ["## optim\n", table_of(build.OPTIM, 3)]
  parts += ["## optim.schedule\n", table_of(schedules.SCHEDULES, 3)]
  parts += ["## optim.weight_decay_schedule\n", table_of(value_schedules.SCHEDULES_FROM_START, 3)]
  parts += ["## optim.ema_schedule\n", "The names are those of `optim.weight_decay_schedule`.\n"]
  parts += ["## task\n", table_of(tasks.TASKS, 3)]
  parts += ["## task.temperature of dino and dinov2\n", table_of(value_schedules.VALUE_SCHEDULES, 3)]
  parts += ["## task.masks of dinov2\n", table_of(dinov2_choices.MASKS, 3)]
  parts += ["## task.gram of dinov2\n", table_of(dinov2_choices.GRAMS, 3)]
  parts += ["## task.targets of distill\n", table_of(distill.TARGETS, 3)]
  parts += ["## task.targets of masked_patches\n", table_of(masked_patches.TARGETS, 3)]
  return "\n".join(parts)


def data_page() -> str:
  """Returns the page with the keys of `data`: those of every reader, and those that all data have."""
  parts = ["# Data keys\n", EARLY, "## Keys of all data\n"]
  shared = (stream.train_examples, stream.eval_examples, loader.batches, loader.processes, augment.build)
  parts.append(listed(keys_of(*shared)))
  parts.append("Some datasets have other defaults of `flip`, `crop` and `exif`, because of their labels or cameras.\n")
  readers = {}
  for name, row in catalog.CATALOG.items():
    if not is_ours(row.reader):
      continue
    readers.setdefault(base(row.reader), []).append(name)
  for reader, names in readers.items():
    title = names[0] if len(names) == 1 else f"Datasets of the reader {reader.__name__.strip('_')}"
    parts += [f"## {title}\n", f"{sentence(reader)}\n"]
    if len(names) > 1:
      parts.append(f"Names: {', '.join(f'`{name}`' for name in names)}.\n")
    parts.append(listed(keys_of(reader)))
  for key, functions in (
    ("order", order.ORDERS),
    ("crop", crops.CROPS),
    ("test_crop", crops.TEST_CROPS),
    ("policy", policies.POLICIES),
    ("warp", warping.WARPS),
    ("mixing", mixup.MIXINGS),
    ("erasing", erasing.ERASINGS),
  ):
    parts += [f"## data.{key}\n", table_of(functions, 3)]
  return "\n".join(parts)


def model_page() -> str:
  """Returns the page with the keys of `model` for each function of a family."""
  parts = ["# Model keys\n", EARLY]
  parts.append(
    "A published name sets some of these arguments. `convert --inspect` prints the arguments of a file, and "
    "[models](../models/index.md) lists all names.\n"
  )
  functions = {}
  for name, row in table.TABLE.items():
    if not isinstance(row, Registered):
      functions.setdefault(base(row.make), []).append(name)
  for function, names in functions.items():
    family = MODELS.get(function.__name__, function.__name__)
    parts += [f"## {family}\n", f"{sentence(function)}\n"]
    parts.append(f"{len(names)} names in the code, such as {', '.join(f'`{name}`' for name in names[:3])}.\n")
    parts.append(listed(keys_of(function)))
  for key, functions in (
    ("attention", vit_choices.ATTENTION),
    ("attention.output", attention_outputs.OUTPUTS),
    ("mlp", vit_choices.MLP),
    ("norm", vit_choices.NORM),
    ("position", vit_choices.POSITION),
    ("position.rotary", rotary.ROTARY),
    ("head", vit_heads.HEAD),
  ):
    parts += [f"## model.{key}\n", table_of(functions, 3)]
  return "\n".join(parts)


def evaluations_page() -> str:
  """Returns the page with the keys of evaluations and probes."""
  parts = ["# Evaluation keys\n", EARLY, "## evals.*\n", table_of(evals.REPEATED, 3)]
  parts += ["## probes of fewshot\n", table_of(probes.PROBES, 3)]
  parts += ["## probe of dense\n", table_of(probes.OF_SHARES, 3)]
  return "\n".join(parts)


def table_of(choices: Mapping[str, Callable | tuple[Callable, ...]], level: int) -> str:
  """Returns the names of a table with their keys, and once the keys that all names share.

  Args:
    choices: {name: function, or functions}.
    level: level of the headings.
  """
  functions = {name: entry if isinstance(entry, tuple) else (entry,) for name, entry in choices.items()}
  functions = {name: each for name, each in functions.items() if is_ours(each[0])}
  shared = list(next(iter(functions.values()))[1:]) if len(functions) > 1 else []
  parts = []
  for name, each in functions.items():
    own = each[: len(each) - len(shared)]
    parts += [f"{'#' * level} {name}\n", f"{sentence(own[0])}\n", listed(keys_of(*filter(schema.read_keywords, own)))]
  if shared:
    parts += [f"{'#' * level} Keys of all of these\n", listed(keys_of(*shared))]
  return "\n".join(parts)


def is_ours(function: Callable) -> bool:
  """Returns whether a function is part of the package, and not registered by an extension."""
  return base(function).__module__.startswith("vit_jax.")


def base(function: Callable) -> Callable:
  """Returns the function of a `functools.partial`, also of a nested one."""
  while hasattr(function, "func"):
    function = function.func
  return function


def keys_of(*functions: Callable) -> list[Key]:
  """Returns the keys that functions or dataclasses define by keyword-only parameters or fields."""
  found = {}
  for function in functions:
    source = base(function)
    hints, texts = typing.get_type_hints(source, include_extras=True), entries(source)
    if dataclasses.is_dataclass(source) and not schema.read_keywords(source):
      defaults = {field.name: schema.get_field_default(field) for field in dataclasses.fields(source)}
    else:
      defaults = schema.read_keywords(source)
    for name, default in defaults.items():
      shown = "required" if default in (inspect.Parameter.empty, dataclasses.MISSING) else value(default)
      text = texts.get(name, "")
      found.setdefault(name, Key(name.rstrip("_"), in_words(hints[name]), shown, text))
  return list(found.values())


def in_words(kind: object) -> str:
  """Returns the type of a key with its range, in words."""
  origin, args = typing.get_origin(kind), typing.get_args(kind)
  if origin is typing.Annotated and isinstance(args[1], Mapping):
    return in_words(args[0])
  if origin is tuple:
    inner = [in_words(part) for part in args if part is not Ellipsis]
    return f"a list, each {inner[0]}" if args[-1] is Ellipsis else f"a list of {', '.join(inner)}"
  if isinstance(origin, type) and issubclass(origin, Mapping):
    return f"named entries, each {in_words(args[1])}"
  if origin is typing.Literal:
    words = [f"`{word}`" for word in args]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
  if len(args) > 1 and type(None) in args and origin is not typing.Annotated:
    return ", or ".join([*(in_words(part) for part in args if part is not type(None)), "none"])
  if dataclasses.is_dataclass(kind) and not issubclass(kind, schema.Choice):
    return "a group of keys"
  excluded = origin is typing.Annotated and args[1].open_high and math.isfinite(args[1].high)
  below = f", below {args[1].high:g}" if excluded else ""
  return expected.describe_type(kind).replace("a name with arguments", "a choice") + below


def value(default: object) -> str:
  """Returns a default as a config contains it."""
  if isinstance(default, schema.Choice):
    return ", ".join([default.name, *(f"{key}={value(each)}" for key, each in default.args.items())])
  if dataclasses.is_dataclass(default):
    return GROUP
  if isinstance(default, Mapping):
    return ", ".join(f"{key}: {value(each)}" for key, each in default.items())
  if default is None:
    return "none"
  return str(default).lower() if isinstance(default, bool) else str(default)


def entries(function: Callable) -> dict[str, str]:
  """Returns {argument: its text} of the `Args` of a docstring. A class inherits the arguments of its bases."""
  sources = function.__mro__[-2::-1] if isinstance(function, type) else (function,)
  found = []
  for source in sources:
    block = re.search(r"^Args:\n((?:(?: .*)?\n)+)", f"{inspect.getdoc(source) or ''}\n", re.M)
    found += re.findall(r"^  \*{0,2}(\w+): (.*(?:\n    .*)*)", block[1] if block else "", re.M)
  return {name: re.sub(r"\s+", " ", text[:1].upper() + text[1:]) for name, text in found}


def sentence(function: Callable) -> str:
  """Returns the first paragraph of a docstring."""
  return plain(re.sub(r"\s+", " ", (inspect.getdoc(base(function)) or "").partition("\n\n")[0]))


def plain(text: str) -> str:
  """Escapes characters that Markdown would interpret, outside of inline code."""
  parts = re.split(r"(`[^`]*`)", text)
  return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]|#])", r"\\\1", part) for part in parts)


def listed(keys: Iterable[Key]) -> str:
  """Returns a list of keys, one item each."""
  items = [f"- `{key.name}`: {plain(key.type)}; default: {code(key.default)}. {plain(key.text)}" for key in keys]
  items = [item.replace("; default: `required`.", "; required.") for item in items]
  return "".join(f"{item.rstrip()}\n" for item in items) or "This name has no keys.\n"


def code(text: str) -> str:
  """Returns a text as inline code, or "" in words if it is empty."""
  return text if text == GROUP else f"`{text}`" if text else "empty"


# Flags.


class _Built(BaseException):
  """Raised instead of parsing, when a parser has all of its flags."""

  def __init__(self, actions: list[argparse.Action], description: str):
    super().__init__("built")
    self.actions, self.description = actions, description


def verb_parser(verb: str) -> tuple[list[argparse.Action], str]:
  """Returns the flags of a verb, and the description of the verb."""

  def parse(self, words=None):
    raise _Built(self._actions, self.description or "")

  module = importlib.import_module(f"vit_jax.{verb}")
  with mock.patch.object(cli.Parser, "parse", parse):
    try:
      module.main()
    except _Built as built:
      return built.actions, built.description
  raise AssertionError(f"{verb} reads no flags")


def launch_parsers() -> Iterator[tuple[str, list[argparse.Action], str]]:
  """Yields name, flags and description of each verb of `launch`."""

  def parse(self, words=None, namespace=None):
    groups = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
    raise _Built(list(groups.choices.items()), "")

  with mock.patch.object(launch_flags.Parser, "parse_known_args", parse), contextlib.suppress(_Built):
    try:
      launch_flags.parse_flags([next(iter(launch_flags.VERBS)), "name"])
    except _Built as built:
      for name, parser in built.actions:
        yield name, parser._actions, parser.description or ""


def flag_items(actions: Iterable[argparse.Action]) -> str:
  """Returns a list of flags, one item each."""
  items = []
  for action in actions:
    if isinstance(action, argparse._HelpAction):
      continue
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    facts = [plain(str(action.help).replace("%%", "%"))] if action.help else []
    facts += [f"one of {', '.join(f'`{each}`' for each in action.choices)}"] if action.choices else []
    facts += ["required"] if action.required and action.option_strings else []
    if action.default not in (None, False, "", [], argparse.SUPPRESS) and not action.const:
      facts.append(f"default: `{action.default}`")
    items.append(f"- {names}: {'; '.join(facts)}" if facts else f"- {names}")
  return "".join(f"{item}\n" for item in items)


def flags_page() -> str:
  """Returns the page with the flags of all verbs."""
  parts = ["# Flags\n", EARLY]
  parts.append("Verbs that have `--config` also accept `--config.KEY=VALUE`, which changes a value of the config.\n")
  for verb in VERBS:
    actions, description = verb_parser(verb)
    summary = plain(re.sub(r"\s+", " ", description.partition("\n\n")[0].partition(": python -m")[0]))
    parts += [f"## vit\\_jax.{verb}\n", f"{summary.rstrip('.')}.\n", flag_items(actions)]
  return "\n".join(parts)


def launch_page() -> str:
  """Returns the page with the flags of `launch`."""
  parts = ["# Flags of launch\n", EARLY]
  for name, actions, description in launch_parsers():
    parts += [f"## launch {name}\n", f"{plain(description[:1].upper() + description[1:])}.\n", flag_items(actions)]
  return "\n".join(parts)


def exit_codes_page() -> str:
  """Returns the page with the exit codes of the verbs and of `launch`."""
  parts = ["# Exit codes\n", EARLY]
  for title, exits in (("Verbs", runtime.EXITS), ("launch", launch_errors.EXITS)):
    rows = [
      f"### {title}: {number}\n\n{meaning}.\n\nWhat to do: {action}.\n" for number, (meaning, action) in exits.items()
    ]
    parts += [f"## {title}\n", *rows]
  return "\n".join(parts)


# Metrics.


def metric_chapters() -> list[dict]:
  """Returns the chapters of `metrics.toml`: dictionaries with `title`, `text` and `metrics`.

  A metric has `name`, `unit`, `places` and `text`, and the `pattern` of all names that its definition covers. `screen`
  is its name on the screen, if that is another one.
  """
  read = tomllib.loads((ROOT / "docs/metrics.toml").read_text())
  for chapter in read["chapters"]:
    for metric in chapter["metrics"]:
      metric["pattern"] = re.escape(metric["name"])
      for word, pattern in read["placeholders"].items():
        metric["pattern"] = metric["pattern"].replace(word, f"(?:{pattern})")
  return read["chapters"]


def places_of(metric: Mapping[str, str]) -> str:
  """Returns the files that contain a metric, with its name on the screen if that differs."""
  shown = f'screen as "{metric["screen"]}"' if "screen" in metric else "screen"
  return re.sub(r"\bscreen\b", shown, metric["places"], count=1)


def metrics_page() -> str:
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
  for chapter in metric_chapters():
    parts += [f"## {chapter['title']}\n", f"{chapter['text']}\n"]
    rows = [
      f"- `{each['name']}` ({each['unit']}): {' '.join(each['text'].split())} Written to: {places_of(each)}.\n"
      for each in chapter["metrics"]
    ]
    parts.append("".join(rows))
  return "\n".join(parts)


def python_page() -> str:
  """Returns the page of the Python interface, which mkdocstrings fills from the docstrings."""
  names = ("vit_jax.load", "vit_jax.inference.predictor.Predictor", "vit_jax.models.create", "vit_jax.models.names",
           "vit_jax.config.recipe", "vit_jax.config.measurement", "vit_jax.config.Sweep", "vit_jax.config.product",
           "vit_jax.config.zipped", "vit_jax.config.sample", "vit_jax.register")  # fmt: skip
  return "\n\n".join(["# Python", "See [use in Python](../guides/python.md).", *(f"::: {name}" for name in names)])
