"""Cycles, traffic between chips and loops of a program, read from its HLO after optimisation by the TPU compiler.

The compiler writes its own estimate of cycles next to each operation. The estimates exclude collectives and Pallas
kernels. `cost_analysis` counts the body of a loop once. This module counts the body once per iteration.
"""

import collections
import math
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Bits per element. Types that are not listed (tokens, opaque handles) have zero bits.
_BITS = {"pred": 8, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64}
_BITS |= {"f8e4m3fn": 8, "f8e5m2": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "s4": 4, "u4": 4}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][\w-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_UNKNOWN = 2**62  # larger cycles mean that the compiler has no estimate, as for gathers on the SparseCores of TPU7x
_NAME = re.compile(r'op_name="([^"]*)"')
_KERNEL = re.compile(r'custom_call_target="tpu_custom_call"')
_CHANNEL = re.compile(r"channel_id=\d+")
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\b[^{]*> *\{")
_DELAY = re.compile(r"vdelay (\d+)")
_EXIT = re.compile(r"totalorder %s\w+, (\d+) /\* loop exit")


class Traffic(NamedTuple):
  """The collectives of one kind in one run of the program, for one device.

  Attributes:
    calls: number of calls.
    payload: bytes of the results.
    moved: bytes that a device must send in a ring.
  """

  calls: int
  payload: int
  moved: float


class Operation(NamedTuple):
  """An operation with its cost in one run of a program, for one device.

  Attributes:
    name: name that JAX gives the operation, such as "jit(step)/jvp(part_student)/dot_general", or "". A fusion without
      such a name has the name of its last named operation.
    cycles: the compiler's estimate for all calls. 0 for a Pallas kernel.
    kernel: name of the Pallas kernel, or None.
    calls: number of calls.
    kind: "product" if it contains a matrix product or a convolution, "copy" if it only moves or converts values, else
      "other".
  """

  name: str
  cycles: int
  kernel: str | None
  calls: int
  kind: str = "other"


class ProgramCost(NamedTuple):
  """One run of a compiled program on one device.

  Attributes:
    cycles: the compiler's estimates, without collectives and kernels.
    collectives: traffic inside a slice, by kind of collective.
    network: bytes sent to other slices.
    kernels: number of Pallas calls by name.
    loops: number of loops with more than one iteration.
    traffic: bytes that operations read and write in memory.
    operations: operations with an estimate of cycles, and Pallas kernels.
  """

  cycles: int
  collectives: dict[str, Traffic]
  network: int
  kernels: dict[str, int]
  loops: int
  traffic: int
  operations: tuple[Operation, ...]


class _Instruction(NamedTuple):
  name: str
  type: str
  opcode: str
  rest: str


Computations = dict[str, list[_Instruction]]  # instructions by the name of their computation


def read_program(text: str) -> ProgramCost:
  """Reads the operations of one device from an optimised HLO module.

  Args:
    text: the text of the module, `compiled.as_text()`.
  """
  computations, entry = _split_computations(text)
  turns = _count_runs(computations, entry)
  fused = _find_fused(computations)
  network = traffic = loops = 0
  operations = []
  kernels, sums, channels = collections.Counter(), {}, set()
  for name, instructions in computations.items():
    times = turns[name]
    types = {i.name: i.type for i in instructions}
    for i in instructions:
      cycles = times * sum(number for number in map(int, _CYCLES.findall(i.rest)) if number < _UNKNOWN)
      kernel = re.sub(r"[.\d]+$", "", i.name) if _KERNEL.search(i.rest) else None
      if cycles or (kernel and times):
        operations.append(Operation(_find_name(i, computations), cycles, kernel, times, _find_kind(i, computations)))
      kind = i.opcode.removesuffix("-start")
      if kind in COLLECTIVES:
        # An asynchronous collective appears in each of the fusions that run at the same time.
        channel = _CHANNEL.search(i.rest)
        if name not in fused or not channel or channel[0] not in channels:
          _add_traffic(sums, kind, i, times)
        channels.add(channel and channel[0])
      elif i.opcode == "send":
        network += times * _count_bytes(i.type)
      elif kernel:
        kernels[kernel] += times
      elif i.opcode == "while":
        loops += times if _count_iterations(i, computations) > 1 else 0
      if times and name not in fused:
        traffic += times * _count_touched_bytes(i, types, computations)
  collectives = {kind: Traffic(*sizes) for kind, sizes in sums.items()}
  cycles = sum(operation.cycles for operation in operations)
  return ProgramCost(cycles, collectives, network, dict(kernels), loops, traffic, tuple(operations))


def read_kernel_cycles(folder: pathlib.Path) -> dict[str, int]:
  """Returns the cycles of one call of each Pallas kernel, from the static schedules that libtpu wrote.

  A schedule is a list of bundles, one per cycle, and of delays. The bundles marked with `>` form one iteration of the
  loop over the grid. A schedule contains the load of the units, but not the time of waiting for memory. The text format
  is that of libtpu 0.0.42.

  Args:
    folder: the directory with the schedules.

  Returns:
    {kernel: cycles}.
  """
  by_kernel = {}
  for file in folder.glob("*-final_bundles.txt"):
    if "schedule" in file.name:
      continue
    cycles, turns = 0, None
    for line in file.read_text().splitlines():
      if match := _EXIT.search(line):
        turns = int(match[1]) - 2  # two additional iterations fill and drain the pipeline
      if match := _BUNDLE.match(line):
        cycles += 1 + sum(map(int, _DELAY.findall(line)))
    name = re.sub(r"^\d+-(?:\d+-)*", "", file.name).split("-")[0]
    if turns and cycles:
      by_kernel[re.sub(r"[.\d]+$", "", name)] = cycles * turns
  return by_kernel


def _split_computations(text: str) -> tuple[Computations, str | None]:
  computations, entry, current = {}, None, None
  for line in text.splitlines():
    if match := _COMPUTATION.match(line):
      current = computations.setdefault(match[1], [])
      entry = match[1] if line.startswith("ENTRY") else entry
    elif line.startswith("}"):
      current = None
    elif current is not None and (match := _INSTRUCTION.match(line)):
      end = _find_type_end(match[2])
      opcode = _OPCODE.match(match[2], end)
      assert opcode is not None, line
      current.append(_Instruction(match[1], match[2][:end], *opcode.groups()))
  return computations, entry


def _find_type_end(text: str) -> int:
  """Returns the end of the type at the start of an instruction: the first space outside of parentheses."""
  depth = 0
  for position, letter in enumerate(text):
    if letter == " " and not depth:
      return position
    depth += {"(": 1, ")": -1}.get(letter, 0)
  raise ValueError(f"not an HLO instruction: {text[:200]}")


def _count_runs(computations: Computations, entry: str | None) -> collections.Counter[str]:
  """Returns the number of runs of each computation, starting from the entry."""
  turns = collections.Counter()
  pending = [(entry, 1)] if entry else []
  while pending:
    name, times = pending.pop()
    turns[name] += times
    for i in computations.get(name, ()):
      inside = times * (_count_iterations(i, computations) if i.opcode == "while" else 1)
      pending += [(called, inside) for called in _find_called(i)]
  return turns


def _find_called(i: _Instruction) -> list[str]:
  branches = _BRANCHES.search(i.rest)
  return _CALLED.findall(i.rest) + (re.findall(r"[\w.-]+", branches[1]) if branches else [])


def _count_iterations(i: _Instruction, computations: Computations) -> int:
  """Returns the number of iterations of a loop: the constant in its condition, or 1 if it cannot be determined."""
  match = re.search(r"condition=%?([\w.-]+)", i.rest)
  constants = computations.get(match[1], ()) if match else ()
  numbers = [int(c.rest.split(")")[0]) for c in constants if _is_integer(c)]
  return numbers[0] if len(numbers) == 1 else 1


def _find_name(i: _Instruction, computations: Computations) -> str:
  """Returns the name that JAX gives an operation, see `Operation`.

  The compiler inserts conversions with names such as "convert.99". In DINOv3's step, such a conversion is the result of
  the fusions that rotate queries and keys.
  """
  fused = computations.get((_find_called(i) or [""])[0], ()) if i.opcode == "fusion" else ()
  names = [match[1] for each in (i, *reversed(fused)) if (match := _NAME.search(each.rest))]
  return next((name for name in names if "/" in name), "")


# Operations that only move or convert values, and the values that they need.
_MOVES = {
  *("async-done", "async-start", "bitcast", "broadcast", "concatenate", "constant", "convert", "copy", "copy-done"),
  *("copy-start", "dynamic-slice", "dynamic-update-slice", "get-tuple-element", "pad", "parameter", "reshape", "slice"),
  *("slice-done", "slice-start", "transpose", "tuple"),
}


def _find_kind(i: _Instruction, computations: Computations) -> str:
  """Returns the kind of an operation, see `Operation`."""
  opcodes = _collect_opcodes(i, computations)
  if opcodes & {"dot", "convolution"}:
    return "product"
  return "copy" if opcodes and opcodes <= _MOVES else "other"


def _collect_opcodes(i: _Instruction, computations: Computations) -> set[str]:
  """Returns the opcodes of an operation and of the operations inside a fusion."""
  if i.opcode != "fusion":
    return {i.opcode}
  inner = (each for called in _find_called(i) for each in computations.get(called, ()))
  return {opcode for each in inner for opcode in _collect_opcodes(each, computations)}


def _is_integer(i: _Instruction) -> bool:
  return i.opcode == "constant" and bool(re.match(r"[su]32\[\]", i.type) and re.match(r"\d+\)", i.rest))


def _find_fused(computations: Computations) -> set[str]:
  """Returns the computations inside fusions and reductions. Their values never reach memory."""
  inner = set()
  for instructions in computations.values():
    for i in instructions:
      if i.opcode not in ("while", "conditional", "call"):
        inner.update(_find_called(i))
  return inner


def _count_bytes(kind: str) -> int:
  """Returns the bytes of all arrays of a type."""
  return sum(
    math.prod(int(n) for n in dims.split(",") if n) * _BITS.get(element, 0) // 8
    for element, dims in _ARRAY.findall(kind)
  )


def _add_traffic(sums: dict[str, tuple[int, int, float]], kind: str, i: _Instruction, times: int) -> None:
  size = _parse_group_size(i.rest)
  payload = _count_bytes(i.type)
  if i.opcode.endswith("-start") and kind == "all-gather":
    payload -= min(payload, payload // (size + 1))  # the type also contains the operand
  share = (size - 1) / size if size else 0
  factor = {"all-reduce": 2 * share, "reduce-scatter": size * share, "collective-permute": 1.0}.get(kind, share)
  calls, total, moved = sums.get(kind, (0, 0, 0.0))
  sums[kind] = (calls + times, total + times * payload, moved + times * payload * factor)


def _parse_group_size(rest: str) -> int:
  """Returns the number of devices that a collective connects. HLO has three notations for them."""
  if match := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
    return len(match[1].split(","))
  if match := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):
    return int(match[1])
  if match := re.search(r"replica_groups=(?:@?\w*)mesh\[([^\]]*)\]\s*\{([^}]*)\}", rest):
    sizes = dict(re.findall(r"'?([\w-]+)'?=(\d+)", match[1]))
    return math.prod(int(sizes[axis]) for axis in re.findall(r"[\w-]+", match[2]))
  return 0


_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "after-all", "iota"}


def _count_touched_bytes(i: _Instruction, types: Mapping[str, str], computations: Computations) -> int:
  """Returns the bytes that an operation outside of fusions reads and writes.

  If a fusion reads only a slice of an operand, only the slice is counted. Bodies of loops read slices of values that
  are stacked for all iterations.
  """
  if i.opcode in _FREE or i.opcode.endswith("-done"):
    return 0
  operands = re.findall(r"%([\w.-]+)", i.rest.split("), ")[0])
  fusion = computations.get((_find_called(i) or [""])[0], ()) if i.opcode == "fusion" else ()
  slices = _find_slices(fusion)
  read = sum(slices.get(n, _count_bytes(types.get(operand, ""))) for n, operand in enumerate(operands))
  return read + min(_count_bytes(i.type), slices.get("result", _count_bytes(i.type)))


def _find_slices(fusion: Iterable[_Instruction]) -> dict[int | str, int]:
  """Returns {operand number: bytes of its slice}. The key "result" contains the bytes of an in-place update."""
  numbers = {i.name: int(i.rest.split(")")[0]) for i in fusion if i.opcode == "parameter"}
  users = collections.defaultdict(list)
  for i in fusion:
    for operand in re.findall(r"%([\w.-]+)", i.rest):
      users[operand].append(i)
  types = {i.name: i.type for i in fusion}
  result: dict[int | str, int] = {}
  for name, number in numbers.items():
    kinds = {i.opcode for i in users[name]}
    if kinds == {"dynamic-slice"}:
      result[number] = sum(_count_bytes(i.type) for i in users[name])
    elif kinds == {"dynamic-update-slice"}:
      update = re.findall(r"%([\w.-]+)", users[name][0].rest)[1]
      result[number] = 0
      result["result"] = _count_bytes(types.get(update, ""))
  return result
