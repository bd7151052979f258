"""The command line of `python -m launch`, which flags.USE describes."""

import argparse
import json
import subprocess
import sys
import time

from . import checks, commands, errors, flags, listing, logs, manifests, sweep
from .errors import LaunchError, UnknownError
from .spec import Run
from .states import make_engine


def main(words: list[str]) -> int:
  """Runs a verb, and returns its exit code."""
  args, command = flags.parse_flags(words)
  if args.verb in flags.SPECIFIED:
    run = flags.build_run(args, command)
    if args.verb == "run":
      return commands.run(args, run)
    if args.verb == "check":
      code = checks.get_refusal_code(checks.check_run(run, args.price, args.host_rate))
      print(
        "check: this run would be refused, for the reasons above" if code else "check: this run would be started",
        flush=True,
      )
      return code
    if args.verb == "render":
      return print_rendered(args, run)
    return sweep.sweep(commands.set_default_cluster(run), args)
  if args.verb == "ssh":
    return ssh(args, command)
  if args.verb == "report":
    return report(args)
  alone = {"ls": listing.ls, "gc": listing.gc, "status": listing.status, "logs": logs.logs, "stop": commands.stop,
           "down": commands.down, "restart": commands.restart, "adopt": commands.adopt}  # fmt: skip
  return alone[args.verb](args)


def print_rendered(args: argparse.Namespace, run: Run) -> int:
  """Prints the text of a run for another launcher."""
  if run.backend not in ("qr", "gke") or (run.backend == "qr" and not (args.xpk or args.skypilot)):
    raise LaunchError(
      f"render: --backend={run.backend} cannot be rendered. JobSets are for gke, --xpk and --skypilot for gke and qr; "
      "python -m launch run … --dry-run prints the commands of launch itself"
    )
  if args.xpk or args.skypilot:
    print(manifests.build_xpk_command(run) if args.xpk else manifests.build_skypilot_task(run), end="")
  else:
    print(manifests.format_jobset(run, 1, int(time.time() + run.max_hours * 3600)), end="")
  return errors.DONE


def ssh(args: argparse.Namespace, command: list[str]) -> int:
  """Runs a command on a worker, or opens a shell there. Returns the exit code."""
  event_log = commands.confirm_run(commands.open_event_log(args.name, args.workdir))
  run, attempt = event_log.run, event_log.state.attempt
  if not 0 <= args.worker < run.workers:
    raise LaunchError(f"--worker: {args.worker}; allowed: 0 to {run.workers - 1}")
  if not attempt:
    raise LaunchError(f"{run.name}: there is no attempt yet")
  return subprocess.run(make_engine(run).build_shell_command(attempt, args.worker, command)).returncode


def report(args: argparse.Namespace) -> int:
  """Prints how the time of a run was spent."""
  event_log = commands.open_event_log(args.name, args.workdir)
  table = logs.compute_goodput(event_log.run, event_log.events)
  print(json.dumps(table, indent=1) if args.json else logs.format_goodput(table))
  return errors.DONE


def run_command_line() -> int:
  """Runs the command line, and returns its exit code. An error is one line."""
  sys.stdout, sys.stderr = errors.PrintableStream(sys.stdout), errors.PrintableStream(sys.stderr)
  errors.catch_interruptions()
  try:
    return main(sys.argv[1:])
  except LaunchError as error:
    print(f"error: {error}", file=sys.stderr)
    return error.code
  except UnknownError as error:
    print(f"error: no answer: {error}; try again", file=sys.stderr)
    return errors.UNKNOWN
  except KeyboardInterrupt:
    errors.ignore_interruptions()
    print("interrupted", file=sys.stderr)
    return commands.report_interruption(sys.argv[1:])
  except BrokenPipeError:  # such as `| head`
    sys.stdout = None
    return errors.DONE
  except OSError as error:  # of this machine, such as too many open files
    print(f"error: {error.filename or 'this machine'}: {error.strerror}; try again", file=sys.stderr)
    return errors.UNKNOWN


if __name__ == "__main__":
  sys.exit(run_command_line())
