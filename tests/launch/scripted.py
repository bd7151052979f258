"""A program named gcloud with scripted responses, for tests without the real gcloud and without a server."""

import dataclasses
import json
import pathlib

# The group and the verb select the responses, and also the name if it has its own responses. The last response stays.
# The program is in sh, which starts in 1 ms.
_PROGRAM = """#!/bin/sh
call=$(mktemp "$0.calls/XXXXXX")
printf '%s\\0' "$@" > "$call"
for word; do
  case $word in -*) ;; alpha|compute|tpus) ;; *) set -- "$@" "$word" ;; esac
  shift
done
here="$0.answers/$1.$2"
if [ -d "$here.$3" ]; then here="$here.$3"; fi
if [ ! -d "$here" ]; then echo "no answer to $1 $2 $3" >&2; exit 9; fi
set -- "$here"/*
answer=$1
if [ $# -gt 1 ]; then mv "$1" "$call.answer"; answer="$call.answer"; fi
if [ -s "$answer/sleep" ]; then sleep "$(cat "$answer/sleep")"; fi
cat "$answer/error" >&2
cat "$answer/output"
exit "$(cat "$answer/code")"
"""


@dataclasses.dataclass(frozen=True)
class Answer:
  """The response to a call: standard output, standard error, exit code, and delay in seconds."""

  output: str = ""
  error: str = ""
  code: int = 0
  sleep: float = 0.0


def api_error(word: str, message: str = "scripted", code: int = 1) -> Answer:
  """Returns the response of gcloud to an error of the API, with the text of SDK 528."""
  return Answer("", f"ERROR: (gcloud.compute.tpus.queued-resources.describe) {word}: {message}\n", code)


class Gcloud:
  """The program in a folder, which must be on PATH."""

  def __init__(self, folder: pathlib.Path):
    self.folder, self._program = folder, folder / "gcloud"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("calls", "answers"):
      (folder / f"gcloud.{name}").mkdir()
    self._program.write_text(_PROGRAM)
    self._program.chmod(0o755)

  def answers(self, group: str, verb: str, *answers, name: str = "") -> None:
    """Sets the next responses to the calls of a verb in their order.

    Args:
      group: command group, such as "queued-resources".
      verb: verb, such as "describe".
      *answers: `Answer`s, or values that are printed as JSON.
      name: name of a resource, if the responses are only for this resource.
    """
    here = self.folder / "gcloud.answers" / ".".join(filter(None, (group, verb, name)))
    if here.exists():
      here.rename(here.with_name(f"old.{len(list(here.parent.iterdir()))}"))
    for i, answer in enumerate(answers):
      answer = answer if isinstance(answer, Answer) else Answer(json.dumps(answer))
      (here / f"{i:03d}").mkdir(parents=True)
      for key, value in dataclasses.asdict(answer).items():
        (here / f"{i:03d}" / key).write_text(str(value or "") if key == "sleep" else str(value))

  @property
  def calls(self) -> list:
    """The argument lists so far, without gcloud's name."""
    files = sorted((each for each in (self.folder / "gcloud.calls").iterdir() if each.is_file()), key=_changed)
    return [file.read_bytes().decode(errors="surrogateescape").split("\0")[:-1] for file in files]

  def verbs(self) -> list:
    """Returns the words of the calls without flags, such as "queued-resources describe vit-a1"."""
    plain = ([word for word in call if not word.startswith("-")] for call in self.calls)
    return [" ".join(word for word in words if word not in ("alpha", "compute", "tpus")) for words in plain]


def _changed(file):
  return file.stat().st_mtime_ns
