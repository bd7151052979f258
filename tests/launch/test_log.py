"""Tests of the log of a worker, which is sent in pieces without secrets."""

import random
import sys

import pytest

from launch import program
from launch.program import WorkerLog


def read_pieces(file, last=False):
  """Returns all pieces that are not sent yet."""
  content = b""
  while True:
    piece, end = file.read_piece(last)
    if not piece:
      return content
    file.mark_sent(end)
    content += piece


def test_pieces_give_the_whole_file_also_after_a_kill(tmp_path, monkeypatch):
  monkeypatch.setattr(program, "PIECE", 1000)
  text = bytes(random.Random(0).randbytes(12_345))
  file = WorkerLog(tmp_path / "log")
  (tmp_path / "log").write_bytes(text[:7000])
  sent = read_pieces(file)
  (tmp_path / "log").write_bytes(text)
  again = WorkerLog(tmp_path / "log")
  assert sent + read_pieces(again, last=True) == text
  assert all(len(again.read_piece()[0]) <= 1000 for _ in range(3))
  assert (tmp_path / "log").stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("seed", range(20))
def test_secrets_are_hidden_at_all_cuts(tmp_path, monkeypatch, seed):
  generator = random.Random(seed)
  monkeypatch.setattr(program, "PIECE", generator.randint(60, 90))
  secrets = ["hunter2hunter3", "hunter2hunter3-long\nwith a line", "tiny", "ähnlich→geheim"]
  parts = [generator.choice([*secrets, "word ", "\n", "hunter2"]) for _ in range(300)]
  whole = "".join(parts)
  file, sent = WorkerLog(tmp_path / "log"), b""
  file.hide(secrets)
  content, position = whole.encode(), 0
  while position < len(content):
    step = generator.randint(1, 200)
    with open(tmp_path / "log", "ab") as writer:
      writer.write(content[position : position + step])
    position += step
    sent += read_pieces(file)
  sent += read_pieces(file, last=True)
  expected = whole
  for secret in sorted(secrets, key=len, reverse=True):
    expected = expected.replace(secret, "***") if len(secret) >= 8 else expected
  assert sent.decode() == expected
  for secret in secrets:
    assert (secret in file.read_tail(0)) == (
      (secret == "tiny" and "tiny" in expected.splitlines()[-1]) or secret == "tiny"
    )
  assert file.redact(f"a {secrets[0]} b") == "a *** b"


def test_output_far_behind_is_dropped_with_a_note(tmp_path, monkeypatch):
  monkeypatch.setattr(program, "PIECE", 100)
  monkeypatch.setattr(program, "BEHIND", 1000)
  file = WorkerLog(tmp_path / "log")
  (tmp_path / "log").write_text("a" * 5000 + "b" * 100)
  assert read_pieces(file, last=True).decode() == "launch: 5,000 bytes are left out\n" + "b" * 100


def test_excessive_output_fills_neither_the_disk_nor_the_run_directory(tmp_path, monkeypatch):
  monkeypatch.setattr(program, "BEHIND", 2**20)
  monkeypatch.setattr(program, "MOST", 2**21)
  file, sent = WorkerLog(tmp_path / "log"), b""
  file.write("an earlier try " * 1000)
  sent = read_pieces(file, last=True)
  begin = file.begin()
  for number in range(64):
    with open(tmp_path / "log", "ab") as writer:  # like the program, which keeps the file open
      writer.write(bytes([number + 32]) * 2**18)
    file.trim()
    sent += read_pieces(file)
    assert sys.platform != "linux" or (tmp_path / "log").stat().st_blocks * 512 < 2**20 + 3 * 2**18
  assert len(sent) < 2**21 + 2 * 2**18 and b"launch: 2,097,152 bytes of a try; the try has more output" in sent
  end = read_pieces(file, last=True)
  assert end.endswith(b"_" * 2**18) and len(end) < 2**19 and b" bytes are left out\n" in end
  assert file.get_size() == begin + 64 * 2**18 and file.read_tail(begin) == "_" * program.TAIL
  file.begin()
  file.write("the next one")
  assert read_pieces(file).endswith(b"the next one\n")


def test_output_trimmed_before_it_was_sent_is_noted(tmp_path, monkeypatch):
  monkeypatch.setattr(program, "BEHIND", 2**20)
  file = WorkerLog(tmp_path / "log")
  (tmp_path / "log").write_bytes(b"#" * 2**21 + b"~" * 2**18)
  file.trim()
  assert read_pieces(file, last=True) == b"launch: 2,097,152 bytes are left out\n" + b"~" * 2**18


def test_tail_contains_only_one_try(tmp_path):
  file = WorkerLog(tmp_path / "log")
  (tmp_path / "log").write_text("before\n")
  here = file.get_size()
  with open(tmp_path / "log", "a") as writer:
    writer.writelines(f"line {number}\n" for number in range(100))
  assert file.read_tail(here).splitlines() == [f"line {number}" for number in range(60, 100)]
  assert len(file.read_tail(here)) < program.TAIL
  file.write("a word")
  assert file.read_tail(0).splitlines()[-1].endswith("launch: a word")


def test_removed_or_shorter_file_is_not_an_error(tmp_path):
  file = WorkerLog(tmp_path / "log")
  (tmp_path / "log").write_text("abcdef")
  assert read_pieces(file, last=True) == b"abcdef"
  (tmp_path / "log").write_text("xyz")
  assert read_pieces(file, last=True) == b"xyz"
  (tmp_path / "log").unlink()
  assert (file.read_piece(), file.read_tail(0), file.get_size()) == ((b"", 0), "", 0)
