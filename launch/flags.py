"""The command line of `launch`, and the run that it describes."""

import argparse
import dataclasses
import difflib
import os
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NoReturn

from . import bundle, spec, storage, tpus
from .errors import LaunchError

USE = """Starts runs on TPU VMs, GKE, your own hosts or this machine, restarts them, and deletes their machines.

  python -m launch run vit-s16 --backend=qr --tpu=v3-32 --zone=europe-west4-a --project=my-project \\
      -- vit_jax.train --config=configs/vit_s16_i1k.py --config.data.path=gs://my-bucket/data \\
                       --workdir=gs://my-bucket/runs/vit-s16
  python -m launch ls | status NAME | logs NAME -f | stop NAME | down NAME | gc

docs/guides/tpu-vms.md leads from an empty project to a run. --help after a verb lists its flags."""
# The help of each verb.
VERBS = {
  "run": "check, start and watch a run; the same command continues a run that has ended",
  "check": "report what prevents a run: credentials, project, code, config, memory, input, bucket, hours and cost",
  "ls": "list all machines with our labels, and the unfinished runs of this machine",
  "status": "show attempts, workers and progress of a run",
  "logs": "show the output of the programs of a run",
  "stop": "let the programs save and exit, and keep the machines",
  "down": "delete all machines of a run, and verify the deletion",
  "gc": "delete machines that are expired, dead or abandoned; without --yes only list them",
  "ssh": "run a command on a worker, or open a shell there",
  "restart": "restart the programs, on the same machines or others",
  "adopt": "watch a run that another machine started, or that is not watched",
  "report": "show how the time of a run was spent",
  "render": "print the JobSet, the xpk command or the SkyPilot task of a run",
  "sweep": "start the trials of a sweep as runs, several at once",
}
# Verbs of other programs, which have another spelling here.
_OTHER_VERBS = {"list": "ls", "start": "run", "kill": "down", "delete": "down", "cancel": "stop", "log": "logs"}
SPECIFIED = ("run", "check", "render", "sweep")  # verbs that take the flags of a run, not only its name
_CAPACITIES = {
  "spot": "may be preempted at any time, and costs least; the default",
  "reserved": "from a reservation of the project",
  "on-demand": "not preempted, kept until it is deleted",
  "flex-start": "waits in a queue, then is kept for up to a week",
}
_LONGEST = 2**23  # bytes of a file of --spec, whose arguments may have 2**20


class Parser(argparse.ArgumentParser):
  """A parser that raises a LaunchError for a mistake."""

  def error(self, message: str) -> NoReturn:
    """Raises a LaunchError of one line. For an unknown verb it contains a suggestion, which argparse does not make."""
    if unknown := re.match(r"argument VERB: invalid choice: '(.*?)' \(", message):
      near = _OTHER_VERBS.get(unknown[1]) or next(iter(difflib.get_close_matches(unknown[1], VERBS, 1, 0.5)), "")
      advice = f" Did you mean {near}?" if near else ""
      message = f"unknown verb {unknown[1]!r}.{advice} Allowed: {', '.join(VERBS)}"
    raise LaunchError(f"{message}. See {self.prog} --help")


class _PrintVersion(argparse.Action):
  """A flag that prints the version of the package and ends the program."""

  def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
    """Prints the version. Reads it from the source of vit_jax, because this package does not import vit_jax."""
    text = pathlib.Path(__file__).parents[1].joinpath("vit_jax/schema/extras.py").read_text()
    print(*re.findall(r'^VERSION = "(.+?)"', text, re.MULTILINE))
    parser.exit()


