"""The boxed CPU fallback: right results, kept identity and aliasing, and clear refusals."""

from __future__ import annotations

from typing import Any

import fake_driver
import pytest
import torch
from fake_driver import FakeDriver
from torch import Tensor

from torch_spyre_ref import _bridge


def card(values: Any, dtype: torch.dtype = torch.float32, device: str = "spyre:0") -> Tensor:
    return torch.tensor(values, dtype=dtype).to(device)


def test_the_driver_hears_of_each_op_before_it_runs(driver: FakeDriver) -> None:
    torch.sin(card([1.0]))
    assert driver.fallbacks == ["aten::sin.out"]
    card([1.0]).add_(1)
    assert driver.fallbacks == ["aten::sin.out", "aten::add.out"]


def test_a_driver_that_refuses_stops_the_op(driver: FakeDriver) -> None:
    class Refusing(FakeDriver):
        def fallback(self, op: str) -> None:
            raise PermissionError(f"{op} shall not run on the CPU")

    refusing = Refusing()
    tensor = card([1.0])
    try:
        _bridge.install(refusing)
        with pytest.raises(PermissionError, match=r"aten::add.out shall not run"):
            tensor.add_(1)
    finally:
        _bridge.install(driver)
    assert tensor.tolist() == [1.0]


def test_the_first_card_argument_decides(driver: FakeDriver) -> None:
    b = card([1, 2, 4], torch.int64, "spyre:1")
    for result in (9 // b, 9 / b, 9**b, 9 % b, torch.tensor(9) * b, 9 - b, 9 & b):
        assert result.device == torch.device("spyre:1")
    assert (9 // b).tolist() == [9, 4, 2]


def test_type_promotion_treats_scalars_as_on_the_cpu(driver: FakeDriver) -> None:
    half = card([1.0], torch.float16)
    integers = card([1], torch.int32)
    assert (2.5 * half).dtype is torch.float16
    assert (2.5 * integers).dtype is torch.float32
    assert (torch.tensor(2.5, dtype=torch.float64) * half).dtype is torch.float16
    assert (card(2.5, torch.float64) * half).dtype is torch.float16
    assert (card([2.5], torch.float64) * half).dtype is torch.float64


SAME = "Expected all tensors to be on the same device"


def test_two_devices_in_one_op_are_refused(driver: FakeDriver) -> None:
    a, b, host = card([1.0, 2.0]), card([1.0, 2.0], device="spyre:1"), torch.ones(2)
    with pytest.raises(RuntimeError, match=rf"{SAME}.*spyre:0 and spyre:1"):
        a + b
    with pytest.raises(
        RuntimeError, match=rf"{SAME}.*spyre:0 and spyre:1.*argument mat2.*aten::mm"
    ):
        torch.mm(a.view(1, 2), b.view(2, 1))
    with pytest.raises(RuntimeError, match=rf"{SAME}.*spyre:0 and cpu"):
        a + host
    with pytest.raises(RuntimeError, match=rf"{SAME}.*spyre:0 and cpu"):
        host + a
    with pytest.raises(RuntimeError, match=SAME):
        host + card(1.0)
    with pytest.raises(RuntimeError, match=SAME):
        torch.tensor(1.0).add_(card(1.0))
    with pytest.raises(RuntimeError, match=SAME):
        torch.add(a, a, out=host)
    with pytest.raises(RuntimeError, match=SAME):
        torch.cat([a, host])
    with pytest.raises(RuntimeError, match=SAME):
        torch.cat([a, b])
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        a[card([0], torch.int64, "spyre:1")]
    assert driver.fallbacks == []
    assert a.tolist() == [1.0, 2.0]


def test_indices_may_lie_on_the_cpu(driver: FakeDriver) -> None:
    a = card([1.0, 2.0, 3.0])
    assert a[torch.tensor([2, 0])].tolist() == [3.0, 1.0]
    assert a[torch.tensor([True, False, True])].tolist() == [1.0, 3.0]
    a[torch.tensor([1])] = 9.0
    assert a.tolist() == [1.0, 9.0, 3.0]
    assert card([[1, 2], [3, 4]])[:, torch.tensor([1])].tolist() == [[2], [4]]


def test_in_place_keeps_identity_and_reaches_only_the_view(driver: FakeDriver) -> None:
    base = card([[1.0, 2.0], [3.0, 4.0]])
    column = base[:, 1]
    address = base.data_ptr()
    assert column.mul_(10) is column
    assert base.tolist() == [[1, 20], [3, 40]]
    assert base.data_ptr() == address
    base.t().add_(card([[100.0], [200.0]]))
    assert base.tolist() == [[101, 220], [103, 240]]
    base.diagonal().zero_()
    assert base.tolist() == [[0, 220], [103, 0]]


def test_out_keeps_identity_resizes_and_takes_the_cpu_s_strides(driver: FakeDriver) -> None:
    a = card([[1.0, 2.0], [3.0, 4.0]])
    out = torch.empty(0, device="spyre")
    assert torch.add(a, 1, out=out) is out
    assert out.tolist() == [[2, 3], [4, 5]]
    target = torch.zeros(2, 4, device="spyre")
    torch.mul(a, a, out=target[:, ::2])
    assert target.tolist() == [[1, 0, 4, 0], [9, 0, 16, 0]]
    images = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    out, expected = torch.empty(0, device="spyre"), torch.empty(0)
    torch.neg(images.to("spyre"), out=out)
    torch.neg(images, out=expected)
    assert out.stride() == expected.stride()
    assert out.cpu().equal(expected)
    values, indices = torch.empty(0, device="spyre"), torch.empty(0, dtype=torch.int64).to("spyre")
    result = torch.sort(card([3.0, 1.0, 2.0]), out=(values, indices))
    assert result[0] is values
    assert result[1] is indices
    assert (values.tolist(), indices.tolist()) == ([1, 2, 3], [1, 2, 0])
    with pytest.warns(UserWarning, match="resized"):
        torch.add(a, 1, out=torch.empty(3, device="spyre"))
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(a, 1.5, out=torch.empty(2, 2, dtype=torch.int64).to("spyre"))


def both(work: Any, *shapes: tuple[int, ...]) -> tuple[Any, Any]:
    """What ``work`` gives for the same numbers on the card and on the CPU, exceptions included."""
    outcomes = []
    for device in ("spyre", "cpu"):
        tensors = [
            torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape).to(device)
            for shape in shapes
        ]
        try:
            work(*tensors)
            outcomes.append([tensor.tolist() for tensor in tensors])
        except RuntimeError as error:
            outcomes.append(str(error).splitlines()[0])
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.add_(x),
        lambda x: x.mul_(x.detach()),
        lambda x: torch.add(x, 1, out=x.detach()),
        lambda x: x.sub_(x.t()),
        lambda x: x[1:].add_(x[:-1]),
        lambda x: torch.cumsum(x[:, 1:], 1, out=x[:, :-1]),
        lambda x: torch._foreach_add_([x, x], 1),
        lambda x: torch._foreach_add_([x, x.view(-1)], 1),
        lambda x: torch._foreach_add_([x[0], x[1], x[2]], [x[2], x[0], x[1]]),
        lambda x: torch._foreach_mul_([x.view(torch.int32), x[0]], 2),
        lambda x: x[:1].expand(3, 3).add_(1),
        lambda x: x.as_strided((3, 3), (1, 1)).mul_(2),
        lambda x: x.index_put_((torch.tensor([0]),), x[1:2]),
        lambda x: x.scatter_(0, torch.zeros(1, 3, dtype=torch.int64).to(x.device), x[2:]),
        lambda x: torch.neg(x[0], out=x[1]),
        lambda x: x[0].addmv_(x, x[1]),
    ],
)
def test_arguments_that_overlap_do_what_they_do_on_the_cpu(driver: FakeDriver, work: Any) -> None:
    ours, cpu = both(work, (3, 3))
    assert ours == cpu


