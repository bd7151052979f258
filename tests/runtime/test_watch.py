"""Tests of stop requests and of time limits in one process."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from vit_jax import config, runtime
from vit_jax.runtime import watch

PROGRAM = """
import sys, time
from vit_jax import cli, config, runtime
def verb():
  with runtime.Watch(config.Limits(step=0.5, stop=1, compile=60, evaluation=3)) as watch, \\
      watch.phase(sys.argv[1], lambda: "for record 7"):
    print("ready", flush=True)
    {}
    time.sleep(600)
cli.run_verb(verb)
"""

FILL = """import os; os.set_blocking(2, False)
    try:
      while os.write(2, bytes(4096)): pass
    except OSError: os.set_blocking(2, True)"""


def start_program(phase, code="pass", program=PROGRAM):
  """Starts a process and waits until it is inside a phase."""
  process = subprocess.Popen(
    [sys.executable, "-c", program.format(code), phase], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  )
  assert process.stdout.readline() == "ready\n"
  return process


def wait_for_end(process):
  """Returns the exit code, the standard error, and the seconds until the process ended."""
  start_time = time.monotonic()
  text = process.communicate(timeout=240)[1]
  return process.returncode, text, time.monotonic() - start_time


def test_sigterm_raises_at_the_next_poll():
  with runtime.Watch() as watch:
    watch.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(runtime.Preempted, match="SIGTERM") as stop:
      watch.poll()
    assert stop.value.code == 42
    watch.poll()  # only the first poll raises, because the run saves afterwards


@pytest.mark.long
def test_program_stops_if_its_parent_is_killed(tmp_path):
  polls = "[(watch.poll(), time.sleep(0.02)) for _ in range(3000)]"
  child = PROGRAM.format(f"{polls}\n    ").replace("step=0.5", "step=60")
  parent = (
    "import os, subprocess, sys, time\n"
    f"child = subprocess.Popen([sys.executable, '-c', {child!r}, 'step'], stderr=open({str(tmp_path / 'log')!r}, 'w'), "
    "env=os.environ | {'VITJAX_PARENT': str(os.getpid())})\n"
    "print(child.pid, flush=True)\ntime.sleep(600)"
  )
  process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
  lines = {process.stdout.readline(), process.stdout.readline()}
  assert "ready\n" in lines
  process.kill()
  deadline = time.monotonic() + 60
  while "the process that started it has ended" not in (tmp_path / "log").read_text():
    assert time.monotonic() < deadline
    time.sleep(0.05)
  process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name)
def test_program_without_steps_stops_at_once_and_closes_resources(number):
  before, closed = signal.getsignal(number), []
  output = f"{number.name}.*; the same command starts or continues it"
  with (
    pytest.raises(runtime.Stop, match=output) as stop,
    runtime.convert_stop_signals(),
    contextlib.ExitStack() as stack,
  ):
    stack.callback(closed.append, 1)
    os.kill(os.getpid(), number)
    time.sleep(60)
  assert (stop.value.code, closed, signal.getsignal(number)) == (42, [1], before)


@pytest.mark.parametrize("phase", ["data", "evaluation"])
def test_sigterm_interrupts_data_and_evaluation_phases(phase):
  with runtime.Watch() as watch:
    start_time = time.monotonic()
    with pytest.raises(runtime.Preempted), watch.phase(phase):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(30)
    assert time.monotonic() - start_time < 10


def test_ctrl_c_stops_at_a_poll_with_exit_code_130():
  with runtime.Watch() as watch:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(runtime.Preempted, match="Ctrl-C") as stop:
      watch.poll()
    assert stop.value.code == 130


def test_signal_ignored_by_nohup_stays_ignored():
  before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
  try:
    with runtime.Watch() as watch:
      os.kill(os.getpid(), signal.SIGHUP)
      watch.poll()
  finally:
    signal.signal(signal.SIGHUP, before)


def test_sigterm_is_a_stop_request_even_if_the_caller_ignores_it():
  before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
  try:
    with runtime.Watch() as watch:
      os.kill(os.getpid(), signal.SIGTERM)
      with pytest.raises(runtime.Preempted, match="SIGTERM"):
        watch.poll()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
  finally:
    signal.signal(signal.SIGTERM, before)


def test_save_is_not_interrupted():
  with runtime.Watch() as watch:
    with watch.phase("save"):
      os.kill(os.getpid(), signal.SIGTERM)
      time.sleep(0.1)
    with pytest.raises(runtime.Preempted):
      watch.poll()


def test_first_stop_request_sets_the_code_and_message():
  with runtime.Watch() as watch:
    watch.ask(2, "a bad image")
    watch.ask(42, "later")
    with pytest.raises(runtime.Preempted, match="a bad image") as stop:
      watch.poll()
    assert stop.value.code == 2


def test_signal_handlers_are_restored():
  before = signal.getsignal(signal.SIGTERM)
  with runtime.Watch():
    assert signal.getsignal(signal.SIGTERM) != before
  assert signal.getsignal(signal.SIGTERM) == before


def test_evaluations_do_not_change_the_measured_pace_of_steps(monkeypatch):
  now = [1000.0]
  monkeypatch.setattr(watch, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
  made = runtime.Watch()

  def poll(seconds):
    now[0] += seconds
    made.poll()

  with made.phase("step"):
    for _ in range(3):
      poll(30)
    with made.phase("evaluation"):
      for _ in range(100):
        poll(0.1)
    poll(30)
    poll(40)
  assert made.compute_pace("step") == made.compute_pace("data") == 30
  assert made.compute_pace("evaluation") == pytest.approx(0.1)
  assert made.compute_pace("save") == 0


def test_every_phase_has_a_limit():
  assert {"start", "compile", "restore", "step", "evaluation", "save"} < set(vars(config.Limits()))


WITHOUT_STEPS = PROGRAM.replace("evaluation=3)", "evaluation=99), again='starts it again'")


@pytest.mark.heavy
@pytest.mark.parametrize("times", [1, 2])
def test_program_without_checkpoints_stops_without_naming_checkpoints(times):
  # The first Ctrl-C ends the call in C. The second one arrives while Python shuts down, which takes a second here.
  inside_c = (
    "import atexit, ctypes; atexit.register(time.sleep, 1); watch._durations['evaluation'].append(100.0)\n"
    "    ctypes.CDLL(None).sleep(600)"
  )
  process = start_program("evaluation", inside_c, WITHOUT_STEPS)
  time.sleep(0.5)
  for _ in range(times):
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
  code, text, seconds = wait_for_end(process)
  assert code == 130 and seconds < 20
  assert text.strip().endswith("the same command starts it again") and "checkpoint" not in text


def test_message_states_the_effect_of_the_same_command():
  with runtime.Watch(again="starts it again") as watch:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(runtime.Preempted, match=r"Ctrl-C\); the same command starts it again$"):
      watch.poll()


@pytest.mark.long
def test_watch_ends_hanging_phases():
  """Starts all cases at once, each in its own process.

  - a step that does not end
  - a SIGTERM inside C code during compilation
  - a save after a SIGTERM, which takes too long
  - a save during which a SIGTERM arrives
  - a step that does not end, with standard error closed
  - a step that does not end, with standard error full and without a reader
  - a paused evaluation, which ends normally after it continues
  - a save that receives SIGINT repeatedly
  """
  inside_c = "import ctypes; ctypes.PyDLL and ctypes.CDLL(None).sleep(600)"
  stopping = (
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)\n    try: watch.poll()\n    except runtime.Preempted: pass"
  )
  stuck, compiling, saving = start_program("step"), start_program("compile", inside_c), start_program("save", stopping)
  compiling.send_signal(signal.SIGTERM)
  met = start_program("save", inside_c)
  met.send_signal(signal.SIGTERM)
  closed = start_program("step", "import os; os.close(2)")
  full = start_program("step", FILL)
  paused = start_program("evaluation", "time.sleep(1.5); sys.exit(0)")
  paused.send_signal(signal.SIGSTOP)
  twice = start_program("save", inside_c)
  deadline = time.monotonic() + 200
  while twice.poll() is None and time.monotonic() < deadline:
    twice.send_signal(signal.SIGINT)
    time.sleep(0.5)
  code, text, _ = wait_for_end(twice)
  assert code == 130
  assert "twice" in text
  code, text, _ = wait_for_end(compiling)
  assert code == 42
  assert "during compilation; no work is lost" in text
  code, text, _ = wait_for_end(stuck)
  assert code == 43
  assert "no progress for 0.5 s in step (config.limits.step); for record 7" in text
  assert "in verb" in text  # a line of the stack
  code, text, _ = wait_for_end(saving)
  assert code == 42
  assert "config.limits.stop" in text
  assert full.wait(240) == 43  # before its output is read
  assert wait_for_end(closed)[0] == 43
  code, text, _ = wait_for_end(met)
  assert code == 42
  assert "during save, which did not end" in text
  time.sleep(4)
  paused.send_signal(signal.SIGCONT)
  assert wait_for_end(paused)[0] == 0


def test_run_ends_if_the_watchdog_cannot_start(monkeypatch):
  armed = []

  def refuse(thread):
    raise RuntimeError("can't start new thread")

  monkeypatch.setattr(watch.faulthandler, "dump_traceback_later", lambda *words, **named: armed.append((words, named)))
  monkeypatch.setattr(watch.threading.Thread, "start", refuse)
  with pytest.raises(RuntimeError) as error, runtime.Watch(config.Limits(start=7)):
    pytest.fail("nothing may run without a watchdog")
  monkeypatch.undo()
  assert armed == [((7,), {"exit": True, "file": 2})]
  assert runtime.describe_exit(error.value)[0] == 2
