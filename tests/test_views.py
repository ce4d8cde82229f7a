"""Invariant 1, views: every view op of torch aliases its base, on the card as on the CPU.

Which ops are view ops is asked of torch itself, so that one that torch gains is missed by no one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import same_bits, values

REAL: dict[str, Callable[[torch.Tensor], Any]] = {
    "alias": torch.ops.aten.alias,
    "as_strided": lambda t: t.as_strided((2, 3), (12, 2), 1),
    "_reshape_alias": lambda t: torch.ops.aten._reshape_alias(t, (6, 4), (4, 1)),
    "broadcast_to": lambda t: t.broadcast_to(1, 4, 6),
    "chunk": lambda t: t.chunk(3, 1),
    "contiguous": lambda t: t.contiguous(),
    "detach": lambda t: t.detach(),
    "diagonal": lambda t: t.diagonal(1),
    "dsplit.array": lambda t: t.view(2, 2, 6).dsplit((1, 4)),
    "dsplit.int": lambda t: t.view(2, 2, 6).dsplit(3),
    "expand": lambda t: t.expand(1, 4, 6),
    "expand_as": lambda t: t.expand_as(torch.empty(1, 4, 6, device="meta")),
    "flatten.using_ints": lambda t: t.flatten(),
    "_fw_primal": lambda t: torch.ops.aten._fw_primal(t, 0),
    "hsplit.array": lambda t: t.hsplit((1, 4)),
    "hsplit.int": lambda t: t.hsplit(2),
    "lift_fresh": torch.ops.aten.lift_fresh,
    "linalg_diagonal": torch.linalg.diagonal,
    "mT": lambda t: t.mT,
    "moveaxis.int": lambda t: t.moveaxis(0, 1),
    "moveaxis.intlist": lambda t: t.moveaxis((0, 1), (1, 0)),
    "movedim.int": lambda t: t.movedim(0, 1),
    "movedim.intlist": lambda t: t.movedim((0, 1), (1, 0)),
    "narrow": lambda t: t.narrow(1, 2, 3),
    "narrow.Tensor": lambda t: t.narrow(1, torch.tensor(2), 3),
    "numpy_T": lambda t: t.T,
    "permute": lambda t: t.permute(1, 0),
    "positive": lambda t: +t,
    "ravel": lambda t: t.ravel(),
    "reshape": lambda t: t.reshape(3, 8),
    "reshape_as": lambda t: t.reshape_as(torch.empty(3, 8)),
    "resolve_conj": lambda t: t.resolve_conj(),
    "resolve_neg": lambda t: t.resolve_neg(),
    "select.int": lambda t: t[2],
    "slice.Tensor": lambda t: t[1:4:2],
    "split.Tensor": lambda t: t.split(3),
    "split.sizes": lambda t: torch.ops.aten.split.sizes(t, (1, 3)),
    "split_with_sizes": lambda t: t.split((1, 3)),
    "squeeze": lambda t: t.view(4, 1, 6).squeeze(),
    "squeeze.dim": lambda t: t.view(4, 1, 6).squeeze(1),
    "squeeze.dims": lambda t: t.view(4, 1, 6).squeeze((0, 1)),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "swapdims": lambda t: t.swapdims(0, 1),
    "t": lambda t: t.t(),
    "tensor_split.indices": lambda t: t.tensor_split((1, 3)),
    "tensor_split.sections": lambda t: t.tensor_split(3),
    "tensor_split.tensor_indices_or_sections": lambda t: t.tensor_split(torch.tensor([1, 3])),
    "to.device": lambda t: t.to(t.device, torch.float32),
    "to.dtype": lambda t: t.to(torch.float32),
    "to.dtype_layout": lambda t: torch.ops.aten.to.dtype_layout(t, layout=torch.strided),
    "to.other": lambda t: t.to(t[0]),
    "transpose.int": lambda t: t.transpose(0, 1),
    "unbind.int": lambda t: t.unbind(1),
    "unflatten.int": lambda t: t.unflatten(1, (2, 3)),
    "unfold": lambda t: t.unfold(1, 3, 2),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "view": lambda t: t.view(2, 12),
    "view.dtype": lambda t: t.view(torch.int16),
    "view_as": lambda t: t.view_as(torch.empty(2, 12)),
    "view_as_complex": lambda t: torch.view_as_complex(t.view(4, 3, 2)),
    "vsplit.array": lambda t: t.vsplit((1, 2)),
    "vsplit.int": lambda t: t.vsplit(2),
    "_neg_view": lambda t: t._neg_view(),
}

COMPLEX: dict[str, Callable[[torch.Tensor], Any]] = {
    "_conj": torch.ops.aten._conj,
    "adjoint": lambda t: t.adjoint(),
    "conj": lambda t: t.conj(),
    "imag": lambda t: t.imag,
    "mH": lambda t: t.mH,
    "matrix_H": lambda t: t.H,
    "real": lambda t: t.real,
    "view_as_real": torch.view_as_real,
    "conj().imag": lambda t: t.conj().imag,
    "view.dtype": lambda t: t.view(torch.float64),
}

# What no tensor on a card is, or what is not for users.
ELSEWHERE = {
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "_make_dual",  # forward-mode gradients take these two through their own functions
    "_unpack_dual",
    "_nested_view_from_buffer",
    "_test_autograd_multiple_dispatch_view",
    "ccol_indices",
    "coalesce",
    "col_indices",
    "crow_indices",
    "indices",
    "pin_memory",
    "row_indices",
    "slice_inverse",  # functionalization's own: the base that a slice came from
    "values",
}


def view_ops() -> set[str]:
    """Every op that torch can dispatch and that may return an alias of an argument."""
    names = set()
    for schema in torch._C._jit_get_all_schemas():
        aliases = [r.alias_info for r in schema.returns if r.alias_info is not None]
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        if (
            any(not alias.is_write for alias in aliases)
            and schema.name.startswith("aten::")
            and torch._C._dispatch_has_kernel(name)
            and torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
        ):
            names.add(name.removeprefix("aten::"))
    return names


def test_every_view_op_of_torch_is_in_the_tables() -> None:
    assert view_ops() == {*REAL, *COMPLEX, *ELSEWHERE} - {"conj().imag"}


CASES = [(name, torch.float32, op) for name, op in REAL.items()]
CASES += [(name, torch.complex64, op) for name, op in COMPLEX.items()]


@pytest.mark.parametrize(("dtype", "op"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_write_to_a_view_is_seen_in_its_base(
    dtype: torch.dtype, op: Callable[[torch.Tensor], Any]
) -> None:
    host = values((4, 6), dtype) + (1j * values((4, 6), dtype, 1) if dtype.is_complex else 0)
    card = host.to("spyre")
    torch.spyre.reset_fallback_report()
    on_card, on_host = op(card), op(host)
    assert torch.spyre.fallback_report().calls == 0
    if isinstance(on_card, torch.Tensor):
        on_card, on_host = (on_card,), (on_host,)
    assert len(on_card) == len(on_host)
    for number, (mine, theirs) in enumerate(zip(on_card, on_host, strict=True)):
        assert mine.device == card.device
        assert mine.untyped_storage().data_ptr() == card.untyped_storage().data_ptr()
        assert (mine.shape, mine.stride(), mine.storage_offset(), mine.dtype) == (
            theirs.shape,
            theirs.stride(),
            theirs.storage_offset(),
            theirs.dtype,
        )
        assert (mine.is_conj(), mine.is_neg()) == (theirs.is_conj(), theirs.is_neg())
        assert same_bits(mine, theirs)
        if theirs.stride().count(0) == 0:
            for view in (mine, theirs):
                view.fill_(100 + number)
                view.select(0, -1).copy_(torch.tensor(7))
        assert same_bits(card, host)
    card.fill_(3)
    host.fill_(3)
    assert same_bits(on_card[0], on_host[0])


def test_in_place_ops_through_views_reach_the_base() -> None:
    host = values((4, 6), torch.float32)
    card = host.to("spyre")
    for base in (card, host):
        base.t()[1:3].add_(1)
        base.diagonal().mul_(2)
        base.unfold(1, 2, 2)[:, 1].neg_()
        base[1:, ::2].relu_()
        base[:, 3].view(2, 2).t().sub_(base[:2, :2])
        torch.view_as_complex(base.view(4, 3, 2)).imag.zero_()
        base[0].index_fill_(0, torch.tensor([1, 4], device=base.device), 9)
        torch.add(base[0], 1, out=base[3])
    assert same_bits(card, host)


def test_the_gradient_of_a_view_reaches_its_base() -> None:
    card = torch.arange(6.0, device="spyre", requires_grad=True)
    host = torch.arange(6.0, requires_grad=True)
    for leaf in (card, host):
        leaf.view(2, 3).t().expand(2, 3, 2).unfold(1, 2, 1).square().sum().backward()
    assert card.grad.cpu().equal(host.grad)


def test_a_view_outlives_its_base() -> None:
    base = torch.arange(1000.0, device="spyre")
    view = base[990::3]
    before = torch.spyre.memory_allocated()
    del base
    assert torch.spyre.memory_allocated() == before
    others = [torch.zeros(1000, device="spyre") for _ in range(3)]
    assert view.tolist() == [990.0, 993.0, 996.0, 999.0]
    del others


def test_views_without_elements() -> None:
    """Invariant 2, zero elements: views of nothing, and views that hold nothing."""
    base = torch.empty(0, 4, device="spyre")
    for view in (base.t(), base[:, 1:3], base.view(4, 0), base.expand(2, 0, 4), base.diagonal()):
        assert view.numel() == 0 and view.cpu().shape == view.shape
    assert torch.ones(4, device="spyre")[4:].tolist() == []
    assert torch.ones(2, 2, device="spyre").unfold(0, 2, 1)[:0].sum().item() == 0
