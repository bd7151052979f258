"""The command line of `launch`, and the run that it asks for."""

import argparse
import dataclasses
import difflib
import os
import shlex
from collections.abc import Sequence

from launch import spec, storage, tpus
from launch.errors import LaunchError

USE = """Starts runs on TPU VMs, GKE, your own hosts or this machine, keeps them alive, and leaves nothing that costs.

  python -m launch run vit-s16 --backend=qr --tpu=v3-32 --zone=europe-west4-a --project=my-project \\
      -- vit_jax.train --config=configs/vit_s16_i1k.py --config.data.path=gs://my-bucket/data \\
                       --workdir=gs://my-bucket/runs/vit-s16
  python -m launch ls | status NAME | logs NAME -f | stop NAME | down NAME | gc

docs/pods.md has the way from an empty project to a run, and what to do at each exit code."""
# What each verb is for: its help.
VERBS = {
  "run": "check, start and watch a run; the same command goes on with one that has ended",
  "check": "say what run would refuse: config, memory, batch, input, bucket, hours and cost",
  "ls": "all machines that carry our labels, and the runs of this machine that are not over",
  "status": "attempts, workers and progress of a run",
  "logs": "what its programs print",
  "stop": "let the programs save and end, and keep the machines",
  "down": "delete all that was made for a run, and see that it is gone",
  "gc": "delete machines that are expired, dead or nobody's; without --yes only list them",
  "ssh": "run a command on a worker, or open a shell there",
  "restart": "start the programs again, on the same machines or others",
  "adopt": "watch a run that another machine, or nobody, has watched",
  "report": "where the time went",
  "render": "print the JobSet, the xpk command or the SkyPilot task of a run, and do nothing",
  "sweep": "run the trials of a sweep as runs, so many at once",
}
SPECIFIED = ("run", "check", "render", "sweep")  # that take a run, and not only its name
_CAPACITIES = {
  "spot": "may be taken away at any time, and costs least; the default",
  "reserved": "of a reservation of the project",
  "on-demand": "kept until it is deleted",
  "flex-start": "waits for its turn, then is kept for up to a week",
}
# Words of the name of a variable whose value is nobody else's business; a path is not.
_SECRET = {"KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY"}
_PATH = {"FILE", "PATH", "DIR"}
_LONGEST = 2**23  # bytes of a file of --spec, whose arguments may have 2**20


class Parser(argparse.ArgumentParser):
  """Whose mistakes are LaunchErrors."""

  def error(self, message: str):
    """One line."""
    raise LaunchError(f"{message}; {self.prog} --help says what there is")


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
  """(flags, the program's words behind --)."""
  words = list(words)
  command = []
  if "--" in words:
    at = words.index("--")
    words, command = words[:at], words[at + 1 :]
  parser = Parser("python -m launch", description=USE, formatter_class=argparse.RawDescriptionHelpFormatter)
  verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
  flags = {}
  for verb, text in VERBS.items():
    behind = (
      "[FLAGS] -- PROGRAM [ARGUMENTS]" if verb in SPECIFIED else "[FLAGS] [-- COMMAND]" if verb == "ssh" else None
    )
    usage = behind and f"python -m launch {verb} NAME {behind}"
    sub = verbs.add_parser(verb, help=text, description=text, usage=usage, allow_abbrev=False)
    if verb not in ("ls", "gc"):
      sub.add_argument("name", metavar="NAME", help="of the run: small letters, digits and dashes")
    if verb in SPECIFIED:
      _run_flags(sub)
    else:
      sub.add_argument("--workdir", default="", help="of the run, where this machine knows nothing of it")
    _FLAGS.get(verb, lambda _: None)(sub)
    flags[verb] = list(sub._option_string_actions)
  args, unknown = parser.parse_known_args(words)
  if unknown:
    raise LaunchError(_unknown(args.verb, unknown[0], flags[args.verb], words, command))
  if command and args.verb not in (*SPECIFIED, "ssh"):
    raise LaunchError(f"{args.verb}: there is nothing to run; leave out what is behind --")
  return args, command


def _unknown(verb, word, flags, words, command):
  """What to write in place of a word that is no flag."""
  takes = verb in (*SPECIFIED, "ssh")
  if not word.startswith("-"):
    at = words.index(word)
    if not takes or command:
      return f"{verb}: {word!r} is one word too many; python -m launch {verb} --help says what there is"
    right = shlex.join(["python", "-m", "launch", *words[:at]]), shlex.join(words[at:])
    return f"{verb}: {word!r} is a program, and programs are behind --; write\n  {right[0]} -- {right[1]}"
  flag = word.partition("=")[0]
  near = difflib.get_close_matches(flag, flags, 1, 0.6)
  behind = "; flags of the program go behind --" if takes else ""
  return f"{verb}: there is no flag {flag}{f'; did you mean {near[0]}?' if near else ''}{behind}"


