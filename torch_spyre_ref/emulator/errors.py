"""What goes wrong with regions."""


class RegionError(RuntimeError):
    """A region that the card cannot hand out or take back."""


class HandleBudgetExhausted(RegionError):  # noqa: N818
    """Every handle of the card is in use."""


class CardMemoryExhausted(RegionError):  # noqa: N818
    """A domain has no contiguous run of bytes as large as the region asked for."""
