"""Does an artifact say of its program what is so? All that can be seen before a launch.

That is the symbols, in number, order, kind and format; what the program does to each argument; that
it stays in tensors of known size; and memory of the job's own. What a size *means* is not to be
seen: two integers that change places fill the same slot.
"""

from __future__ import annotations

from torch_spyre_ref.emulator.program import FORMATS, Program, ProgramError, slot_bytes
from torch_spyre_ref.emulator.program.tiles import Space
from torch_spyre_ref.jobs.reach import Access, accesses
from torch_spyre_ref.spyrecode import (
    Argument,
    Artifact,
    ArtifactError,
    ComputeOnDevice,
    LaunchSpec,
    Symbol,
)


def check_program(artifact: Artifact, program: Program) -> None:
    """Raise :class:`ArtifactError` unless ``artifact`` is true of ``program``, which is its own."""
    _check_symbols(artifact, program)
    _check_spaces(artifact, program)
    found = accesses(program)
    addresses = [symbol for symbol in _in_order(artifact.spec) if symbol.kind == "address"]
    for index in range(len(artifact.spec.arguments)):
        symbols = {number for number, symbol in enumerate(addresses) if symbol.index == index}
        own = [access for access in found if access.operand.symbol in symbols]
        _check_role(artifact, program, index, own)
        _check_extent(artifact, program, index, own)
    _check_memory(artifact, program, [access for access in found if access.operand.symbol is None])


def _in_order(spec: LaunchSpec) -> list[Symbol]:
    return sorted(spec.symbols, key=lambda symbol: symbol.offset)


def _check_symbols(artifact: Artifact, program: Program) -> None:
    """The launch spec fills the program's correction slot."""
    spec = artifact.spec
    filled = [_kind(spec, symbol.kind, symbol.index) for symbol in _in_order(spec)]
    kinds = {
        int(number.value): "float" if number.op == "float symbol" else "integer"
        for number in program.numbers
        if number.op.endswith("symbol")
    }
    wanted: list[str | None] = [None] * program.addresses
    for operand in program.operands:
        if operand.symbol is not None:
            wanted[operand.symbol] = f"address of {operand.format}"
    wanted += [kinds.get(index) for index in range(program.symbols)]
    fits = len(filled) == len(wanted) and all(
        want in (None, have) for have, want in zip(filled, wanted, strict=True)
    )
    size = slot_bytes(program.addresses, program.symbols)
    if not fits or size != spec.correction_size:
        wrong = f"the spec fills a slot of {spec.correction_size} bytes: {', '.join(filled)}"
        asked = ", ".join(want or "anything" for want in wanted)
        expected = f"what program {program.name!r} asks for, {size} bytes: {asked}"
        raise ArtifactError(artifact.name, "LaunchSpec.symbols", wrong, expected)


def _kind(spec: LaunchSpec, kind: str, index: int) -> str:
    if kind == "address":
        return f"address of {spec.arguments[index].dtype}"
    return spec.scalars[index].type if kind == "scalar" else "integer"


def _check_spaces(artifact: Artifact, program: Program) -> None:
    """No iteration space is too large already by the sizes that are known; others count as 1."""
    for stage in program.stages:
        numbers = [program.numbers[dimension.size] for dimension in stage.dimensions]
        try:
            Space(stage, [int(n.value) if n.op == "integer" else 1 for n in numbers])
        except ProgramError as error:
            wrong = f"program {program.name!r}: {error}"
            where = "JobPreparationPlan[1].properties.init_bin_file"
            raise ArtifactError(artifact.name, where, wrong, "one that can run") from None


def _check_role(artifact: Artifact, program: Program, index: int, own: list[Access]) -> None:
    """An input is not stored to; a result is, and before it is read, or it is an input too."""
    argument = artifact.spec.arguments[index]
    stores = any(access.writes for access in own)
    if argument.role == "input" and stores:
        seen, expected = "stores to it", "output or input_output"
    elif argument.role != "input" and not stores:
        seen, expected = "never stores to it", "input"
    elif argument.role == "output" and own[0].reads:
        seen, expected = "reads it before it is written", "input_output"
    else:
        return
    wrong = f"{argument.name!r} is an {argument.role}, and program {program.name!r} {seen}"
    raise ArtifactError(artifact.name, f"LaunchSpec.arguments[{index}].role", wrong, expected)


def _check_extent(artifact: Artifact, program: Program, index: int, own: list[Access]) -> None:
    """Where both sizes are known, no element is touched that the tensor does not have."""
    argument = artifact.spec.arguments[index]
    count = _span(argument)
    for access in own:
        if count is not None and access.reach is not None:
            first, last = access.reach
            if first < 0 or last >= count:
                shape = f"a tensor of shape {argument.shape} and strides {argument.strides}"
                reached = first if first < 0 else last
                wrong = f"program {program.name!r} reaches element {reached} of {argument.name!r}"
                expected = f"the size that the program was made for; {shape} has {count} elements"
                where = f"LaunchSpec.arguments[{index}].shape"
                raise ArtifactError(artifact.name, where, wrong, expected)


def _span(argument: Argument) -> int | None:
    """Elements from the first to the last, both counted; None where a launch decides."""
    pairs = list(zip(argument.shape, argument.strides, strict=True))
    if 0 in argument.shape:
        return 0
    steps = [
        (size - 1) * stride
        for size, stride in pairs
        if isinstance(size, int) and isinstance(stride, int)
    ]
    return 1 + sum(steps) if len(steps) == len(pairs) else None


def _check_memory(artifact: Artifact, program: Program, own: list[Access]) -> None:
    """The job has memory for all that the program keeps there, as far as that is known."""
    there = artifact.allocation.size - max(
        step.memory_ptr for step in artifact.execution if isinstance(step, ComputeOnDevice)
    )
    for access in own:
        operand = access.operand
        itemsize = FORMATS[operand.format].stored.itemsize
        last = access.reach[1] if access.reach is not None else 0
        need = operand.offset + (last + 1) * itemsize
        if need > there:
            wrong = f"{there} bytes of memory of the job's own"
            expected = (
                f"{need} or more, since program {program.name!r} keeps {operand.name!r} there: "
                f"write the artifact with memory={need}"
            )
            raise ArtifactError(
                artifact.name, "JobPreparationPlan[0].properties.size", wrong, expected
            )