def run_of(args: argparse.Namespace, command: Sequence[str]) -> spec.Run:
  """The run that the flags ask for. LaunchError for what cannot be."""
  if getattr(args, "spec", None):
    return _written(args, command)
  if not args.backend:
    raise LaunchError(f"--backend: missing; allowed: {', '.join(spec.BACKENDS)}")
  if not command:
    raise LaunchError(f"{args.verb}: nothing to run; write -- vit_jax.train --config=… --workdir=… behind the flags")
  module, *words = command
  if args.backend == "local":
    words, args.workdir = _with_absolute_workdir(words), _absolute(args.workdir)
  workdir = spec.workdir_of(words)
  if workdir and args.workdir and workdir != args.workdir:
    raise LaunchError(f"--workdir: {args.workdir!r} before -- and {workdir!r} behind it; leave out one")
  names = {field.name for field in dataclasses.fields(spec.Run)}
  values = {key: value for key, value in vars(args).items() if key in names and value is not None}
  values |= {"module": module, "args": tuple(words), "workdir": workdir or args.workdir or ""}
  values |= {"env": _pairs("--env", args.env), "secrets": _pairs("--secret", args.secrets)}
  _refuse_secrets(args.backend, values["env"])
  limits = {key: spec.duration(text) for key, text in _pairs("--limit", args.limit).items()}
  if args.queue_timeout:
    limits["queue"] = spec.duration(args.queue_timeout)
  if unknown := limits.keys() - {field.name for field in dataclasses.fields(spec.Limits)}:
    allowed = ", ".join(field.name for field in dataclasses.fields(spec.Limits))
    raise LaunchError(f"--limit: there is no {sorted(unknown)[0]!r}; allowed: {allowed}")
  return spec.checked(spec.Run(**values | {"limits": spec.Limits(**limits)}))


def _absolute(workdir: str) -> str:
  """Returns a folder of this machine as an absolute path; a bucket and "" as they are."""
  return workdir if not workdir or "://" in workdir or workdir.startswith("-") else os.path.abspath(workdir)


def _with_absolute_workdir(words: Sequence[str]) -> list[str]:
  """Returns the program's words with an absolute --workdir: the program runs in a copy of the code, not here."""
  result = list(words)
  for i, word in enumerate(words):
    if word.startswith("--workdir="):
      result[i] = f"--workdir={_absolute(word.partition('=')[2])}"
    elif word == "--workdir" and i + 1 < len(words):
      result[i + 1] = _absolute(words[i + 1])
  return result


def _written(args, command):
  """The run of a file, which is the user's own: whoever else may write to it would have commands run."""
  try:
    content, status = storage.regular(args.spec, _LONGEST + 1)
    if len(content) > _LONGEST:
      raise LaunchError(f"--spec: {args.spec} has more than {_LONGEST:,} bytes, and is no run")
    run = spec.loads(content.decode())
  except (OSError, UnicodeDecodeError) as error:
    why = error.strerror if isinstance(error, OSError) else "it is no text"
    raise LaunchError(f"--spec: {args.spec} cannot be read: {why}") from None
  if status.st_uid != os.getuid() or status.st_mode & 0o077:
    mine = "" if status.st_uid == os.getuid() else "copy it, and "
    raise LaunchError(f"--spec: {args.spec} must be yours, and others may not read or change it ({mine}chmod 600 it)")
  fields = {field.name for field in dataclasses.fields(spec.Run)} - {"name"}
  others = [spec.flag(key) for key in fields if getattr(args, key, None)]
  if command or args.name != run.name or others or args.limit or args.queue_timeout:
    raise LaunchError(
      f"--spec: {args.spec} is all of the run {run.name}; write run {run.name} --spec=…, and no more of it"
    )
  if (workdir := spec.workdir_of(run.args)) and workdir != run.workdir:
    raise LaunchError(f"--spec: {args.spec} has the workdir {run.workdir!r}, and --workdir={workdir} among args; "
                      "write the same")  # fmt: skip
  _refuse_secrets(run.backend, run.env)
  return run


def _refuse_secrets(backend, env):
  """LaunchError for a variable that looks like a secret: all who may read the bucket read the run."""
  for key in env:
    words = key.upper().split("_")
    if _SECRET & {*words} and words[-1] not in _PATH and key != "GOOGLE_APPLICATION_CREDENTIALS":
      there = "k8s:NAME/KEY" if backend == "gke" else "file:/path/on/the/worker"
      raise LaunchError(
        f"--env: {key} looks like a secret, and its value would be in the bucket and in the shell's history; write "
        f"where it is: --secret {key}=projects/P/secrets/NAME/versions/1, or {key}={there}"
      )


