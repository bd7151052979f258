"""Every command of the documentation is in commands.txt with the way in which it is checked, and passes that check."""

import pytest

from tests.documentation import checks, extraction

TABLE = {}
for _line in (extraction.ROOT / "tests/documentation/commands.txt").read_text().splitlines():
  _way, _, _command = _line.partition(" ")
  assert _command.strip() not in TABLE, _line
  TABLE[_command.strip()] = _way


def test_the_tables_commands_are_those_of_the_documentation():
  found = extraction.commands()
  unknown = [f"{command.place}: {command.text}" for command in found if command.text not in TABLE]
  assert not unknown, "add to tests/documentation/commands.txt, with a way to check:\n" + "\n".join(unknown)
  gone = TABLE.keys() - {command.text for command in found}
  assert not gone, "no page or docstring has these; remove from tests/documentation/commands.txt:\n" + "\n".join(gone)


@pytest.mark.parametrize("command", [command for command, way in TABLE.items() if way != "run"])
def test_a_command_is_right(command):
  checks.CHECKS[TABLE[command]](command)