def parse_flags(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """Returns the flags, and the words of the program after --."""
  words = list(words)
  command = []
  if "--" in words:
    at = words.index("--")
    words, command = words[:at], words[at + 1 :]
  parser = Parser("python -m launch", description=USE, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
  verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
  flags = {}
  for verb, text in VERBS.items():
    behind = (
      "[FLAGS] -- PROGRAM [ARGUMENTS]" if verb in SPECIFIED else "[FLAGS] [-- COMMAND]" if verb == "ssh" else None
    )
    usage = behind and f"python -m launch {verb} NAME {behind}"
    sub = verbs.add_parser(verb, help=text, description=text, usage=usage, allow_abbrev=False)
    if verb not in ("ls", "gc"):
      sub.add_argument("name", metavar="NAME", help="name of the run: lower-case letters, digits and dashes")
    if verb in SPECIFIED:
      _add_spec_flags(sub)
    else:
      sub.add_argument("--workdir", default="", help="directory of the run, if this machine has no record of it")
    _FLAGS.get(verb, lambda _: None)(sub)
    flags[verb] = list(sub._option_string_actions)
  args, unknown = parser.parse_known_args(words)
  if unknown:
    raise LaunchError(_explain_unknown(args.verb, unknown[0], flags[args.verb], words, command))
  if command and args.verb not in (*SPECIFIED, "ssh"):
    raise LaunchError(f"{args.verb}: this verb runs no program. Remove the words after --")
  return args, command


def _explain_unknown(verb: str, word: str, flags: Sequence[str], words: Sequence[str], command: Sequence[str]) -> str:
  """Returns a message for a word that is not a flag."""
  takes = verb in (*SPECIFIED, "ssh")
  if not word.startswith("-"):
    at = words.index(word)
    if not takes or command:
      return f"{verb}: {word!r} is not expected. See python -m launch {verb} --help"
    right = shlex.join(["python", "-m", "launch", *words[:at]]), shlex.join(words[at:])
    return f"{verb}: {word!r} is a program, and must follow --. Write\n  {right[0]} -- {right[1]}"
  flag = word.partition("=")[0]
  near = difflib.get_close_matches(flag, flags, 1, 0.6)
  behind = "; flags of the program go after --" if takes else ""
  return f"{verb}: unknown flag {flag}{f'; did you mean {near[0]}?' if near else ''}{behind}"


def build_run(args: argparse.Namespace, command: Sequence[str]) -> spec.Run:
  """Returns the run that the flags describe. Raises a LaunchError for an invalid run."""
  if getattr(args, "spec", None):
    return _read_spec(args, command)
  if not args.backend:
    raise LaunchError(f"--backend: missing; allowed: {', '.join(spec.BACKENDS)}")
  if not command:
    raise LaunchError(f"{args.verb}: no program to run. Write -- vit_jax.train --config=… --workdir=… after the flags")
  module, *words = command
  if args.backend == "local":
    words, args.workdir = _make_workdir_absolute(words), _make_absolute(args.workdir)
  workdir = spec.find_flag_value(words, "--workdir")
  if workdir and args.workdir and workdir != args.workdir:
    raise LaunchError(f"--workdir: {args.workdir!r} before -- and {workdir!r} after it. Remove one of them")
  names = {field.name for field in dataclasses.fields(spec.Run)}
  values = {key: value for key, value in vars(args).items() if key in names and value is not None}
  values |= {"module": module, "args": tuple(words), "workdir": workdir or args.workdir or ""}
  values |= {"env": _parse_pairs("--env", args.env), "secrets": _parse_pairs("--secret", args.secrets)}
  _refuse_secrets(args.backend, values["env"], words)
  limits = {key: spec.parse_duration(text) for key, text in _parse_pairs("--limit", args.limit).items()}
  if args.queue_timeout:
    limits["queue"] = spec.parse_duration(args.queue_timeout)
  if unknown := limits.keys() - {field.name for field in dataclasses.fields(spec.Limits)}:
    allowed = ", ".join(field.name for field in dataclasses.fields(spec.Limits))
    raise LaunchError(f"--limit: there is no {sorted(unknown)[0]!r}; allowed: {allowed}")
  return spec.check_and_complete(spec.Run(**values | {"limits": spec.Limits(**limits)}))


def _make_absolute(workdir: str) -> str:
  """Returns a folder of this machine as an absolute path; a bucket and "" as they are."""
  if not workdir or "://" in workdir or workdir.startswith("-"):
    return workdir
  try:
    return os.path.abspath(workdir)
  except OSError as error:  # the current directory was deleted
    raise LaunchError(f"--workdir: {workdir!r} is relative, and the current directory: {error.strerror}") from None


def _make_workdir_absolute(words: Sequence[str]) -> list[str]:
  """Returns the program's words with an absolute --workdir: the program runs in a copy of the code, not here."""
  result = list(words)
  for i, word in enumerate(words):
    if word.startswith("--workdir="):
      result[i] = f"--workdir={_make_absolute(word.partition('=')[2])}"
    elif word == "--workdir" and i + 1 < len(words):
      result[i + 1] = _make_absolute(words[i + 1])
  return result


def _read_spec(args: argparse.Namespace, command: Sequence[str]) -> spec.Run:
  """Returns the run of a file. Nobody else may write the file, as it contains the command that is executed."""
  try:
    content, status = storage.read_regular_file(args.spec, _LONGEST + 1)
    if len(content) > _LONGEST:
      raise LaunchError(f"--spec: {args.spec} has more than {_LONGEST:,} bytes, and is not a run")
    run = spec.loads(content.decode())
  except (OSError, UnicodeDecodeError) as error:
    why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    raise LaunchError(f"--spec: {args.spec} cannot be read: {why}") from None
  if status.st_uid != os.getuid() or status.st_mode & 0o077:
    mine = "" if status.st_uid == os.getuid() else "copy it, and "
    raise LaunchError(
      f"--spec: {args.spec} must belong to you, and other users must not read or change it. Fix: {mine}chmod 600 FILE"
    )
  fields = {field.name for field in dataclasses.fields(spec.Run)} - {"name"}
  others = [spec.format_flag(key) for key in fields if getattr(args, key, None)]
  if command or args.name != run.name or others or args.limit or args.queue_timeout:
    raise LaunchError(
      f"--spec: {args.spec} describes the complete run {run.name}. Write run {run.name} --spec=…, without other flags"
    )
  if (workdir := spec.find_flag_value(run.args, "--workdir")) and workdir != run.workdir:
    raise LaunchError(f"--spec: {args.spec} has the workdir {run.workdir!r}, and --workdir={workdir} among its "
                      "arguments. Use the same one")  # fmt: skip
  _refuse_secrets(run.backend, run.env, run.args)
  return run


def _refuse_secrets(backend: str, env: Mapping[str, str], args: Sequence[str]) -> None:
  """Raises a LaunchError for a variable or an argument that looks like a secret: the bucket contains both."""
  there = "k8s:NAME/KEY" if backend == "gke" else "file:/path/on/the/worker"
  remedy = "and every reader of the bucket could read it. Store it, and name its location"
  for key, value in env.items():
    if kind := bundle.detect_secret_variable(key, value):
      raise LaunchError(
        f"--env: {key} looks like {kind}, {remedy}: --secret {key}=projects/P/secrets/NAME/versions/1, or "
        f"--secret {key}={there}"
      )
  for word in args:
    if (kind := bundle.detect_secret_value(word)) and kind != bundle.RANDOM_KEY:  # arguments may be hashes and names
      raise LaunchError(
        f"-- {word.partition('=')[0][:40] if '=' in word else 'an argument'}: looks like {kind}, {remedy}, so that the "
        f"program reads it from a variable: --secret NAME=projects/P/secrets/NAME/versions/1, or --secret NAME={there}"
      )


def _add_spec_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  zones = ", ".join(f"{kind.zones[0]} for {name}" for name, kind in tpus.GENERATIONS.items() if kind.zones)
  add("--backend", help=f"{', '.join(spec.BACKENDS)}; required")
  add("--tpu", help="type of slice, such as v3-32 or v5e-16")
  add("--slices", type=int, help="number of slices; 1")
  add("--zone", "--zones", dest="zones", type=_split_commas, help="zone of --backend=qr, or several zones separated by "
      f"commas, which are tried in turn; by default {zones}")  # fmt: skip
  add("--project", help="project of Google Cloud")
  add("--workdir", default="", help="directory of the run, for a program without this flag")
  capacities = parser.add_mutually_exclusive_group()
  for capacity in spec.CAPACITIES:
    text = _CAPACITIES[capacity]
    capacities.add_argument(f"--{capacity}", dest="capacity", action="store_const", const=capacity, help=text)
  add("--queue-timeout", help="longest wait for capacity; 6h")
  add("--max-hours", type=float, help="hours of machine time, all attempts together; 24 in a cloud")
  add("--price", type=float, help="price per chip-hour, in any currency")
  add("--max-cost", type=float, help="highest cost of all attempts together; needs --price")
  add("--max-failures", type=int, help="attempts without a new checkpoint before the run ends; 3")
  add("--runtime-version", help="software version of the TPU VM; by default the usual one of the slice")
  add("--network", help="network of the machines")
  add("--subnetwork", help="subnetwork of the machines")
  add("--service-account", help="account of the machines; on GKE a Kubernetes account")
  add("--internal-ips", action="store_true", default=None, help="machines without external addresses; needs Cloud NAT")
  add("--hosts", type=_split_commas, help="hosts of --backend=hosts, as for ssh, separated by commas")
  add("--processes", type=int, help="number of processes of --backend=local; 1")
  add("--image", help="image of --backend=gke, by its digest, with Python and all packages")
  add("--queue", help="Kueue queue of --backend=gke")
  add("--namespace", help="namespace of --backend=gke; default")
  add("--cluster", help="kubectl context of --backend=gke")
  add("--env", action="append", metavar="NAME=VALUE", help="environment variable of the program")
  add("--secret", dest="secrets", action="append", metavar="NAME=WHERE", help="variable whose value the worker reads "
      "from projects/P/secrets/S/versions/3, k8s:NAME/KEY or file:/path")  # fmt: skip
  add("--python", help="interpreter on the workers that has all packages; by default one is installed")
  add(
    "--keep-on-fail", action="store_true", default=None, help="keep the machines after a failure; they continue to cost"
  )
  add("--owner", help="name in the labels of the machines; by default your login name")
  add("--limit", action="append", metavar="NAME=DURATION", help="a limit of launch/spec.py, such as silence=5m")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--spec", metavar="FILE", help="read the run from a file such as launch/spec.json instead of flags")
  add("--detach", action="store_true", help="watch from a process in the background")
  add("--dry-run", action="store_true", help="print all commands, and execute none")
  add("--force", action="store_true", help="start a run that check refuses")
  _add_check_flags(parser)


def _add_check_flags(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--host-rate", type=float, metavar="IMAGES", help="measured images per second of one host")


def _add_sweep_flags(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--parallel", type=int, default=1, metavar="N", help="number of runs at the same time")
  parser.add_argument("--retry", action="store_true", help="start failed trials again")
  parser.add_argument("--force", action="store_true", help="start a run that check refuses")


def _add_ls_flags(parser: argparse.ArgumentParser) -> None:
  _add_listing_flags(parser)
  parser.add_argument("--all", action="store_true", help="also show runs of this machine that have ended")
  parser.add_argument("--json", action="store_true", help="print JSON")


def _add_listing_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("--project", help="project of Google Cloud")
  add("--zone", "--zones", dest="zones", type=_split_commas, help="zones of the machines, separated by commas")
  add("--cluster", help="kubectl context of the JobSets")
  add("--namespace", default="default", help="namespace of the JobSets")
  add("--all-users", action="store_true", help="also machines of other owners")


def _add_gc_flags(parser: argparse.ArgumentParser) -> None:
  _add_listing_flags(parser)
  parser.add_argument("--yes", action="store_true", help="delete them")
  parser.add_argument("--force", action="store_true", help="also machines whose run's directory does not answer")
  parser.add_argument("--older-than", help="only machines that are at least this old, such as 2h")


def _add_status_flags(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--watch", action="store_true", help="repeat")
  parser.add_argument("--json", action="store_true", help="print JSON")


def _add_logs_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add("-f", "--follow", action="store_true", help="wait for new lines")
  add("-w", "--worker", default="all", help="number of the worker, or all")
  add("--attempt", type=int, help="number of the attempt; by default the last one")
  add("--grep", default="", help="only lines that contain this text")


def _add_down_flags(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--yes", action="store_true", help="do not ask")
  parser.add_argument("--force", action="store_true", help="delete even if the run's directory does not answer")


def _add_adopt_flags(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("--force", action="store_true", help="also from one who seems to watch")
  parser.add_argument("--yes", action="store_true", help="accept the run that the bucket describes without a question")


def _add_ssh_flags(parser: argparse.ArgumentParser) -> None:
  parser.add_argument("-w", "--worker", type=int, default=0, help="number of the worker; 0")


def _add_render_flags(parser: argparse.ArgumentParser) -> None:
  forms = parser.add_mutually_exclusive_group()
  forms.add_argument("--xpk", action="store_true", help="print xpk's command instead of the JobSet")
  forms.add_argument("--skypilot", action="store_true", help="print SkyPilot's task instead of the JobSet")


_FLAGS = {
  "run": _add_run_flags, "check": _add_check_flags, "sweep": _add_sweep_flags, "ls": _add_ls_flags,
  "gc": _add_gc_flags, "status": _add_status_flags,
  "logs": _add_logs_flags, "ssh": _add_ssh_flags, "render": _add_render_flags,
  "down": _add_down_flags,
  "restart": lambda p: p.add_argument("--fresh-vm", action="store_true", help="use other machines"),
  "adopt": _add_adopt_flags,
  "report": lambda p: p.add_argument("--json", action="store_true", help="print JSON"),
}  # fmt: skip


def _split_commas(text: str) -> tuple[str, ...]:
  return tuple(each for each in text.split(",") if each)


def _parse_pairs(flag: str, texts: Sequence[str] | None) -> dict[str, str]:
  pairs = {}
  for text in texts or ():
    key, equals, value = text.partition("=")
    if not equals or not key:
      raise LaunchError(f"{flag}: {text[:40]!r} is not NAME=VALUE")
    if key in pairs:
      raise LaunchError(f"{flag}: {key} is given twice")
    pairs[key] = value
  return pairs
