"""Tests of the files through which workers and the watcher communicate, also after changes by other users."""

import json

import pytest
from hypothesis import given, strategies

from launch.errors import LaunchError, UnknownError
from launch.mailbox import Attempt, Mailbox, Order, WorkerReport
from launch.storage import Disk
from tests.launch import launches


@pytest.fixture
def mailbox(tmp_path):
  return Mailbox(Disk(str(tmp_path)), 2)


def test_stored_values_are_read_again(mailbox):
  attempt = Attempt(launches.run("qr", args=("ä", "$(id)")), 2, "0" * 64, 1_795_300_000)
  mailbox.publish(attempt)
  assert mailbox.read_attempt() == attempt
  assert mailbox.read_order() == Order(try_=1, stop=False)
  mailbox.write_order(Order(3, stop=True))
  assert mailbox.read_order() == Order(3, True)
  report = WorkerReport(1, 3, "exited", exit=42, step=7, tail="ä\n\udcff")
  mailbox.write_report(report)
  ((worker, (found, age)),) = mailbox.read_reports(4).items()
  assert (worker, found) == (1, report) and 0 <= age < 60


def test_pieces_of_a_log_are_in_numeric_order(mailbox):
  for piece in (0, 2, 10, 9, 100, 1):
    mailbox.write_log(1, piece, b"x")
  mailbox.write_log(11, 0, b"of another")
  assert [int(name.rpartition(".")[2]) for name in mailbox.list_pieces(1)] == [0, 1, 2, 9, 10, 100]


def test_attempts_are_separate(tmp_path):
  first, second = (Mailbox(Disk(str(tmp_path)), number) for number in (1, 11))
  first.write_report(WorkerReport(0))
  first.write_order(Order(5))
  assert second.read_reports(1) == {} and second.read_order() == Order()
  with pytest.raises(LaunchError, match="no attempt 11"):
    second.read_attempt()


VALUES = strategies.none() | strategies.booleans() | strategies.integers() | strategies.text() | strategies.lists(
  strategies.integers(), max_size=2
)  # fmt: skip


@pytest.mark.parametrize("kind", [WorkerReport, Order])
@given(data=strategies.data())
def test_changed_file_is_unknown_or_has_the_right_types(tmp_path_factory, kind, data):
  mailbox = Mailbox(Disk(str(tmp_path_factory.getbasetemp() / "changed")), 1)
  good = vars(WorkerReport(0)) if kind is WorkerReport else vars(Order())
  field = data.draw(strategies.sampled_from(sorted(good)))
  content = json.dumps(good | {field: data.draw(VALUES)}).encode()
  mailbox.storage.write("a1/w00.json" if kind is WorkerReport else "a1/order.json", content)
  try:
    found = mailbox.read_report(0)[0] if kind is WorkerReport else mailbox.read_order()
  except UnknownError as error:
    assert "run's directory" in str(error)
  else:
    for name, value in vars(found).items():
      assert isinstance(value, type(good[name])) or (name in ("exit", "clock", "started") and type(value) is int), name


@pytest.mark.parametrize("value", ["1" + "0" * 400, "-1" + "0" * 20, "1e400", "NaN", "9" * 5000])
def test_impossible_number_is_unknown(mailbox, value):
  mailbox.storage.write("a2/order.json", f'{{"try_": {value}}}'.encode())
  mailbox.storage.write("a2/w00.json", f'{{"worker": 0, "clock": {value}}}'.encode())
  for ask in (mailbox.read_order, lambda: mailbox.read_report(0)):
    with pytest.raises(UnknownError):
      ask()


def test_unreadable_report_does_not_hide_other_reports(mailbox):
  for worker in range(3):
    mailbox.write_report(WorkerReport(worker, step=worker))
  mailbox.storage.write("a2/w01.json", b'{"step": 2000000000000000000}')
  assert {w: report.step for w, (report, _) in mailbox.read_reports(4).items()} == {
    0: 0,
    2: 2,
  } and mailbox.unreadable == [1]
  mailbox.write_report(WorkerReport(1))
  assert len(mailbox.read_reports(4)) == 3 and mailbox.unreadable == []


def test_file_name_determines_the_worker_of_a_report(mailbox):
  mailbox.storage.write("a2/w01.json", b'{"worker": 3, "step": 7}')
  assert mailbox.read_report(1)[0] == WorkerReport(1, step=7)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"5", b'{"x": 1}', b"[" * 100_000, b"{", b'[["try_", 1]]'])
def test_foreign_file_is_unknown(mailbox, content):
  for name in ("a2/spec.json", "a2/order.json", "a2/w00.json"):
    mailbox.storage.write(name, content)
  for ask in (mailbox.read_attempt, mailbox.read_order, lambda: mailbox.read_report(0)):
    with pytest.raises((UnknownError, LaunchError)):
      ask()
