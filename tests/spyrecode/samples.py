"""One artifact by hand, and any artifact at random."""

from __future__ import annotations

from hypothesis import strategies as st

from torch_spyre_ref.emulator.program.formats import NAMES
from torch_spyre_ref.spyrecode import Argument, Description, Dimension, LaunchSpec, Scalar
from torch_spyre_ref.spyrecode.spec import MAX_SIZE, Extents

PROGRAM = bytes(range(256)) * 3
# Rows of x and out lie any distance apart; w is whole, and transposed in memory.
SPEC = LaunchSpec.of(
    [
        Argument("x", "input", "float16", ("rows", "columns"), ("pitch", 1)),
        Argument("w", "input", "float16", ("columns", 64), (1, "columns")),
        Argument("sums", "input_output", "float32", ("rows", 4, "columns"), ("4*columns", 0, 1)),
        Argument("out", "output", "float16", ("rows", 64), (64, 1)),
    ],
    [Dimension("rows", 0, 4096), Dimension("columns", 1, 512), Dimension("pitch", 1, 1 << 20)],
    [Scalar("alpha", "float"), Scalar("seed", "integer")],
)
SCALARS = (0.5, 7)


def described(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Description:
    """A tensor on card 0."""
    return Description("spyre", 0, dtype, "row-major", shape, strides)


def tensors(rows: int = 5, columns: int = 8, pitch: int = 32) -> list[Description]:
    """What a launch of the sample is given."""
    return [
        described("float16", (rows, columns), (pitch, 1)),
        described("float16", (columns, 64), (1, columns)),
        described("float32", (rows, 4, columns), (4 * columns, 0, 1)),
        described("float16", (rows, 64), (64, 1)),
    ]


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,63}", fullmatch=True)
sizes = st.integers(0, 1 << 12) | st.integers(0, MAX_SIZE)


@st.composite
def dimension(draw: st.DrawFn, name: str) -> Dimension:
    """A symbol with some range."""
    low, high = sorted(draw(st.tuples(sizes, sizes)))
    return Dimension(name, low, high)


@st.composite
def specs(draw: st.DrawFn) -> LaunchSpec:
    """Any launch spec in the slot's own order."""
    dimensions = [draw(dimension(name)) for name in draw(st.lists(names, max_size=4, unique=True))]
    symbols = [d.name for d in dimensions]
    extent: st.SearchStrategy[int | str] = sizes
    if symbols:
        product = st.lists(st.sampled_from(symbols), min_size=1, max_size=3).map("*".join)
        extent = sizes | product | product.map(lambda text: f"3*{text}")
    arguments = []
    for name in draw(st.lists(names, max_size=5, unique=True)):
        rank = draw(st.integers(0, 5))
        extents: st.SearchStrategy[Extents] = st.tuples(*[extent] * rank)
        role = draw(st.sampled_from(("input", "output", "input_output")))
        arguments.append(
            Argument(name, role, draw(st.sampled_from(NAMES)), draw(extents), draw(extents))
        )
    # Each symbol needs an extent to be read off.
    if symbols:
        anchor = Argument("anchor", "input", "bool", tuple(symbols), (1,) * len(symbols))
        arguments = [anchor, *(a for a in arguments if a.name != anchor.name)]
    scalars = [
        Scalar(name, draw(st.sampled_from(("integer", "float"))))
        for name in draw(st.lists(names, max_size=3, unique=True))
    ]
    return LaunchSpec.of(arguments, dimensions, scalars)
