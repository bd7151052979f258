"""Tests of tar shards: the conventions of WebDataset, and damaged or invalid shards."""

import gzip
import io
import tarfile

import pytest

from tests import forms
from tests.forms import opened, tar
from tests.image_files import image, names, numbers
from tests.streams import same, train
from vit_jax import schema
from vit_jax.data import images

PNG = image(0)


def tars(root, **args):
  return opened("tars", root, test="train", **args)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_of_any_length_and_characters_are_read(tmp_path, form):
  long = "d" * 90 + "/" + "ü" * 20 + "n" * 40
  tar(tmp_path / "train-0.tar", [(f"{long}.JPEG", PNG), (f"{long}.cls", b"1\n"), ("a b.webp", PNG), ("a b.cls", b"0")],
      format=form)  # fmt: skip
  source = tars(tmp_path)
  assert names(source) == [f"train-0.tar/{long}.JPEG", "train-0.tar/a b.webp"]
  assert numbers(source) == [(PNG, 1), (PNG, 0)]


def test_label_is_in_a_cls_json_or_txt_member(tmp_path):
  members = [("0.jpg", PNG), ("0.cls", b"4"), ("0.json", b'{"label": "cat"}'), ("1.json", b'{"label": 3, "x": []}')]
  members += [("1.png", PNG), ("1.txt", b"7"), ("2.txt", b" 2 "), ("2.jpeg", PNG), ("2.json", b"{}")]
  # These members are neither images nor labels.
  members += [("2.seg.png", b"mask"), ("2.json.gz", b"x"), ("._2.jpg", b"of a Mac"), ("README", b"x")]
  tar(tmp_path / "train-0.tar", members)
  assert numbers(tars(tmp_path, classes="10")) == [(PNG, 4), (PNG, 3), (PNG, 2)]
  tar(
    tmp_path / "train-0.tar",
    [("a.jpg", PNG), ("a.json", b'{"wnid": "n02"}'), ("b.jpg", PNG), ("b.json", b'{"wnid": "n01"}')],
  )
  source = tars(tmp_path, label="wnid")
  assert source.classes == ("n01", "n02") and numbers(source) == [(PNG, 1), (PNG, 0)]


def test_inner_folders_are_part_of_the_name(tmp_path):
  tar(tmp_path / "train-0.tar", [("a/1.jpg", PNG), ("a/1.cls", b"0"), ("b/1.jpg", PNG), ("b/1.cls", b"1")])
  assert names(tars(tmp_path)) == ["train-0.tar/a/1.jpg", "train-0.tar/b/1.jpg"]


@pytest.mark.parametrize(
  ("members", "message"),
  [
    ([("1.jpg", PNG), ("2.jpg", PNG), ("2.cls", b"0")], r"member '1\.jpg': it has no label. Allowed: a \.cls"),
    ([("1.jpg", PNG), ("1.cls", b"0"), ("2.cls", b"0")], "sample '2', has no image"),
    ([("1.jpg", PNG), ("1.png", PNG), ("1.cls", b"0")], "has 2 images"),
    ([("1.jpg", PNG), ("1.cls", b"0"), ("1.jpg", PNG)], r"has member '1\.jpg' twice"),
    (
      [("1.jpg", PNG), ("1.cls", b"0"), ("2.jpg", PNG), ("2.cls", b"0"), ("./1.jpg", PNG)],
      r"has sample '1' twice, the members '1\.jpg' and '\./1\.jpg'\. Members of one sample must be neighbours",
    ),
    ([("1.jpg", PNG), ("1.json", b"{label: 0}")], r"'1\.json' is not JSON"),
    ([("1.jpg", PNG), ("1.json", b"[" * 2000)], r"'1\.json' is not JSON"),
    ([("1.jpg", PNG), ("1.cls", b"\xff")], r"'1\.cls' is not text"),
    ([("1.jpg", PNG), ("1.cls", b"0" * 2**21)], "has 2,097,152 bytes. Allowed"),
    ([("notes.md", b"x")], "contains no image"),
    (
      [("a.b/4.jpg", PNG), ("a.b/4.cls", b"0"), ("a.b/4.edit.jpg", PNG), ("a.b/4.edit.cls", b"1")],
      r"1 image without a sample, the first 'a\.b/4\.edit\.jpg': .* Write it as 'a\.b/4_edit\.jpg'",
    ),
    ([("1.jpg", PNG), ("1.cls", b"0"), ("2.v1.png", PNG), ("3.v1.PNG", PNG)], r"2 images .* '2\.v1\.png'.*'2_v1\.png'"),
    ([("1.jpg", PNG), ("1.cls", b"-1")], r"member '1\.jpg': label '-1' is not a class number. Use a number from 0"),
    ([("1.jpg", PNG), ("1.cls", b"1.0")], "label '1.0' is not a class number"),
    ([("1.jpg", PNG), ("1.txt", b"1e3")], "label '1e3' is not a class number"),
    ([("1.jpg", PNG), ("1.cls", b"1234567890")], "label '1234567890' is not a class number"),
    (
      [("1.jpg", PNG), ("1.cls", b"0"), ("2.jpg", PNG), ("2.cls", b"cat")],
      "label 'cat' is not a number, like other labels",
    ),
  ],
)
def test_invalid_shard_is_one_error_with_shard_and_member(tmp_path, members, message):
  tar(tmp_path / "train-0.tar", members)
  with pytest.raises(schema.ConfigError, match=message) as caught:
    tars(tmp_path)
  assert caught.value.place == "config.data.path" and str(tmp_path / "train-0.tar") in caught.value.message