def _run_flags(parser):
  add = parser.add_argument
  zones = ", ".join(f"{kind.zones[0]} for {name}" for name, kind in tpus.GENERATIONS.items())
  add("--backend", help=f"{', '.join(spec.BACKENDS)}; must be said")
  add("--tpu", help="a slice: v3-32, v5e-16")
  add("--slices", type=int, help="how many of them; 1")
  add("--zone", "--zones", dest="zones", type=_commas, help="of --backend=qr: where, or several with commas between, "
      f"tried in turn; by default {zones}")  # fmt: skip
  add("--project", help="of Google Cloud")
  add("--workdir", default="", help="where the run's files go, of a program that has no such flag itself")
  capacities = parser.add_mutually_exclusive_group()
  for capacity in spec.CAPACITIES:
    text = _CAPACITIES[capacity]
    capacities.add_argument(f"--{capacity}", dest="capacity", action="store_const", const=capacity, help=text)
  add("--queue-timeout", help="how long to wait for capacity; 6h")
  add(
    "--max-hours", type=float, help="of machines, all attempts together, after which they end themselves; 24 in a cloud"
  )
  add("--max-failures", type=int, help="tries without a new checkpoint; 3")
  add("--runtime-version", help="of the TPU VM; by the slice")
  add("--network"), add("--subnetwork"), add("--service-account")
  add("--internal-ips", action="store_true", default=None, help="no address outside; needs Cloud NAT")
  add("--hosts", type=_commas, help="of --backend=hosts, as ssh takes them, with commas between")
  add("--processes", type=int, help="of --backend=local; 1")
  add("--image", help="of --backend=gke, by its digest; it has Python and what the run needs, not the code")
  add("--queue", help="of Kueue"), add("--namespace"), add("--cluster", help="kubectl's context")
  add("--env", action="append", metavar="NAME=VALUE", help="a variable of the program")
  add("--secret", dest="secrets", action="append", metavar="NAME=WHERE", help="one whose value stays where it is: "
      "projects/P/secrets/S/versions/3, k8s:NAME/KEY, file:/path")  # fmt: skip
  add("--python", help="an interpreter on the workers that has what the run needs; by default one is made")
  add(
    "--keep-on-fail", action="store_true", default=None, help="leave the machines after a failure; they go on to cost"
  )
  add("--owner", help="by default who you are here")
  add("--limit", action="append", metavar="NAME=DURATION", help="a time limit of launch/limits.py, such as silence=5m")


def _flags_of_run(parser):
  add = parser.add_argument
  add("--spec", metavar="FILE", help="a run as a launch/spec.json has it, in place of all flags of a run and of --")
  add("--detach", action="store_true", help="watch from a process in the background")
  add("--dry-run", action="store_true", help="print what would be asked for, and touch nothing")
  add("--force", action="store_true", help="start what check refuses")
  _prices(parser)


def _prices(parser):
  parser.add_argument("--price", type=float, help="of a chip for an hour, in any currency")
  parser.add_argument("--host-rate", type=float, metavar="IMAGES", help="a second, that one host was measured to make")


def _of_sweep(parser):
  parser.add_argument("--parallel", type=int, default=1, metavar="N", help="runs at once")
  parser.add_argument("--retry", action="store_true", help="start failed trials again")
  parser.add_argument("--force", action="store_true", help="start what check refuses")


def _of_ls(parser):
  _of_gc_and_ls(parser)
  parser.add_argument("--all", action="store_true", help="also runs of this machine that have ended")
  parser.add_argument("--json", action="store_true")


def _of_gc_and_ls(parser):
  add = parser.add_argument
  add("--project"), add("--zone", "--zones", dest="zones", type=_commas)
  add("--cluster", help="kubectl's context"), add("--namespace", default="default")
  add("--all-users", action="store_true", help="not only yours")


def _of_gc(parser):
  _of_gc_and_ls(parser)
  parser.add_argument("--yes", action="store_true", help="delete them")
  parser.add_argument("--older-than", help="only what was made so long ago: 2h")


def _of_status(parser):
  parser.add_argument("--watch", action="store_true", help="again and again")
  parser.add_argument("--json", action="store_true")


def _of_logs(parser):
  add = parser.add_argument
  add("-f", "--follow", action="store_true", help="and what comes")
  add("-w", "--worker", default="all", help="a number, or all")
  add("--attempt", type=int, help="the last one")
  add("--grep", default="", help="only lines with this text")


def _of_ssh(parser):
  parser.add_argument("-w", "--worker", type=int, default=0)


def _of_render(parser):
  forms = parser.add_mutually_exclusive_group()
  forms.add_argument("--xpk", action="store_true", help="xpk's command in place of the JobSet")
  forms.add_argument("--skypilot", action="store_true", help="SkyPilot's task in place of the JobSet")


_FLAGS = {
  "run": _flags_of_run, "check": _prices, "sweep": _of_sweep, "ls": _of_ls, "gc": _of_gc, "status": _of_status,
  "logs": _of_logs, "ssh": _of_ssh, "render": _of_render,
  "down": lambda p: p.add_argument("--yes", action="store_true", help="do not ask"),
  "restart": lambda p: p.add_argument("--fresh-vm", action="store_true", help="on other machines"),
  "adopt": lambda p: p.add_argument("--force", action="store_true", help="also from one who seems to watch"),
  "report": lambda p: p.add_argument("--json", action="store_true"),
}  # fmt: skip


def _commas(text):
  return tuple(each for each in text.split(",") if each)


def _pairs(flag, texts):
  pairs = {}
  for text in texts or ():
    key, equals, value = text.partition("=")
    if not equals or not key:
      raise LaunchError(f"{flag}: {text[:40]!r} has no NAME=VALUE")
    if key in pairs:
      raise LaunchError(f"{flag}: {key} is given twice")
    pairs[key] = value
  return pairs
