"""Does an artifact's launch spec fill the slot that its program is patched from?"""

from __future__ import annotations

from torch_spyre_ref.emulator.program import Program, slot_bytes
from torch_spyre_ref.spyrecode import Artifact, ArtifactError, LaunchSpec


def check_program(artifact: Artifact, program: Program) -> None:
    """Raise :class:`ArtifactError` unless the launch spec fills the program's correction slot."""
    spec = artifact.spec
    symbols = sorted(spec.symbols, key=lambda symbol: symbol.offset)
    filled = [_kind(spec, symbol.kind, symbol.index) for symbol in symbols]
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
