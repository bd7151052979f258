"""Rates of steady steps, and the account of a run's time over attempts that ended in any way."""

import json
import time

import pytest

from vit_jax.training import goodput
from vit_jax.training.goodput import GoodputTracker


class Time:
  """A `time` that passes only where a test sleeps."""

  def __init__(self):
    self.seconds = 1_000_000.0

  def time(self):
    return self.seconds

  perf_counter = time

  def sleep(self, seconds):
    self.seconds += seconds


@pytest.fixture
def timed(monkeypatch):
  """Its seconds are exact, on any machine."""
  monkeypatch.setattr(goodput, "time", Time())
  return goodput.time


def work(timer, name, seconds):
  with timer.phase(name):
    goodput.time.sleep(seconds)


def total(account):
  """The sum of all kinds of seconds."""
  return sum(value for name, value in account.items() if name not in ("goodput", "attempts", goodput.BETWEEN))


def test_rates_leave_out_what_is_no_step_s_and_start_with_the_second_lap(timed):
  timer = GoodputTracker()
  timer.resume({"images": 100, "seconds": 1.0})
  assert timer.measure_lap(50) == {}
  assert timer.rate == 100
  with timer.phase("step"):
    timed.sleep(3)
    work(timer, "data", 2)
    work(timer, "save", 50)
  rates = timer.measure_lap(50)
  assert rates == {"images_per_second": 10, "data_wait": 0.4}
  assert timer.images == 150


def test_a_clock_without_a_whole_lap_has_no_rate():
  timer = GoodputTracker()
  timer.measure_lap(0)
  assert timer.rate is None


def test_images_in_no_time_have_no_rate():
  timer = GoodputTracker()
  timer.resume({"images": 64, "seconds": 0.0})
  assert timer.rate is None


def test_a_resumed_run_adds_the_seconds_of_both_parts(timed):
  first = GoodputTracker()
  work(first, "compile", 2)
  first.stop()
  work(first, "save", 20)
  assert first.train_seconds == 2
  second = GoodputTracker()
  second.resume(first.get_counts())
  work(second, "step", 3)
  assert second.train_seconds == 5
  over = GoodputTracker()
  over.resume(second.get_counts(), running=False)
  work(over, "evaluation", 7)
  assert over.train_seconds == 5


def test_every_second_is_of_one_phase_also_where_an_error_ends_it(timed):
  timer = GoodputTracker(start_time=timed.time() - 1)
  with pytest.raises(KeyError), timer.phase("step"):
    timed.sleep(8)
    work(timer, "data", 3)
    with timer.phase("save"):
      timed.sleep(2)
      raise KeyError
  timer.stop()
  timed.sleep(6)
  account = timer.goodput()
  assert total(account) == 20
  assert account["training_prep"] == 1
  assert account["data_loading_sync"] == 3
  assert account["unproductive_checkpoint_save_time"] == 2
  assert account["other"] == 6
  assert account["goodput"] == 8 / 20


def test_the_account_is_that_of_all_attempts_and_names_what_a_kill_undid(timed, tmp_path):
  first = GoodputTracker(tmp_path / "goodput.json")
  with first.phase("step"):
    timed.sleep(5)
    with first.phase("save"):
      saved = first.get_counts()
    timed.sleep(10)
    first.write()  # at a line of the log; then it is killed
    timed.sleep(7)
  second = GoodputTracker(tmp_path / "goodput.json")
  timed.sleep(1)
  work(second, "restore", 4)
  second.resume(saved)
  work(second, "step", 30)
  account = second.goodput()
  assert account["attempts"] == 2
  assert account["steps"] == 5 + 30
  assert account[goodput.LOST] == 10
  assert account[goodput.BETWEEN] == 7
  assert total(account) == 5 + 10 + 1 + 4 + 30
  third = GoodputTracker(tmp_path / "goodput.json")
  third.resume({})  # no checkpoint can be read: all steps were in vain
  assert third.goodput()["steps"] == 0


def test_an_account_of_thousands_of_attempts_is_small_and_forgets_no_second(timed, tmp_path):
  file = tmp_path / "goodput.json"
  now = timed.time()
  for number in range(3 * goodput.KEPT):
    timer = GoodputTracker(file, start_time=now - 10 * (3 * goodput.KEPT - number))  # each 10 s after the one before
    timer._seconds["start"] = 4.0
    timer.write()
    size = file.stat().st_size
    if number == goodput.KEPT:
      full = size
  assert size < 1.1 * full
  account = timer.goodput()
  assert account["attempts"] == 3 * goodput.KEPT
  assert account["training_prep"] == pytest.approx(4 * account["attempts"])
  assert account[goodput.BETWEEN] == pytest.approx(6 * (account["attempts"] - 1))


