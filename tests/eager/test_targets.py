"""In-place ops and ``out=``: what is written, what is refused, and with which words."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

Work = Callable[[torch.Tensor], object]


def _same(work: Work) -> None:
    """``work`` leaves the same tensor, or raises the same error, on the card and on the CPU."""
    start = torch.arange(16.0).reshape(4, 4)
    tensors, errors = [], []
    for device in ("cpu", "spyre"):
        tensor = start.to(device, copy=True)
        tensors.append(tensor)
        try:
            work(tensor)
            errors.append("")
        except (RuntimeError, IndexError) as error:
            errors.append(str(error))
    assert errors[0] == errors[1]
    torch.testing.assert_close(tensors[1].cpu(), tensors[0])
    assert not len(torch.spyre.fallback_report())


def _places(like: torch.Tensor) -> torch.Tensor:
    return torch.tensor([2, 0, 1], device=like.device)


@pytest.mark.parametrize(
    "work",
    [
        lambda t: t.add_(1),
        lambda t: t.mul_(t),
        lambda t: t.add_(t, alpha=2),
        lambda t: t[1:, 1:].sub_(7),
        lambda t: t.t().mul_(torch.arange(4.0, device=t.device)),
        lambda t: t.add_(t.t().clone()),
        lambda t: t.clamp_(3, 9),
        lambda t: t.masked_fill_(t > 5, -1),
        lambda t: t.index_fill_(0, torch.tensor([1, 3], device=t.device), 5),
        lambda t: t.scatter_(1, torch.zeros(4, 1, dtype=torch.int64, device=t.device), 3.0),
        lambda t: t.addmm_(torch.ones(4, 2, device=t.device), torch.ones(2, 4, device=t.device)),
        lambda t: t.tril_(),
        lambda t: t.copy_(t.half()),
        lambda t: torch.add(t, 1, out=t),
        lambda t: torch.add(t[:2], 1, out=t[2:]),
        lambda t: torch.exp(t[0] / 16, out=t[1]),
        lambda t: (lambda i: torch.gather(i + 5, 0, i, out=i))(_places(t)),
        lambda t: (lambda none: torch.cat([none, t], out=none.view(0)))(t.new_empty(0)),
        lambda t: torch.scatter(t, 0, _places(t)[None], t + 7, out=t),
    ],
)
def test_what_is_stored(work: Work) -> None:
    _same(work)


@pytest.mark.parametrize(
    "work",
    [
        lambda t: t.add_(t.t()),
        lambda t: t[1:].add_(t[:-1]),
        lambda t: t.expand(2, 4, 4).add_(1),
        lambda t: t.add_(torch.ones(3, 3, device=t.device)),
        lambda t: t.add_(torch.ones(2, 4, 4, device=t.device)),
        lambda t: t.long().add_(1.5),
        lambda t: t.long().logit_(),
        lambda t: t.bool().logit_(),
        lambda t: torch.add(t, t, out=torch.empty(4, 4, dtype=torch.int32, device=t.device)),
        lambda t: torch.mm(t, t, out=torch.empty(4, 4, dtype=torch.float64, device=t.device)),
        lambda t: torch.mm(t, t[:2]),
        lambda t: t.softmax(5),
        lambda t: torch.cat([t, t[:, :2]]),
        lambda t: torch.arange(0, 4, -1, device=t.device),
        lambda t: t.new_ones(4, 1).add_(t),
        lambda t: t.new_ones(4, 1).logical_xor_(t),
        lambda t: (lambda a: torch.add(a, t, out=a))(t.new_ones(4, 1)),
        lambda t: torch.aminmax(t, dim=0, out=[t.new_empty(4), t.new_zeros(4).double()]),
        lambda t: torch.cat([t, t[:0, :3]]),
        lambda t: torch.cat([t[:2], t[:2]], out=t),
        lambda t: (lambda none: torch.cat([none, t], out=none))(t.new_empty(0)),
        lambda t: torch.gather(t[0], 0, _places(t), out=t[0]),
        lambda t: torch.take(t, _places(t), out=t[0, 1:]),
        lambda t: (lambda i: torch.gather(i, 0, i[:2], out=i[1:]))(_places(t)),
        lambda t: t[0].scatter_(0, _places(t), t[0]),
        lambda t: t[:3].index_add_(0, _places(t), t[:3]),
        lambda t: t.index_add(0, _places(t), t[0, :3]),
        lambda t: torch.index_select(t, 1, _places(t), out=t.new_zeros(1, 3).expand(2, 3)),
        lambda t: torch.addr(t.long(), t[0].long(), t[0].long(), beta=1.5),
        lambda t: torch.addr(t.long(), t[0].long(), t[0].long(), beta=0, alpha=2.5),
        lambda t: torch.addr(t > 5, t[0] > 1, t[1] > 5, alpha=2.5),
        lambda t: torch.addr(t.long(), t[0].long(), t[0].long(), beta=True),
        lambda t: t.long().addr_(t[0].long(), t[0].long(), alpha=2.5),
    ],
)
def test_what_is_refused(work: Work) -> None:
    _same(work)


@pytest.mark.parametrize(
    "work",
    [
        lambda t, mask: t.masked_fill_(mask, 2),
        lambda t, mask: t.masked_fill_(mask, t.new_full((), 2)),
        lambda t, mask: t.index_fill_(0, mask[0].long(), 2),
        lambda t, mask: t.index_put_((mask[0].long(),), t.new_full((), 2)),
        lambda t, mask: t.tril_(),
        lambda t, mask: torch.sum(mask.float(), 1, out=t[0]),
        lambda t, mask: torch.amax(mask.float(), 1, out=t[0]),
    ],
)
def test_one_place_for_several_elements_is_never_written(
    work: Callable[[torch.Tensor, torch.Tensor], object],
) -> None:
    """Not even where the CPU still lets it pass: there it depends on the order of the stores."""
    one = torch.zeros(1, 1, device="spyre")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        work(one.expand(3, 3), torch.ones(3, 3, dtype=torch.bool, device="spyre"))
    assert one.item() == 0


def test_an_empty_out_grows_and_a_full_one_warns() -> None:
    x = torch.ones(3, 4, device="spyre")
    out = torch.empty(0, device="spyre")
    for _ in range(2):
        assert torch.add(x, x, out=out) is out
        assert out.shape == (3, 4)
        assert (out == 2).all().item()
        out.resize_(0)
    wrong = torch.empty(5, device="spyre")
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x, x, out=wrong)
    assert wrong.shape == (3, 4)


def test_results_are_converted_to_what_out_is() -> None:
    x = torch.ones(3, device="spyre")
    out = torch.empty(3, dtype=torch.float16, device="spyre")
    assert torch.add(x, 0.5, out=out).tolist() == [1.5] * 3


def test_several_outs() -> None:
    numbers = torch.randn(4, 5)
    values, places = (
        torch.empty(0, device="spyre"),
        torch.empty(0, dtype=torch.int64, device="spyre"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.max(numbers.to("spyre"), 1, out=(values, places))
    wanted = numbers.max(1)
    assert torch.equal(values.cpu(), wanted.values)
    assert torch.equal(places.cpu(), wanted.indices)


def test_neighbours_of_a_view_are_untouched() -> None:
    base = torch.zeros(5, 6, device="spyre")
    base[1:4, 2:5].add_(1)
    assert base.sum().item() == 9
    assert base[1:4, 2:5].sum().item() == 9
