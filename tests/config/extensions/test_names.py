"""Tests of names that users register."""

import pytest

from tests.extension_files import clean, forget, recorded, written  # noqa: F401  a fixture
from vit_jax.config import extensions
from vit_jax.config.extensions import names
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.usefixtures("clean")


def registration(table, entry=1, namespace=None, definition="f:1", name="own"):
  names.add(
    "task", name, table, entry, {"__file__": "/a.py", "__name__": "a"} if namespace is None else namespace, definition
  )


def test_name_is_added_to_its_table_with_its_file():
  table = {}
  registration(table)
  assert table == {"own": 1} and extensions.list_registered() == [("task", "own")]
  assert (
    names.find_registration("task", "own") == names.Extension("/a.py", "a")
    and names.find_registration("task", "x") is None
  )
  names.forget("/a.py")
  assert table == {} and extensions.list_registered() == []


def test_same_file_may_register_a_name_again():
  table = {}
  registration(table, 1)
  registration(table, 2)
  assert table == {"own": 2}


@pytest.mark.parametrize(
  "again",
  [
    {"namespace": {"__file__": "/b.py", "__name__": "b"}},  # another file
    {"definition": "g:2", "same": True},  # another function of the same file
  ],
)
def test_second_definition_of_a_name_is_an_error(again):
  table, namespace = {}, {"__file__": "/a.py", "__name__": "a"}
  registration(table, namespace=namespace)
  again = {"namespace": namespace} | {key: value for key, value in again.items() if key != "same"}
  with pytest.raises(ConfigError, match=r"^register\.task: /a\.py already registered 'own'\. Choose another name$"):
    registration(table, 2, **again)
  assert table == {"own": 1}


def test_name_of_the_package_itself_is_an_error():
  with pytest.raises(ConfigError, match=r"^register\.task: 'own' is a name of vit_jax itself\. Choose another name$"):
    registration({"own": 0})


def test_session_without_a_file_can_register():
  registration({}, namespace={"__name__": "__main__"})
  assert names.list_extensions() == [names.Extension("", "")] and extensions.list_active() == []