def test_an_account_is_read_whether_or_not_its_attempts_say_their_step(timed, tmp_path):
  file = tmp_path / "goodput.json"
  timer = GoodputTracker(file)
  work(timer, "step", 5)
  timer.write()
  account = json.loads(file.read_text())
  assert account["attempts"][0].keys() == {"began", "waited", "seconds"}
  account["attempts"][0]["step"] = 7  # as it was written before
  file.write_text(json.dumps(account))
  assert GoodputTracker(file).goodput()["attempts"] == 2


@pytest.mark.parametrize(
  "text",
  ["", "{", "[1]", "3", '{"older": null}', "[" * 100_000, '{"older": {"attempts": 1, "waited": NaN, "seconds": {}}}'],
)
def test_an_account_that_cannot_be_read_begins_anew(tmp_path, caplog, text):
  file = tmp_path / "goodput.json"
  file.write_text(text)
  timer = GoodputTracker(file)
  assert timer.goodput()["attempts"] == 1
  assert "time accounting" in caplog.text
  timer.write()
  assert len(json.loads(file.read_text())["attempts"]) == 1


def test_nothing_is_written_into_a_folder_that_took_the_place(tmp_path):
  timer = GoodputTracker(tmp_path / "run/goodput.json")
  (tmp_path / "run").rename(tmp_path / "moved")
  (tmp_path / "run").mkdir()
  with pytest.raises(FileNotFoundError, match="the workdir no longer exists"):
    timer.write()
  timer.close()
  assert not list((tmp_path / "run").iterdir())


def test_bytes_that_are_no_text_begin_a_new_account(tmp_path):
  (tmp_path / "goodput.json").write_bytes(b"\xff\xfe\xff")
  assert GoodputTracker(tmp_path / "goodput.json").goodput()["attempts"] == 1


def test_newcomer_3_each_speed_states_what_it_includes(timed):
  timer = GoodputTracker()
  work(timer, "compile", 20.0)
  timer.measure_lap(0)
  for name, seconds in (("step", 7.0), ("data", 1.0), ("save", 2.0), ("evaluation", 3.0)):
    work(timer, name, seconds)
  timer.measure_lap(440)
  lines = [" ".join(line.split()) for line in goodput.format_summary(timer.train_seconds, timer.rate)]
  assert lines == [
    "training 33.0 s compilation, steps, evaluations and saves",
    "images a second 55 steps and waiting for data, without the first step",
  ]
  assert timer.train_seconds == 20 + 7 + 1 + 2 + 3 and timer.rate == 440 / (7 + 1)
  assert len(goodput.format_summary(33.0, None)) == 1 and "  2.5  " in goodput.format_summary(33.0, 2.5)[1]


def test_the_table_has_a_line_for_what_took_time():
  account = {"goodput": 0.75, "attempts": 2, "steps": 75.0, "data_loading_sync": 0.01, goodput.LOST: 25.0}
  account[goodput.BETWEEN] = 3.0
  first, *rows = goodput.format_goodput(account)
  assert "75.00%   of 100.0 s in 2 attempts, 3.0 s between them" in first
  assert [row.split() for row in rows] == [["step", "75.0", "s"], ["lost", "steps", "25.0", "s"]]


def test_a_process_knows_when_it_began():
  age = time.time() - goodput.get_program_start()
  assert time.perf_counter() > 0 and 0 <= age < 24 * 3600


def test_f3_an_account_knows_when_its_first_attempt_began(tmp_path):
  file = tmp_path / "goodput.json"
  assert goodput.read_account(file).start_time is None
  for start_time in (1000.0, 2000.0):
    goodput.GoodputTracker(file, start_time).close()
  assert goodput.read_account(file).start_time == 1000.0


DAMAGE = {
  "{": "it is not valid JSON",
  "3.5": "a key is missing or has a value of another type",
  '{"older": [0]}': "a key is missing or has a value of another type",
  '{"older": {"attempts": -1}}': "a number of attempts is invalid",
}


def make_account(start_time):
  """Returns the text of an account with an attempt that started at a time."""
  times = {"waited": 0.0, "seconds": dict.fromkeys(goodput.PHASES, 1.0)}
  return json.dumps({"older": {"attempts": 0, **times}, "attempts": [{"began": start_time, **times}]})


@pytest.mark.parametrize("start_time", [1.79e12, 1e30, -1.0, float("nan"), "1000", True])
def test_attempt_with_an_implausible_start_is_damage(tmp_path, caplog, start_time):
  file = tmp_path / "goodput.json"
  file.write_text(make_account(1.79e9))
  assert goodput.read_account(file).start_time == 1.79e9 and not caplog.text
  file.write_text(make_account(start_time))
  assert goodput.read_account(file)[::3] == (0, None)
  assert "a time is not a number of seconds before the year 2100. The report lacks the times" in caplog.text


@pytest.mark.parametrize("text", DAMAGE)
def test_reading_a_damaged_account_warns_once_in_words(tmp_path, caplog, text):
  file = tmp_path / "goodput.json"
  file.write_text(text)
  assert goodput.read_account(file).attempts == 0
  (record,) = caplog.records
  assert record.getMessage() == f"{file} is damaged: {DAMAGE[text]}. The report lacks the times of this run"
