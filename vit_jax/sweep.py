"""Runs the trials of a config, and can select the best setting and measure it on test.

A config defines its trials by `sweep()`. The command line is:

    python -m vit_jax.sweep --config=finetune:cifar100 --workdir=runs/sweep \\
        --config.init.from=B_16.npz [--parallel=N]

Each trial runs as `vit_jax.train`. With --parallel, several trials run at the same time on disjoint devices. If the
sweep has a metric that decides, such as `decide="val/top1"`, trials are not measured on test. Only the best setting is
measured on test, once. If the sweep also has `final` changes, the best setting is first trained again. A list of trials
without `decide` selects no setting, and each trial is measured like any other run. The same command continues a sweep
that was stopped or killed. A failed trial is recorded with its error and is not repeated without --retry.

--render prints the trials as commands for other launchers. When all trials have ended, it also prints the final runs.
It writes nothing, except the commits of weights on the Hugging Face Hub to sweep.json.
--launch="--backend=qr --tpu=v3-8 ..." prints commands of `launch`. If such trials share the workdir, the sweep uses
their results. --collect only collects finished results. `python -m launch sweep` does all of this.

The workdir contains sweep.json, sweep.md (the table), sweep.png (the settings, or the importance of each key), and a
log and a workdir for each trial. Exit codes: 0 finished, 2 user error or no trial to choose from, 42 stopped on
request, 130 Ctrl-C.
"""

import argparse
import json
import re
import shlex
from collections.abc import Sequence

from vit_jax import cli, runtime
from vit_jax.data import outputs
from vit_jax.runtime import print_line
from vit_jax.schema import ConfigError, format_amount
from vit_jax.sweeps import execution, pool, record, search
from vit_jax.sweeps.study import Study, check_data, load_sweep
from vit_jax.sweeps.trials import Trial


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags, checks every trial and runs the sweep.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  args, study = parse_flags(words)
  trials = study.make_trials()
  study.check(trials)
  if not (study.workdir / "sweep.json").exists():
    for trial in trials:
      outputs.check_output_location(study.workdir, json.loads(trial.config or "{}"), "--workdir")
  if args.render:
    search.store_pins(study, trials)
    print_commands(study, trials, args.decide, args.launch)
    return
  if args.collect:
    search.collect_results(study, trials, args.decide)
    return
  groups = pool.divide_devices(args.parallel)
  check_data(trials, study.sweep.decide, study.sweep.over)
  print_line(f"{format_amount(len(trials), 'different trial')} of the {len(study.sweep.trials)} listed")
  search.run_study(study, trials, groups, args.retry)
  from vit_jax.reports import report  # drawing libraries are slow to import

  report.make_final_report(study.workdir)


def parse_flags(words: Sequence[str] | None) -> tuple[argparse.Namespace, Study]:
  """Parses the flags.

  Args:
    words: arguments, or None for those of the command line.

  Returns:
    The flags and the study.

  Raises:
    ConfigError: a flag or the config is invalid, or the workdir is in use.
  """
  parser = cli.Parser("sweep", __doc__)
  parser.add_argument(
    "--config", required=True, help="file with a sweep(), or file:argument; --config.KEY=VALUE changes all trials"
  )
  parser.add_argument(
    "--workdir", required=True, type=cli.parse_workdir, help="directory of the sweep; one sweep per directory"
  )
  parser.add_argument("--parallel", type=int, default=1, metavar="N", help="trials at a time, on disjoint devices")
  parser.add_argument("--render", action="store_true", help="print the commands of all trials without running them")
  parser.add_argument(
    "--launch", metavar="FLAGS", help="with --render: options for the printed `python -m launch run` commands"
  )
  parser.add_argument("--collect", action="store_true", help="collect trials that finished elsewhere, without training")
  parser.add_argument(
    "--decide",
    action="store_true",
    help="with --render or --collect: select the best setting although some trials are not finished",
  )
  parser.add_argument("--retry", action="store_true", help="try failed and diverged trials again")
  args = parser.parse(words)
  if args.decide and not (args.render or args.collect):
    raise ConfigError("--decide: only valid with --render or --collect. A sweep itself knows which trials have failed")
  if args.launch is not None and not args.render:
    raise ConfigError("--launch: only valid with --render. Use `python -m launch sweep` to run a sweep")
  if args.parallel < 1:
    raise ConfigError(f"--parallel: {args.parallel}. Allowed: 1 and more")
  if args.workdir.exists() and not args.workdir.is_dir():
    raise ConfigError(f"--workdir: {args.workdir} is a file. Name a directory")
  if not args.render and (problem := runtime.check_creatable(args.workdir)):
    raise ConfigError(problem)
  return args, Study(args.config, args.overrides, load_sweep(args.config), args.workdir, record.read_pins(args.workdir))


def print_commands(study: Study, trials: Sequence[Trial], decide: bool = False, launch: str | None = None) -> None:
  """Prints the command of each trial, and of the final runs after all trials have ended.

  An impossible trial is printed as a comment with the reason.

  Args:
    study: the study.
    trials: its trials.
    decide: whether to select the best of the finished trials although other trials are not finished.
    launch: flags of `python -m launch run`, to print commands that start each trial under the name of the workdir.
  """
  name = re.sub("[^a-z0-9]+", "-", study.workdir.name.lower()).strip("-") or "sweep"
  for letter, runs in (("t", trials), ("f", search.select_last_runs(study, trials, decide)[1])):
    for i, trial in enumerate(runs):
      if trial.config is None:
        print_line(f"# impossible: {trial}: {trial.error}")
        continue
      final = letter == "f" and not study.sweep.final
      command = execution.build_evaluate_command(trial) if final else execution.build_train_command(study.file, trial)
      if launch is not None:
        start = ["python", "-m", "launch", "run", f"{name}-{letter}{i:02d}", *shlex.split(launch), "--"]
        command = [*start, *command[2:]]
      print_line(shlex.join(command))


if __name__ == "__main__":
  cli.run_verb(main)