def test_a_small_view_does_not_drag_its_whole_storage_along(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = torch.zeros(1 << 20, device="spyre")
    copied: list[int] = []

    monkeypatch.setattr(fake_driver, "on_copy", lambda source: copied.append(source.nbytes))
    base[:2].add_(base[2:4])
    base[5:7].add_(base[-2:])
    with pytest.raises(RuntimeError, match="single memory location"):
        base[8:10].add_(base[9:11])
    assert copied == [8, 8, 8] * 2


def test_lists_optionals_and_no_tensors_at_all(driver: FakeDriver) -> None:
    tensors = [card([1.0]), card([2.0, 3.0])]
    assert [t.tolist() for t in torch._foreach_add(tensors, 1)] == [[2], [3, 4]]
    torch._foreach_mul_(tensors, [2.0, 3.0])
    assert [t.tolist() for t in tensors] == [[2], [6, 9]]
    assert torch.cat(tensors).tolist() == [2, 6, 9]
    assert torch.stack([card(1.0), card(2.0)]).device == torch.device("spyre:0")
    clamped = torch.clamp(card([1.0, 5.0]), min=None, max=card([2.0, 2.0]))
    assert clamped.tolist() == [1, 2]
    indices = torch.tril_indices(3, 3, device="spyre:1")
    assert indices.device == torch.device("spyre:1")
    assert indices.cpu().equal(torch.tril_indices(3, 3))
    with torch.accelerator.device_index(1):
        assert torch.arange(3, device="spyre").device == torch.device("spyre:1")
    assert torch.bincount(card([1, 1, 0], torch.int64)).tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_zero_sizes(driver: FakeDriver, shape: tuple[int, ...]) -> None:
    a = torch.ones(shape, device="spyre")
    assert (a + 1).shape == shape
    assert a.mul_(2).shape == shape
    assert a.sum().item() == 0.0
    assert torch.cat([a, a]).device == a.device
    assert torch.add(a, 1, out=torch.empty(3, device="spyre")[:0].view(shape)).shape == shape


def test_strides_of_results_are_the_cpu_s(driver: FakeDriver) -> None:
    base = torch.arange(120.0).view(2, 3, 4, 5)
    for view in (
        base,
        base.permute(0, 2, 3, 1),
        base.contiguous(memory_format=torch.channels_last),
        base[:, ::2],
        base.permute(3, 1, 0, 2)[::2],
        base[:1].expand(2, 3, 4, 5),
    ):
        ours = torch.empty(0, device="spyre")
        ours.set_(view._base.to("spyre") if view._base is not None else view.to("spyre"))
        ours = ours.as_strided(view.shape, view.stride(), view.storage_offset())
        assert torch.sin(ours).stride() == torch.sin(view).stride()
        assert torch.sin(ours).cpu().equal(torch.sin(view))


def test_conjugate_and_negative_views(driver: FakeDriver) -> None:
    host = torch.tensor([1 + 2j, 3 - 1j])
    ours = host.to("spyre")
    assert ours.conj().cpu().equal(host.conj().resolve_conj())
    assert (ours.conj() * 2).cpu().equal(host.conj() * 2)
    assert (ours.conj().imag + 1).cpu().equal(host.conj().imag + 1)
    assert torch.dot(ours.conj(), ours).cpu().equal(torch.dot(host.conj(), host))
    target = ours.clone()
    target.conj().mul_(1j)
    expected = host.clone()
    expected.conj().mul_(1j)
    assert target.cpu().equal(expected)


def test_an_out_tensor_that_the_cpu_kernel_leaves_conjugated(driver: FakeDriver) -> None:
    matrix = torch.tensor([[2 + 1j, 1], [1, 3 - 1j]])
    rhs = torch.tensor([[1j, 2], [3, 4 + 1j]])
    factors, pivots = torch.linalg.lu_factor(matrix)
    expected = torch.linalg.lu_solve(factors, pivots, rhs, left=False, adjoint=True)
    out = torch.empty(0, dtype=torch.complex64, device="spyre")
    arguments = [tensor.to("spyre") for tensor in (factors, pivots, rhs)]
    torch.linalg.lu_solve(*arguments, left=False, adjoint=True, out=out)
    assert torch.allclose(out.cpu(), expected.resolve_conj())


def test_batch_norm_updates_statistics_that_no_schema_mentions(driver: FakeDriver) -> None:
    torch.manual_seed(0)
    host = torch.nn.BatchNorm1d(3)
    ours = torch.nn.BatchNorm1d(3).to("spyre")
    batch = torch.randn(8, 3)
    assert torch.allclose(ours(batch.to("spyre")).cpu(), host(batch), atol=1e-6)
    assert torch.allclose(ours.running_mean.cpu(), host.running_mean)
    assert torch.allclose(ours.running_var.cpu(), host.running_var)
    host.eval()
    ours.eval()
    assert torch.allclose(ours(batch.to("spyre")).cpu(), host(batch), atol=1e-6)
    assert torch.allclose(ours.running_mean.cpu(), host.running_mean)


def test_autocast_of_the_cpu_does_not_reach_inside(driver: FakeDriver) -> None:
    a = card([[1.0, 2.0], [3.0, 4.0]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.linalg.inv(a).dtype is torch.float32
        assert torch.mm(a, a).dtype is torch.float32


def test_gradients_flow(driver: FakeDriver) -> None:
    host = torch.linspace(0.1, 1, 6).view(2, 3).requires_grad_()
    ours = host.detach().to("spyre").requires_grad_()
    for x in (host, ours):
        ((x @ x.t()).tanh() * x.softmax(1).sum()).norm().backward()
    assert ours.grad is not None
    assert host.grad is not None
    assert ours.grad.device == torch.device("spyre:0")
    assert torch.allclose(ours.grad.cpu(), host.grad, atol=1e-6)


def test_an_op_without_a_cpu_kernel_says_so(driver: FakeDriver) -> None:
    library = torch.library.Library("bridge_test", "FRAGMENT")
    library.define("nowhere(Tensor x) -> Tensor")
    library.define("peek(Tensor(a) x) -> Tensor(a)")
    library.impl("peek", lambda x: x.view(-1), "CPU")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    with pytest.raises(NotImplementedError, match="bridge_test::nowhere is not implemented for"):
        torch.ops.bridge_test.nowhere(card([1.0]))
    with pytest.raises(NotImplementedError, match="bridge_test::peek returns a view"):
        torch.ops.bridge_test.peek(card([1.0]))
    assert torch.ops.bridge_test.twice(card([1.0])).tolist() == [2.0]
    assert driver.fallbacks[-1] == "bridge_test::twice"


def test_an_error_of_the_cpu_kernel_arrives_and_nothing_is_written(driver: FakeDriver) -> None:
    a = card([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.mm(a, card([[1.0, 2.0]]))
    with pytest.raises(IndexError, match="out of range"):
        a.sum(5)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.zeros(2, 2, device="spyre"))
    with pytest.raises(IndexError):
        a[card([7], torch.int64)]
    assert a.tolist() == [[1, 2], [3, 4]]


def test_results_land_on_the_card_of_the_arguments(driver: FakeDriver) -> None:
    torch.accelerator.set_device_index(0)
    a = card([4.0, 1.0], device="spyre:1")
    assert torch.sqrt(a).device == torch.device("spyre:1")
    assert {t.device for t in torch.sort(a)} == {torch.device("spyre:1")}
    assert torch.zeros_like(a, device="spyre:0").device == torch.device("spyre:0")
    assert _bridge.current_device() == 0


def test_nothing_is_left_behind(driver: FakeDriver) -> None:
    a = card([1.0, 2.0])
    live = len(driver.blocks)
    for _ in range(3):
        (a + a).sum()
        with pytest.raises(RuntimeError):
            a.view(2, 1) @ a.view(2, 1)
    assert len(driver.blocks) == live
