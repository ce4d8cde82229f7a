"""What stays on the card between ops, and what it costs in bytes over the link when less does.

A backend that computes one op at a time for a host that keeps the tensors copies operands in and
results out around every op. ``Around`` does so to any model: its tensors lie on the host, and each
op that computes is computed by the card. What is named ``resident`` is copied once. ::

    with torch.no_grad(), Around("spyre", resident=decoder.parameters()):
        decoder(tokens, cache)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmarks.decoding import Decoding
from benchmarks.ladder import Run, observed
from examples import decoder as example

Made = Callable[[str], example.Decoder]


# --8<-- [start:around]
class Around(TorchDispatchMode):
    """In the block, ops on tensors of the host are computed on ``device``, and nothing stays there
    but ``resident`` tensors. ``ops`` counts them. Views, which move nothing, are left alone."""

    def __init__(self, device: str, resident: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.ops = device, 0
        self._there = {t.untyped_storage().data_ptr(): self._bring(t) for t in resident}

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [a for a in _flat(args) if isinstance(a, torch.Tensor)]
        if not given or _is_view(op):
            return op(*args, **(kwargs or {}))
        self.ops += 1
        there = {id(tensor): self._on_card(tensor) for tensor in given}
        moved = tree_map_only(torch.Tensor, lambda tensor: there[id(tensor)], args)
        result = op(*moved, **(kwargs or {}))
        written = [
            (value, there[id(value)])
            for value, argument in zip(args, op._schema.arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor, changed in written:
            tensor.copy_(changed)
        if written:
            return written[0][0]
        return tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), result)

    def _on_card(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 and tensor.is_cpu:
            return tensor  # a number: it goes along with the launch
        there = self._there.get(tensor.untyped_storage().data_ptr())
        if there is None:
            return self._bring(tensor)
        return there.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    # --8<-- [end:around]

    def _bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the card, its bytes once each, laid out as it was."""
        size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        if not tensor.numel():
            return torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device
            )
        flat = tensor.detach().as_strided((size,), (1,)).to(self.device)
        return flat.as_strided(tensor.shape, tensor.stride(), 0)


def _flat(args: Sequence[Any]) -> list[Any]:
    return [item for a in args for item in (a if isinstance(a, (list, tuple)) else (a,))]


def _is_view(op: Any) -> bool:
    """Whether an op only says anew how bytes that are there are to be seen."""
    aliases = [argument.alias_info for argument in op._schema.arguments]
    is_view = any(alias is not None and not alias.is_write for alias in aliases)
    return is_view or op.overloadpacket is torch.ops.aten._unsafe_view


def copied_around(make: Made, weights_stay: bool) -> Run:
    """One token of a decoder whose tensors the host keeps, all of them or all but its weights."""
    decoder = make("cpu")
    stay = [*decoder.parameters(), *decoder.buffers()] if weights_stay else []
    # The CPU has an attention kernel of its own, which no card could compute a part of.
    with Around("spyre", stay), sdpa_kernel(SDPBackend.MATH):
        decoding = Decoding(decoder)
        return observed(lambda: decoding.talk(1))


def resident(make: Made, step: Callable[..., torch.Tensor]) -> Run:
    """One token of a decoder that is on the card with all its tensors."""
    decoding = Decoding(make("spyre"), step)
    return observed(lambda: decoding.talk(1))
