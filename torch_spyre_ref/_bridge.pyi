"""The C++ bridge (csrc/): c10's interfaces for PrivateUse1, answered by one Python object.

Every function raises RuntimeError where the driver is needed and none is installed, and for a card
that does not exist. Driver methods raise through it unchanged.
"""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")

def install(driver: object, /) -> None:
    """Make ``driver`` answer from now on, and tell torch about the device the first time.

    The driver's methods are looked up here, once. Installing the same object again does nothing.
    Memory is given back to the driver that handed it out.
    """

def shutdown() -> None:
    """Say that the interpreter is ending: for ``atexit``, on the thread that ends it.

    Afterwards nothing enters Python any more: what is freed is leaked, a call on this thread raises
    RuntimeError, and any other thread that calls stops for ever. There is no way back.
    """

def shield(kernel: Callable[_P, _R], /) -> Callable[_P, _R]:
    """A callable like ``kernel`` in which a daemon thread survives the interpreter's end.

    Without it, a thread that is inside a Python kernel when the interpreter ends aborts the process
    (before CPython 3.14). ``__wrapped__`` is the kernel.
    """

def allocation(tensor: torch.Tensor, /) -> Any:
    """The driver's allocation under a card tensor; None for zero bytes.

    A storage that the bridge did not make (DLPack, ``from_blob``) is looked up by its address with
    ``driver.find``; it may start inside the allocation.

    Raises:
        TypeError: not a tensor, or not on a card.
    """

def locate(tensor: torch.Tensor, /) -> tuple[Any, int]:
    """``allocation(tensor)``, and the logical address of the tensor's first element.

    The address minus the allocation's own is the byte at which the tensor starts, also where its
    storage starts inside an allocation. ``(None, 0)`` for zero bytes.
    """

def signature(entries: Sequence[object], /) -> tuple[bytes, tuple[tuple[Any, int] | None, ...]]:
    """A key of what ``entries`` are, and where those on a card lie, in one call.

    Two sequences have the same key when, entry by entry, they agree in

    - the kind: a tensor, None, a ``bool``, ``int``, ``float`` or ``complex``, or anything else;
    - a tensor's device, dtype, sizes and strides, its conj and neg bits, and whether it stands for
      a Python number;
    - the first entry in whose storage, and from whose element on, it lies as well.

    The place of a tensor on a card is what `locate` gives; that of anything else is None.

    A tensor that has no sizes, strides or storage of its own (a sparse or nested one, one of a
    functional transform, or of a subclass with ``__torch_dispatch__``) has no place either, and
    all of these are of one kind: whoever keeps something by key asks first whether one is there.

    Raises:
        TypeError: not a sequence.
    """

def apart(places: Sequence[tuple[Any, int] | None], /) -> bool:
    """Whether all of these places are in allocations, and no two of them in the same one."""

def take_plain(
    arguments: Sequence[object],
    patched: Sequence[bool],
    tensors: list[torch.Tensor],
    numbers: list[int | float],
    key: list[Any],
    /,
) -> int:
    """Sort the arguments of an op into three lists, up to the first that takes a closer look.

    A tensor on a card goes to ``tensors``, and ``(dtype, shape, strides, card)`` to ``key``. A
    ``float`` or ``int`` that is ``patched`` goes to ``numbers``, and its type to ``key``. Of a
    ``bool`` or None the pair of type and value goes to ``key``. Returns how many there were.
    """

def empty_strided(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, card: int, /
) -> torch.Tensor:
    """What ``torch.empty_strided`` makes on a card, at half the price: PyTorch is not asked."""

def storage_allocation(storage: torch.UntypedStorage, /) -> Any:
    """The driver's allocation under an untyped storage, as for `allocation`."""

def device_count() -> int:
    """How many cards there are; asked of the driver once."""

def current_device() -> int:
    """This thread's current card."""

def set_device(index: int, /) -> None:
    """Make a card this thread's current one."""

def exchange_device(index: int, /) -> int:
    """Make a card this thread's current one, and return the index of the one before."""

def current_stream(index: int, /) -> int:
    """The id of this thread's current stream on a card; 0 is the default stream."""

def exchange_stream(index: int, stream: int, /) -> int:
    """Make a stream this thread's current one on a card, and return the id of the one before."""

def default_generator(index: int, /) -> torch.Generator:
    """A card's default generator: always the same object for one card."""

def generator_reserve(generator: torch.Generator, count: int, /) -> tuple[int, int]:
    """Take ``count`` from a card's generator, at once: its seed, and its offset before."""

def correlation_id() -> int:
    """The id that torch.profiler gave the innermost op that this thread is in.

    0 outside any op, and while no session of torch.profiler records the cards.
    """
