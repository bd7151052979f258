"""Tests of tasks in several processes."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from vit_jax import runtime
from vit_jax.corpora import processes
from vit_jax.schema import ConfigError, enter_key


class Work:
  """Adds one to a numeric task, or fails or stops as a named task requires."""

  def __init__(self, lock):
    self.lock = lock

  def __call__(self, task, say):
    say(task)
    if task == "mistake":
      with enter_key("data"):
        raise ConfigError("wrong", "path")
    if task == "disk":
      raise OSError(28, "No space left on device", "/data/a")
    if task == "die":
      os.kill(os.getpid(), signal.SIGKILL)
    if task == "stand":
      os.kill(os.getpid(), signal.SIGSTOP)
    with self.lock:
      return task + 1, os.getpid()


def collect_results(tasks, count):
  heard = []
  with processes.run_tasks(Work, tasks, count, lambda task, words: heard.append((task, words))) as done:
    made = dict(done)
  assert sorted(heard) == [(task, task) for task in tasks]
  return made


def run_all(tasks, count, heard=lambda *_: None):
  with processes.run_tasks(Work, tasks, count, heard, "task {}".format) as done:
    return list(done)


def test_single_process_runs_in_the_caller():
  assert collect_results(range(5), 1) == {task: (task + 1, os.getpid()) for task in range(5)}
  with pytest.raises(ConfigError, match=r"data\.path: wrong"):
    run_all(["mistake"], 1)


@pytest.mark.heavy
def test_worker_error_keeps_its_place_and_number():
  with pytest.raises(ConfigError, match=r"data\.path: wrong"):
    run_all(["mistake"], 2)
  with pytest.raises(OSError, match="No space left") as error:
    run_all(["disk"], 2)
  assert (error.value.errno, error.value.filename) == (28, "/data/a")


@pytest.mark.heavy
def test_workers_run_each_task_once_and_a_killed_worker_is_reported():
  made = collect_results(range(9), 2)
  assert [made[task][0] for task in range(9)] == list(range(1, 10))
  assert len({process for _, process in made.values()}) == 2 and os.getpid() not in dict(made.values())
  with pytest.raises(
    runtime.Stop, match=r"was ended by SIGKILL; the same command continues\. If memory ran out"
  ) as stop:
    run_all(["die", 1], 2)
  assert stop.value.code == runtime.EXIT_PEER


@pytest.mark.heavy
def test_stopped_worker_is_named_and_killed_at_the_limit(monkeypatch, capsys):
  def heard(task, words):  # the task has started and stops now
    for name, seconds in (("LOOK", 0.05), ("QUIET", 0.2), ("LIMIT", 0.5)):
      monkeypatch.setattr(processes, name, seconds)

  silence = r"worker process \d+ has not reported for"
  output = rf"^{silence} 0.5 s while it processed task stand. It is killed \(SIGKILL\), .*same command continues"
  with pytest.raises(runtime.Stop, match=output) as stop:
    run_all(["stand"], 2, heard)
  assert stop.value.code == runtime.EXIT_HANG
  note = rf"note: {silence} 0.2 s while it processed task stand. It is killed after 0.5 s\n"
  assert re.fullmatch(note, capsys.readouterr().out)
  assert not multiprocessing.active_children()


SLEEP = """
import sys, time
from vit_jax.corpora import processes
class Work:
  def __init__(self, lock): pass
  def __call__(self, task, say):
    import os
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)
if __name__ == "__main__":
  with processes.run_tasks(Work, [1, 2], 2, print) as done:
    list(done)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_workers_end_if_their_program_is_killed(tmp_path):
  (tmp_path / "sleep.py").write_text(SLEEP)
  program = subprocess.Popen([sys.executable, str(tmp_path / "sleep.py")], stdout=subprocess.PIPE, text=True)
  workers = [int(program.stdout.readline()) for _ in range(2)]
  program.kill()
  program.wait()
  for _ in range(100):
    left = [worker for worker in workers if os.path.exists(f"/proc/{worker}") and is_alive(worker)]
    if not left:
      break
    time.sleep(0.1)
  assert not left


def is_alive(process):
  with open(f"/proc/{process}/stat") as file:
    return file.read().rpartition(")")[2].split()[0] != "Z"