# Two names of one file. A copy on a disk has only the second file.
SAME = [("1.jpg", "./1.jpg"), ("a/1.jpg", "a//1.jpg"), ("a/1.jpg", "./a/./1.jpg"), ("1.jpg", "/1.jpg"),
        ("a/1.jpg", "b/../a/1.jpg")]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), [*SAME, *(pair[::-1] for pair in SAME)])
@pytest.mark.parametrize("between", [[], [("2.jpg", PNG), ("2.cls", b"0")]])
def test_two_names_of_one_member_are_refused(tmp_path, one, other, between):
  def written(name, label):
    return [(name, PNG), (name.replace("jpg", "cls"), label)]

  tar(tmp_path / "train-0.tar", [*written(one, b"0"), *between, *written(other, b"1")])
  with pytest.raises(schema.ConfigError, match="twice") as caught:
    tars(tmp_path)
  assert repr(one) in caught.value.message and repr(other) in caught.value.message
  tar(tmp_path / "train-0.tar", [(one, PNG), (other.replace("jpg", "cls"), b"1")])  # these two members are one sample
  assert numbers(tars(tmp_path)) == [(PNG, 1)] and names(tars(tmp_path)) == [f"train-0.tar/{one}"]


def test_two_labels_of_one_sample_are_refused(tmp_path):
  tar(tmp_path / "train-0.tar", [("1.jpg", PNG), ("1.cls", b"0"), ("./1.cls", b"1")])
  with pytest.raises(schema.ConfigError, match=r"member '\./1\.cls' twice; its first name is '1\.cls'"):
    tars(tmp_path)


@pytest.mark.parametrize(
  ("cls", "label"),
  [(b"0", "1"), (b"0", "[1, 2]"), (b"cat", '"dog"'), (b"4", "9")],
  ids=["number", "list", "name", "nine"],
)
def test_contradicting_cls_and_json_labels_are_refused(tmp_path, cls, label):
  tar(tmp_path / "train-0.tar", [("a/1.jpg", PNG), ("a/1.cls", cls), ("a/1.json", f'{{"label": {label}}}'.encode())])
  with pytest.raises(schema.ConfigError) as caught:
    tars(tmp_path, classes="10" if cls.isdigit() else None)
  message = caught.value.message
  assert "sample 'a/1' has label" in message and "\n" not in message
  assert cls.decode() in message and label.strip('"') in message


@pytest.mark.parametrize("label", ["1", '"tench"', "[1]", "[0, 1]", "null"])
def test_equal_cls_and_json_labels_are_accepted(tmp_path, label):
  tar(tmp_path / "train-0.tar", [("1.jpg", PNG), ("1.cls", b"1"), ("1.json", f'{{"label": {label}}}'.encode())])
  assert numbers(tars(tmp_path, classes="2")) == [(PNG, 1)]
  tar(tmp_path / "train-0.tar", [("1.jpg", PNG), ("1.cls", b"1"), ("1.json", b'{"label": 0}')])
  assert numbers(tars(tmp_path, classes="2", label="class")) == [(PNG, 1)]


