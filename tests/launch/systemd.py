"""The expansion of the command of a unit by systemd, from systemd.service(5), section COMMAND LINES."""

import re

# "${FOO}" becomes the value as a part of a word. "$FOO" as a separate word becomes the words of the value. "$$" is a
# dollar sign. Unset names are empty. Specifiers such as %h are expanded in unit files only. systemd-run passes its
# arguments to the manager over D-Bus, which writes them with each % doubled (dbus-execute.c, UNIT_ESCAPE_SPECIFIERS).
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
VARIABLES = {"HOME": "/root", "PATH": "/usr/bin:/bin", "USER": "root", "WORDS": "one two"}


def expanded(words: list, variables: dict = VARIABLES) -> list:
  """Returns the argument list of the process. The first word is a path and is not expanded."""
  found = words[:1]
  for word in words[1:]:
    if re.fullmatch(rf"\${_NAME}", word):
      found += variables.get(word[1:], "").split()
    else:
      found.append(re.sub(rf"\$(?:(\$)|{{({_NAME})}})", lambda m: m[1] or variables.get(m[2], ""), word))
  return found
