"""Memory domains: the parts of a card's memory, and where in one of them a region can lie."""

from __future__ import annotations

from collections.abc import Iterable

from torch_spyre_ref.emulator.errors import CardMemoryExhausted
from torch_spyre_ref.emulator.spec import CardSpec


def lowest_base(taken: Iterable[tuple[int, int]], spec: CardSpec, size: int, domain: int) -> int:
    """The lowest base in ``domain`` with ``size`` bytes that no (base, size) of ``taken`` covers.

    Raises ``ValueError`` and ``CardMemoryExhausted``.
    """
    if not 0 <= domain < spec.domains or size < 1 or size % spec.stick:
        raise ValueError(
            f"a region of {size} bytes in domain {domain} asked for; a size is a positive "
            f"multiple of {spec.stick}, a domain one of 0 to {spec.domains - 1}"
        )
    base, stop = domain * spec.domain, (domain + 1) * spec.domain
    for start, length in sorted(taken):
        if start - base >= size:
            break
        base = max(base, start + length)
    if stop - base < size:
        raise CardMemoryExhausted(
            f"a region of {size} bytes asked for, but domain {domain} has no free run of that "
            f"size in its {spec.domain} bytes; give regions back, or take another domain"
        )
    return base
