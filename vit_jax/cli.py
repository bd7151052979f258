"""Functions shared by all verbs: parsing of flags, printing of tables, and exit codes."""

import argparse
import atexit
import contextlib
import dataclasses
import difflib
import itertools
import logging
import os
import pathlib
import re
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NoReturn

import jax

from vit_jax import config, runtime, schema
from vit_jax.config import extensions, flags
from vit_jax.evals.metrics import is_share
from vit_jax.parallel import hardware
from vit_jax.runtime import devices, print_line, settings, streams
from vit_jax.schema import ConfigError, suggestions
from vit_jax.schema.errors import format_names, make_printable, show
from vit_jax.schema.texts import format_flag
from vit_jax.storage import errors, hub_addresses, paths

CONFIG = "file or name of a recipe, or either with :argument; --config.KEY=VALUE changes a value"  # help of --config
CONFIGS = {"--config", "--show"}  # flags that name a config, which --config.KEY=VALUE changes
IMPORT = "Python file or module that registers readers, tasks, models or evaluations; may be repeated"
PARAMETERS = "print the table of all parameters too"  # help of --parameters


class Parser(argparse.ArgumentParser):
  """A parser for the flags of a program. It reports mistakes as ConfigError.

  If the program has a flag `--config` or `--show`, it also accepts `--config.KEY=TEXT`.

  Args:
    verb: name of a module of vit_jax such as "train", or the full name of another module.
    description: text that --help prints.
    data: if true, also accept `--data.KEY=TEXT`, which describes data without a config file.
    config_type: type that a config file of the program returns.
    forms: flags of each form of the command, if the command has several forms. A flag that belongs to no form can be
      used with all forms.
  """

  def __init__(
    self,
    verb: str,
    description: str,
    data: bool = False,
    config_type: type = config.Run,
    forms: Sequence[Collection[str]] = (),
  ) -> None:
    super().__init__(
      f"python -m {verb if '.' in verb else f'vit_jax.{verb}'}",
      allow_abbrev=False,
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    self.data, self.config_type, self.forms = data, config_type, forms
    self.add_argument("--import", action="append", default=[], dest="imports", metavar="FILE", help=IMPORT)

  def parse(self, words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line and imports extensions.

    Args:
      words: arguments to parse. The default is the arguments of the command line.

    Returns:
      A namespace with the value of each flag. Its attributes `overrides` and `data` map KEY to TEXT.

    Raises:
      ConfigError: a flag is unknown or missing, or has an invalid value.
    """
    overrides, words = flags.split_overrides(sys.argv[1:] if words is None else words)
    data, words = flags.split_overrides(words, "data") if self.data else ({}, words)
    known = {flag: action.nargs != 0 for flag, action in self._option_string_actions.items() if flag[:2] == "--"}
    configurable = not CONFIGS.isdisjoint(known)
    # Unknown flags are reported before missing flags, because a missing flag may be a misspelt one.
    unknown = _find_unknown_flags(words, known)
    unknown += [(f"--config.{key}", text) for key, text in overrides.items() if not configurable]
    if not unknown:
      arguments, rest = self.parse_known_args(words, argparse.Namespace(overrides=overrides, data=data))
      unknown = _find_unknown_flags(rest, {}, "-") or [(word, "") for word in rest]
    if unknown:
      raise ConfigError(self._refusal(dict(unknown), known, {word.partition("=")[0] for word in words}))
    extensions.import_installed()
    for text in arguments.imports:
      extensions.import_named(text)
    return arguments

  def _refusal(self, unknown: Mapping[str, str], known: Mapping[str, bool], used_flags: AbstractSet[str]) -> str:
    """Returns the message for unknown flags: a suggestion for each, and the supported flags.

    If `used_flags` belong to one form of the command, flags of the other forms are not listed.

    Args:
      unknown: maps each unknown flag to its value.
      known: maps each supported flag to whether it takes a value.
      used_flags: all flags on the command line.
    """
    used = [form for form in self.forms if not used_flags.isdisjoint(form)]
    others = {flag for form in self.forms if used and form not in used for flag in form}
    fitting = {flag: takes for flag, takes in known.items() if flag not in others}
    configs = CONFIGS.intersection(fitting, itertools.chain(*used) if self.forms else fitting)
    groups = [field.name for field in dataclasses.fields(self.config_type)] if configs else []
    found = [_suggest_flag(*each, fitting, groups) for each in unknown.items()]
    advice = " Values of the config are --config.KEY=VALUE." if groups else ""
    if used and not groups and not CONFIGS.isdisjoint(known):
      flag = next(flag for flag in used[0] if flag in used_flags)
      advice = f" {flag} cannot be combined with --config.KEY=VALUE."
    if not any(map(_is_flag, unknown)):
      first, *following = unknown
      key, equals, value = first.partition("=")
      if re.fullmatch(r"config(\.[\w-]+)+", key) and groups:
        if not equals and following and not following[0].startswith("config."):
          value = following[0]
        return f"unexpected {show(first)}. Did you mean {format_flag(key, value or 'VALUE')}?"
      return f"unexpected {show(first)}. Quote a value that contains spaces: --flag='a b'"
    flags = f"flag{'s' * (len(unknown) > 1)} {', '.join(map(repr, unknown))}"
    return f"unknown {flags}.{suggestions.join_suggestions(found)} Allowed: {format_names(fitting)}.{advice}"

  def error(self, message: str) -> NoReturn:
    """Raises argparse's errors as ConfigError: one line that starts with the flag."""
    missing = message.removeprefix("the following arguments are required: ")
    if missing != message:
      raise ConfigError(f"{missing}: missing. See --help")
    raise ConfigError(message.removeprefix("argument "))


def _find_unknown_flags(words: Sequence[str], known: Collection[str], dashes: str = "--") -> list[tuple[str, str]]:
  """Returns each unknown flag with its value: the text after "=", or the next word unless it is a flag."""
  words = list(words[: words.index("--")] if "--" in words else words)
  result = []
  for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
    flag, equals, text = word.partition("=")
    if _is_flag(word, dashes) and flag not in known:
      result.append((flag, text if equals else "" if _is_flag(following) else following))
  return result


def _is_flag(word: str, dashes: str = "-") -> bool:
  """Returns whether a word is a flag, and not a number such as -1."""
  return word.startswith(dashes) and not re.match(r"-[\d.]|-$", word)


def _suggest_flag(flag: str, value: str, known: Mapping[str, bool], groups: Collection[str]) -> suggestions.Suggestion:
  """Returns the replacement for an unknown flag that is misspelt or belongs to another framework.

  Flags of other frameworks are not compared by spelling: --batch-size does not mean --image-size.
  """
  found = suggestions.suggest_for_flag(flag, value, known, groups)
  if found == suggestions.Suggestion() and not suggestions.is_known(flag):
    near = difflib.get_close_matches(flag, [each for each in known if each != "--help"], 1)
    return suggestions.suggest_for_flag(near[0], value, known, groups) if near else found
  return found


def add_weight_options(parser: argparse.ArgumentParser) -> None:
  """Adds --ema, --no-ema and --prefix, which select one of several sets of weights in a file or workdir."""
  parser.add_argument(
    "--ema",
    action=argparse.BooleanOptionalAction,
    help="read averaged or raw weights; default: averaged weights of a file that has them, and of a "
    "workdir with the average as teacher; otherwise raw weights",
  )
  parser.add_argument(
    "--prefix", metavar="NAME", help="read the model with this prefix from a file with several models"
  )


def parse_path(text: str, bare: bool = False) -> pathlib.Path:
  """Parses a path on a disk or in a bucket (gs://), as a `type` of argparse.

  Args:
    text: the path.
    bare: if true, accept a bucket without an object name.

  Raises:
    argparse.ArgumentTypeError: the path is invalid.
  """
  try:
    return paths.resolve_path(text, bare)
  except ConfigError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def parse_weights(text: str) -> pathlib.Path:
  """Parses a path, or an address on the Hugging Face Hub (hf:), as a `type` of argparse. Nothing is downloaded.

  Raises:
    argparse.ArgumentTypeError: the path or address is invalid.
  """
  if not hub_addresses.is_address(text):
    return parse_path(text)
  try:
    return pathlib.Path(str(hub_addresses.parse_address(text)))
  except ConfigError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def parse_directory(text: str) -> pathlib.Path:
  """Parses the path of an output directory, such as --workdir, as a `type` of argparse.

  Raises:
    argparse.ArgumentTypeError: the path is empty, invalid or not Unicode.
  """
  if not text.strip():
    raise argparse.ArgumentTypeError("is empty. Name a directory")
  check_unicode(text)
  return parse_path(text)


def parse_workdir(text: str) -> pathlib.Path:
  """Parses the path of a --workdir for checkpoints, as a `type` of argparse.

  Raises:
    argparse.ArgumentTypeError: the path is invalid, or checkpoints cannot be saved in a directory of this name.
  """
  from vit_jax import checkpoints  # Orbax takes a second to import, and other verbs do not need it

  parsed = parse_directory(text)
  try:
    checkpoints.check_workdir_name(parsed)
  except ConfigError as error:
    raise argparse.ArgumentTypeError(str(error)) from error
  return parsed


def parse_data_directory(text: str) -> pathlib.Path:
  """Parses the path of a --data_dir, which may be a whole bucket, as a `type` of argparse.

  Raises:
    argparse.ArgumentTypeError: the path is invalid or not Unicode.
  """
  check_unicode(text)
  return parse_path(text, bare=True)


def check_unicode(text: str) -> None:
  """Raises ArgumentTypeError for a path that is not valid UTF-8.

  Checkpoints, image folders of runs and ArrayRecord files cannot have such a path.
  """
  try:
    str(pathlib.Path(text).absolute()).encode()
  except UnicodeEncodeError:
    raise argparse.ArgumentTypeError(
      f"{text!a} is not valid Unicode, which checkpoints, image folders and prepared data require. Use another "
      "directory"
    ) from None


def describe_flags(arguments: argparse.Namespace) -> dict[str, str]:
  """Returns the flags of a command as text, for the comparison of processes.

  Args:
    arguments: parsed flags.
  """
  return {name: str(value) for name, value in vars(arguments).items()}


def make_number_parser(kind: object) -> Callable[[str], Any]:
  """Returns a `type` of argparse that parses a number with the rules of the schema.

  Args:
    kind: type annotation of the number, such as `schema.Fraction`.
  """

  def parse(text: str) -> float:
    try:
      return schema.convert(schema.Text(text), kind)
    except ConfigError as error:
      raise argparse.ArgumentTypeError(str(error)) from error

  return parse


def make_names_parser(noun: str, allowed: Collection[str]) -> Callable[[str], list[str]]:
  """Returns a `type` of argparse that parses names separated by commas, such as "xla,fused".

  The parser returns the names in their order, each once. For an unknown name, it raises argparse.ArgumentTypeError with
  the nearest allowed name.

  Args:
    noun: the noun for a name in messages, such as "dataset".
    allowed: the allowed names.
  """

  def parse(text: str) -> list[str]:
    for name in text.split(","):
      if name not in allowed:
        raise argparse.ArgumentTypeError(f"unknown {noun} {name!r}.{schema.suggest_nearest(name, allowed)}")
    return list(dict.fromkeys(text.split(",")))

  return parse


def parse_slices(text: str) -> list[hardware.Slice]:
  """Parses names of TPU slices, as a `type` of argparse.

  Args:
    text: names separated by commas, such as "v3-32,v3:4x4,2xv5e-256".

  Raises:
    argparse.ArgumentTypeError: a name is unknown.
  """
  try:
    return [hardware.parse_slice(name) for name in text.split(",")]
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from error


def format_parameters(shapes: Mapping[str, jax.Array | jax.ShapeDtypeStruct], besides: Collection[str]) -> str:
  """Returns a table with one line for each parameter.

  Args:
    shapes: maps the path of each parameter to its shape.
    besides: paths to omit.
  """
  from clu import parameter_overview  # imported only for this option

  return parameter_overview.get_parameter_overview(
    {path: shape for path, shape in shapes.items() if path not in besides}, include_stats=False
  )


def format_figures(figures: Mapping[str, object], intervals: Mapping[str, tuple[float, float]] | None = None) -> None:
  """Prints figures in the format of result.json, with one line for each figure.

  Args:
    figures: maps the name of each figure to its value.
    intervals: maps names to 95 % confidence intervals (low, high).
  """
  print_line("")
  for name, value in figures.items():
    label = f"  {name:<24}"
    if name.endswith("images") and isinstance(value, int):
      print_line(f"{label}{value:>10,}")
    elif isinstance(value, float) and not name.endswith(("seconds", "per_second")):
      form = ".2%" if is_share(name) else ".4f"
      low, high = (intervals or {}).get(name, (None, None))
      print_line(f"{label}{value:>10{form}}" + (f"   95 % [{low:{form}}, {high:{form}}]" if low is not None else ""))


def run_verb(verb: Callable[[], None]) -> None:
  """Runs a verb as a program. A user error prints one line and sets the exit code. A bug prints its traceback.

  Args:
    verb: main function of the verb.
  """
  if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # the handler during the imports, see `vit_jax/__init__.py`
    signal.signal(signal.SIGINT, signal.default_int_handler)
  streams.repair_streams()
  configure_logging()
  try:
    devices.check_names()
    settings.check_settings()
    verb()
  except (ConfigError, runtime.Stop, OSError, KeyboardInterrupt, RuntimeError, MemoryError) as error:
    code, message = runtime.describe_exit(error)
    if not message:
      raise
    # Python restores the default handler at exit, so a second Ctrl-C would replace the exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # stderr may be a file on the full disk
      print(message, file=sys.stderr, flush=True)
    if isinstance(error, MemoryError | RuntimeError) and not isinstance(error, jax.errors.JaxRuntimeError):
      os._exit(code)  # libraries may block forever at interpreter exit if memory or threads are exhausted
    sys.exit(code)


class PrintableFormatter(logging.Formatter):
  """A formatter of log messages that replaces characters that cannot be printed by escapes."""

  def format(self, record: logging.LogRecord) -> str:
    """Returns the text of a message."""
    return make_printable(super().format(record), None)


def configure_logging() -> None:
  """Shows the warnings of this package, and hides messages of libraries that repeat raised errors."""
  logging.basicConfig(level=logging.WARNING)
  for handler in logging.root.handlers:
    if type(handler) is logging.StreamHandler:  # of this call, or of a library that has logged during its import
      handler.setFormatter(PrintableFormatter("%(levelname)s: %(message)s"))
  logging.getLogger("tensorflow").setLevel(logging.ERROR)
  # If a save fails, Orbax's threads print pages in addition to the raised error. Beam does the same for an image.
  for library in ("absl", "asyncio", "apache_beam.runners.common"):
    logging.getLogger(library).setLevel(logging.CRITICAL)
  sys.unraisablehook = errors.hide_request_errors
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # otherwise TensorFlow prints a page of messages at every start
