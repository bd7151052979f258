"""A program named kubectl with scripted responses, for tests without the real kubectl and without a server."""

import dataclasses
import json
import pathlib

from tests.launch.scripted import Answer

# The verb and the kind among its words select the responses in their order. The last response stays. The program is in
# sh, which starts in 1 ms.
_PROGRAM = """#!/bin/sh
call=$(mktemp "$0.calls/XXXXXX")
printf '%s\\0' "$@" > "$call"
verb= kind=
for word; do
  case $word in
    -*) ;;
    *) if [ -z "$verb" ]; then verb=$word; elif [ -z "$kind" ]; then kind=$word; fi ;;
  esac
done
if [ "$verb" = create ]; then cat > /dev/null; fi
here="$0.answers/$verb${kind:+.$kind}"
if [ ! -d "$here" ]; then echo "no answer to $verb $kind" >&2; exit 9; fi
set -- "$here"/*
answer=$1
if [ $# -gt 1 ]; then mv "$1" "$call.answer"; answer="$call.answer"; fi
sleep "$(cat "$answer/sleep")"
cat "$answer/error" >&2
cat "$answer/output"
exit "$(cat "$answer/code")"
"""


def complaint(text: str) -> Answer:
  """Returns the response of kubectl to an error."""
  return Answer("", text + "\n", 1)


class Kubectl:
  """The program in a folder, which must be on PATH."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    for name in ("calls", "answers"):
      (folder / f"kubectl.{name}").mkdir(parents=True)
    (folder / "kubectl").write_text(_PROGRAM)
    (folder / "kubectl").chmod(0o755)

  def answers(self, words: str, *answers) -> None:
    """Sets the responses to calls of "VERB KIND" in their order: `Answer`s, or values that are printed as JSON."""
    for number, answer in enumerate(answers):
      answer = answer if isinstance(answer, Answer) else Answer(json.dumps(answer))
      here = self._folder / "kubectl.answers" / words.replace(" ", ".") / f"{number:03d}"
      here.mkdir(parents=True)
      for key, value in dataclasses.asdict(answer).items():
        (here / key).write_text(str(value))

  @property
  def calls(self) -> list:
    """The argument lists so far, without kubectl's name."""
    files = [each for each in (self._folder / "kubectl.calls").iterdir() if each.is_file()]
    files.sort(key=lambda file: file.stat().st_mtime_ns)
    return [file.read_bytes().decode(errors="surrogateescape").split("\0")[:-1] for file in files]
