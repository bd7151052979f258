"""Decoding of the bilevel codes of fax machines in TIFF files: modified Huffman, Group 3 and Group 4 (ITU-T T.4, T.6).

libtiff also decodes these codes, but returns white rows for rows that are damaged or missing. This decoder accepts
only strips in which every row is complete.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from vit_jax.data.formats.errors import DecodeError

RUNS, GROUP3, GROUP4 = 2, 3, 4  # values of the tag Compression
_TWO_DIMENSIONAL = 1  # bit of the tag T4Options

# Codes of run lengths (T.4, tables 2 and 3): 0 to 63, followed by 64 to 1,728 in steps of 64.
_WHITE = """
00110101 000111 0111 1000 1011 1100 1110 1111 10011 10100 00111 01000 001000 000011 110100 110101 101010 101011 0100111
0001100 0001000 0010111 0000011 0000100 0101000 0101011 0010011 0100100 0011000 00000010 00000011 00011010 00011011
00010010 00010011 00010100 00010101 00010110 00010111 00101000 00101001 00101010 00101011 00101100 00101101 00000100
00000101 00001010 00001011 01010010 01010011 01010100 01010101 00100100 00100101 01011000 01011001 01011010 01011011
01001010 01001011 00110010 00110011 00110100
11011 10010 010111 0110111 00110110 00110111 01100100 01100101 01101000 01100111 011001100 011001101 011010010 011010011
011010100 011010101 011010110 011010111 011011000 011011001 011011010 011011011 010011000 010011001 010011010 011000
010011011
"""
_BLACK = """
0000110111 010 11 10 011 0011 0010 00011 000101 000100 0000100 0000101 0000111 00000100 00000111 000011000 0000010111
0000011000 0000001000 00001100111 00001101000 00001101100 00000110111 00000101000 00000010111 00000011000 000011001010
000011001011 000011001100 000011001101 000001101000 000001101001 000001101010 000001101011 000011010010 000011010011
000011010100 000011010101 000011010110 000011010111 000001101100 000001101101 000011011010 000011011011 000001010100
000001010101 000001010110 000001010111 000001100100 000001100101 000001010010 000001010011 000000100100 000000110111
000000111000 000000100111 000000101000 000001011000 000001011001 000000101011 000000101100 000001011010 000001100110
000001100111
0000001111 000011001000 000011001001 000001011011 000000110011 000000110100 000000110101 0000001101100 0000001101101
0000001001010 0000001001011 0000001001100 0000001001101 0000001110010 0000001110011 0000001110100 0000001110101
0000001110110 0000001110111 0000001010010 0000001010011 0000001010100 0000001010101 0000001011010 0000001011011
0000001100100 0000001100101
"""
# Codes of 1,792 to 2,560 in steps of 64, for both colours.
_LONG = """
00000001000 00000001100 00000001101 000000010010 000000010011 000000010100 000000010101 000000010110 000000010111
000000011100 000000011101 000000011110 000000011111
"""
_PASS, _HORIZONTAL = 8, 9  # modes of T.6, table 1; the others are offsets of -3 to 3
_MODES = {"1": 0, "011": 1, "000011": 2, "0000011": 3, "010": -1, "000010": -2, "0000010": -3, "0001": _PASS,
          "001": _HORIZONTAL}  # fmt: skip
_LONGEST, _MODE_BITS, _EOL = 13, 7, 12  # bits
_NONE = (0, 0)  # bits and value of an invalid code


def _build_table(codes: Mapping[str, int], longest: int) -> list[tuple[int, int]]:
  """Returns a list indexed by numbers of `longest` bits.

  Each item is the (bits, value) of the code at the start of the number.
  """
  table = [_NONE] * (1 << longest)
  for code, value in codes.items():
    first = int(code, 2) << (longest - len(code))
    for number in range(first, first + (1 << (longest - len(code)))):
      table[number] = (len(code), value)
  return table


def _parse_codes(text: str) -> dict[str, int]:
  """Returns {code: run length} for the codes of one colour."""
  codes = text.split()
  lengths = [*range(64), *range(64, 1729, 64), *range(1792, 2561, 64)]
  return dict(zip([*codes, *_LONG.split()], lengths, strict=True))


_RUN_TABLES = _build_table(_parse_codes(_WHITE), _LONGEST), _build_table(_parse_codes(_BLACK), _LONGEST)
_MODE_TABLE = _build_table(_MODES, _MODE_BITS)


class _DamageError(Exception):
  """An error for a row that contains an invalid code or is not as wide as the image."""


def decode(data: bytes, rows: int, width: int, compression: int, options: int = 0) -> np.ndarray:
  """Decodes a strip or a tile.

  Args:
    data: compressed bytes, with the first bit of the code in the high bit of a byte.
    rows: number of rows.
    width: number of pixels in a row.
    compression: RUNS, GROUP3 or GROUP4.
    options: value of the tag T4Options. It is not used for RUNS and GROUP4.

  Returns:
    bool (rows, width), True for black pixels.

  Raises:
    DecodeError: if a row is damaged or missing, or if data follow the last row.
  """
  changes = np.zeros((rows, width), np.uint8)  # 1 at each pixel that differs from the pixel on its left
  bits, row = _Bits(data), 0
  try:
    for line in _decode_lines(bits, rows, width, compression, options):
      changes[row, line] = 1
      row += 1
    bits.finish(compression == GROUP3 and options & _TWO_DIMENSIONAL)
  except _DamageError:
    where = f"row {row + 1:,} of {rows:,} is damaged or missing" if row < rows else "there are data behind the last row"
    raise DecodeError(f"not a complete image: in a fax-coded strip or tile of a TIFF, {where}") from None
  return np.bitwise_xor.accumulate(changes, axis=1, out=changes).view(bool)


def _decode_lines(bits: "_Bits", rows: int, width: int, compression: int, options: int) -> Iterator[list[int]]:
  """Yields the positions below the width at which the colour of each row changes."""
  line = []
  for row in range(rows):
    flat = compression != GROUP4
    if compression == RUNS:
      bits.align()
    elif compression == GROUP3:
      found = bits.skip_end_of_line()
      if not found and (row or options & _TWO_DIMENSIONAL):
        raise _DamageError
      flat = not options & _TWO_DIMENSIONAL or bits.take() == 1
    line = bits.read_runs(width) if flat else bits.read_row(line, width)
    if bits.at > bits.end:
      raise _DamageError
    yield line


class _Bits:
  """Compressed bits with a read position.

  Attributes:
    at: number of bits that were read.
    end: number of bits.
  """

  def __init__(self, data: bytes) -> None:
    filled = np.frombuffer(data + bytes(8), np.uint8).astype(np.uint32)  # zeros are not a valid code
    words = filled[:-3] << 24 | filled[1:-2] << 16 | filled[2:-1] << 8 | filled[3:]
    self._words, self._data = words.data, data
    self.at, self.end = 0, 8 * len(data)

  def take(self) -> int:
    """Returns the next bit."""
    bit = self._words[self.at >> 3] >> (31 - (self.at & 7)) & 1
    self.at += 1
    return bit

  def align(self) -> None:
    """Moves to the first bit of the next byte, unless the position is already at one."""
    self.at = (self.at + 7) & ~7

  def skip_end_of_line(self) -> bool:
    """Skips 11 or more zeros and a one. Returns whether these were the next bits."""
    one = self._find_one()
    if one is None or one - self.at < _EOL - 1:
      return False
    self.at = one + 1
    return True

  def _find_one(self) -> int | None:
    """Returns the position of the next bit with value one, or None."""
    at = self.at
    while at < self.end:
      word = self._words[at >> 3] << (at & 7) & 0xFFFFFFFF
      if word:
        one = at + 32 - word.bit_length()
        return one if one < self.end else None
      at = (at & ~7) + 32
      if at < self.end and not self._words[at >> 3]:  # many zeros
        rest = self._data[at >> 3 :].lstrip(b"\0")
        at = self.end - 8 * len(rest)
    return None

  def finish(self, tagged: int) -> None:
    """Raises _DamageError unless only ends of lines and zeros remain."""
    while self.skip_end_of_line():
      if tagged and self.at < self.end:
        self.at += 1
    if self._find_one() is not None:
      raise _DamageError

  def read_runs(self, width: int) -> list[int]:
    """Returns the colour changes of a row that is coded without reference to another row."""
    line, at, colour = [], 0, 0
    while at < width:
      at += self._run(colour, width)
      line.append(at)
      colour ^= 1
    return _remove_empty_runs(line, width)

  def _run(self, colour: int, width: int) -> int:
    """Returns the next run length of a colour, at most the width."""
    table, words, at, length = _RUN_TABLES[colour], self._words, self.at, 0
    while True:
      if at >= self.end:
        raise _DamageError
      bits, part = table[words[at >> 3] >> (19 - (at & 7)) & 0x1FFF]
      at, length = at + bits, length + part
      if not bits or length > width:
        raise _DamageError
      if part < 64:
        self.at = at
        return length

  def read_row(self, reference: list[int], width: int) -> list[int]:
    """Returns the colour changes of a row that is coded by its differences from the row above."""
    above, words = [*reference, width, width, width, width], self._words
    line, left, i, colour = [], -1, 0, 0  # i: index of the next change of the row above to the other colour
    while left < width:
      if self.at >= self.end:
        raise _DamageError
      while above[i] <= left:
        i += 2
      bits, mode = _MODE_TABLE[words[self.at >> 3] >> (25 - (self.at & 7)) & 0x7F]
      if not bits:
        raise _DamageError
      self.at += bits
      if mode == _PASS:
        left = above[i + 1]
      elif mode == _HORIZONTAL:
        first = max(left, 0) + self._run(colour, width)
        left = first + self._run(colour ^ 1, width)
        line += first, left
      else:
        change = above[i] + mode
        if change < max(left, 0):
          raise _DamageError
        line.append(change)
        left, colour, i = change, colour ^ 1, i - 1 if i else 1
    return _remove_empty_runs(line, width)


def _remove_empty_runs(line: list[int], width: int) -> list[int]:
  """Returns the changes below the width, without empty runs. Raises _DamageError for a row that is too long."""
  if line and line[-1] > width:
    raise _DamageError
  result = []
  for change in line:
    if result and result[-1] == change:
      result.pop()
    elif change < width:
      result.append(change)
  return result