def test_byte_order_mark_is_not_part_of_a_label(tmp_path):
  tar(tmp_path / "train-0.tar", [("1.jpg", PNG), ("1.cls", b"\xef\xbb\xbf1"), ("2.jpg", PNG), ("2.cls", b"0")])
  assert numbers(tars(tmp_path)) == [(PNG, 1), (PNG, 0)]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_not_followed(tmp_path, kind):
  with tarfile.open(tmp_path / "train-0.tar", "w") as file:
    about = tarfile.TarInfo("1.jpg")
    about.type, about.linkname = kind, "/etc/passwd"
    file.addfile(about)
  with pytest.raises(schema.ConfigError, match=r"member '1\.jpg', is not a regular file"):
    tars(tmp_path)


def damaged():
  """Returns the contents of damaged tars by kind of damage."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as file:
    for name, content in (("1.jpg", PNG), ("1.cls", b"0"), ("2.jpg", PNG * 20), ("2.cls", b"0")):
      about = tarfile.TarInfo(name)
      about.size = len(content)
      file.addfile(about, io.BytesIO(content))
  whole, end = buffer.getvalue(), 512 * (4 + 1 + 1 + 1 + -(-len(PNG) * 20 // 512))

  def change_header(at, size, kind=b"0"):
    """Returns the tar with a header of another size and type, and a valid checksum."""
    header = bytearray(whole[at : at + 512])
    header[124:136], header[156:157], header[148:156] = size, kind, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return whole[:at] + header + whole[at + 512 :]

  nested = tarfile.TarInfo("x")
  nested.type, nested.size = tarfile.GNUTYPE_LONGNAME, 4
  return {
    "a size below 0": change_header(512 * 2, b"\xff" * 10 + b"\xfe\0"),
    "a size below 0 of the first": change_header(0, b"\xff" * 12),
    "a size of 2^64 - 1": change_header(0, b"\x80" + b"\0" * 3 + b"\xff" * 8),
    "a long name of 2^40 bytes": change_header(
      512 * 2, b"\x80" + b"\0" * 5 + b"\1" + b"\0" * 5, tarfile.GNUTYPE_LONGNAME
    ),
    "3,000 long names of one member": (nested.tobuf(tarfile.GNU_FORMAT) + b"abc".ljust(512, b"\0")) * 3000 + whole,
    "cut inside of an image": whole[: 512 * 6],
    "cut inside of a header": whole[: 512 * 4 + 100],
    "cut between two members": whole[: 512 * 2],
    "cut before its end": whole[:end],
    "a header overwritten": whole[: 512 * 4] + b"x" * 512 + whole[512 * 5 :],
    "compressed": gzip.compress(whole),
    "text": b"not a tar at all\n" * 100,
    "one after the other": whole + whole,
  }


@pytest.mark.parametrize("name", damaged())
def test_damaged_tar_is_refused_by_name(tmp_path, name):
  (tmp_path / "train-0.tar").write_bytes(damaged()[name])
  with pytest.raises(
    schema.ConfigError,
    match=r"train-0\.tar is (not a complete tar. Reading failed at byte [\d,]+ |damaged at byte|cut off at byte)",
  ) as caught:
    tars(tmp_path)
  assert caught.value.place == "config.data.path"


def test_classes_are_those_of_all_configured_splits(tmp_path):
  forms.tars(tmp_path, [PNG] * 6, [0, 1, 2, 3, 4, 5])
  forms.tars(tmp_path, [PNG] * 3, [0, 1, 2], "validation")
  assert len(opened("tars", tmp_path, "test", test="validation").classes) == 6
  assert len(opened("tars", tmp_path, "validation", train="validation", test="validation").classes) == 3


@pytest.mark.heavy
def test_tars_in_a_bucket_read_adjacent_records_in_one_request(bucket, bucket_server, tmp_path, monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  forms.tars(tmp_path / "here", [image(i) for i in range(200)], [i % 3 for i in range(200)])
  for file in (tmp_path / "here").iterdir():
    (bucket / file.name).write_bytes(file.read_bytes())
  here, there = tars(tmp_path / "here"), tars(bucket)
  assert numbers(there) == numbers(here) and names(there) == names(here) and there.remote
  assert tars(bucket / "photos-train-{0000..0001}.tar").length == 133
  asked = bucket_server.counts["GET"]
  assert [there.runs.parse(data) for data in there.runs.read(10, 42)] == numbers(here)[10:42]
  assert bucket_server.counts["GET"] == asked + 1
  whole = train(there, 32, 8)
  same(train(there, 32, 3, start=4), whole[4:7])
