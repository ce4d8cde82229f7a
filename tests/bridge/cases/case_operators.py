"""The metadata operators: factories, views that alias, resize_, set_, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from fake_driver import FakeDriver
from torch import Tensor

from torch_spyre_ref import _bridge


def card(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """0, 1, 2, … in this shape, on spyre:0."""
    count = torch.Size(shape).numel()
    return torch.arange(count).to(dtype).view(shape).to("spyre")


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex128, torch.float8_e5m2])
def test_factories_agree_with_the_cpu(
    driver: FakeDriver, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    for make in (
        lambda device: torch.empty(shape, dtype=dtype, device=device),
        lambda device: torch.empty_strided(
            shape, tuple(range(len(shape))), dtype=dtype, device=device
        ),
        lambda device: torch.empty(shape, dtype=dtype, device=device).contiguous(),
    ):
        ours, cpu = make("spyre"), make("cpu")
        assert (ours.shape, ours.stride(), ours.dtype) == (cpu.shape, cpu.stride(), cpu.dtype)
        assert ours.untyped_storage().nbytes() == cpu.untyped_storage().nbytes()


def test_memory_formats(driver: FakeDriver) -> None:
    ours = torch.empty(2, 3, 4, 5, device="spyre", memory_format=torch.channels_last)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    assert torch.empty_like(ours).stride() == ours.stride()


def test_default_dtype(driver: FakeDriver) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.empty(1, device="spyre").dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_negative_sizes_are_refused(driver: FakeDriver) -> None:
    with pytest.raises(RuntimeError, match="negative dimension -1"):
        torch.empty(2, -1, device="spyre")
    with pytest.raises(RuntimeError, match="negative"):
        torch.empty_strided((-2,), (1,), device="spyre")
    with pytest.raises(RuntimeError, match="negative"):
        torch.empty(2, device="spyre").resize_(-1)
    with pytest.raises(RuntimeError):
        torch.empty(1 << 62, 1 << 62, device="spyre")
    assert driver.blocks == {}


# torch 2.14 warns of what it is about to drop.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:Sparse")
def test_layouts_that_a_card_cannot_store_are_refused(driver: FakeDriver) -> None:
    only_strided = "stores strided"
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.empty(2, 2, device="spyre", layout=torch.sparse_coo)
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.empty(2, 2, device="spyre", layout=torch.sparse_csr)
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), [1.0], device="spyre")
    with pytest.raises(NotImplementedError, match=only_strided):
        card(2, 2).to_sparse()
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), [1.0]).to("spyre")
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.eye(2).to_sparse_csr().to("spyre")
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.sparse_csr_tensor([0, 1], [0], [1.0], size=(1, 1), device="spyre")
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.sparse_bsr_tensor(*(card(n) for n in (2, 1)), card(1, 1, 1), size=(1, 1))
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.quantize_per_tensor(card(4), 0.1, 0, torch.qint8)
    with pytest.raises(NotImplementedError, match=only_strided):
        torch.empty(2, device="spyre", dtype=torch.qint8)
    with pytest.raises(NotImplementedError, match=only_strided):
        card(2, 2).to_mkldnn()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device="spyre", pin_memory=True)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "as_strided": lambda t: t.as_strided((2, 3), (1, 2), 1),
    "view": lambda t: t.view(4, 6),
    "view dtype": lambda t: t.view(torch.int32),
    "view narrower dtype": lambda t: t.view(torch.int16),
    "_reshape_alias": lambda t: torch.ops.aten._reshape_alias(t, (6, 4), (4, 1)),
    "reshape": lambda t: t.reshape(2, 12),
    "unfold": lambda t: t.unfold(2, 2, 1),
    "view_as_complex": lambda t: torch.view_as_complex(t.view(3, 4, 2)),
    "view_as_real": lambda t: torch.view_as_real(torch.view_as_complex(t.view(3, 4, 2))),
    "expand": lambda t: t[:1].expand(5, 2, 4),
    "permute": lambda t: t.permute(2, 0, 1),
    "transpose": lambda t: t.transpose(0, 2),
    "diagonal": lambda t: t.diagonal(0, 0, 1),
    "select": lambda t: t[1],
    "slice": lambda t: t[::2, 1:, ::3],
    "squeeze": lambda t: t[:1].squeeze(),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "narrow": lambda t: t.narrow(2, 1, 2),
    "unflatten": lambda t: t.unflatten(2, (2, 2)),
    "flatten": lambda t: t.flatten(),
    "movedim": lambda t: t.movedim(0, 2),
    "unbind": lambda t: t.unbind(1)[1],
    "chunk": lambda t: t.chunk(2, 2)[1],
    "split": lambda t: t.split([1, 2])[1],
    "hsplit": lambda t: t.hsplit(2)[1],
    "tensor_split": lambda t: t.tensor_split(2, dim=2)[0],
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "detach": lambda t: t.detach(),
    "alias": lambda t: torch.ops.aten.alias(t),
    "real": lambda t: torch.view_as_complex(t.view(3, 4, 2)).real,
    "imag": lambda t: torch.view_as_complex(t.view(3, 4, 2)).imag,
    "conj": lambda t: torch.view_as_complex(t.view(3, 4, 2)).conj(),
    "neg view": lambda t: torch._neg_view(t),
    "view_as": lambda t: t.view_as(torch.empty(24)),
    "T": lambda t: t[0].T,
    "mT": lambda t: t.mT,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_alias_and_never_fall_back(driver: FakeDriver, name: str) -> None:
    view = VIEWS[name]
    base = card(3, 2, 4)
    host = base.cpu()
    driver.fallbacks.clear()
    ours, cpu = view(base), view(host)
    assert driver.fallbacks == []
    assert (ours.shape, ours.stride()) == (cpu.shape, cpu.stride())
    assert ours.storage_offset() == cpu.storage_offset()
    assert _bridge.allocation(ours) is _bridge.allocation(base)
    assert ours.cpu().tolist() == cpu.tolist()
    if name == "expand":
        return
    fresh = torch.full(cpu[..., :1].shape, 7, dtype=cpu.dtype)
    ours[..., :1] = fresh.to("spyre")
    cpu[..., :1] = fresh
    assert base.cpu().equal(host)


def returns_a_view(schema: torch.FunctionSchema) -> bool:
    """Whether an op's result shares memory with an argument that it does not write."""
    aliases = [result.alias_info for result in schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def cpu_ops() -> Iterator[tuple[str, torch.FunctionSchema]]:
    """Every op that has a kernel of its own on the CPU."""
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".")
        try:
            if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU"):
                yield name, schema
        except RuntimeError:
            continue  # a TorchScript builtin, which the dispatcher does not know


def test_every_op_that_returns_a_view_has_a_kernel_of_its_own(driver: FakeDriver) -> None:
    views = {name for name, schema in cpu_ops() if returns_a_view(schema)}
    assert {"aten::view", "aten::unfold", "aten::view_as_real"} <= views
    missing = {
        name
        for name in views
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
    }
    # Nested tensors are not stored; the fallback refuses the op rather than breaking the alias.
    assert missing == {"aten::_nested_view_from_buffer"}


def test_every_op_that_takes_a_storage_or_stream_has_a_kernel_of_its_own(
    driver: FakeDriver,
) -> None:
    for name, schema in cpu_ops():
        if any(str(argument.type) in ("Storage", "Stream") for argument in schema.arguments):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1"), name


def test_resize_grows_keeps_and_shrinks(driver: FakeDriver) -> None:
    tensor = card(2, 3)
    allocation = _bridge.allocation(tensor)
    assert tensor.resize_(2, 2) is tensor
    assert _bridge.allocation(tensor) is allocation
    assert tensor.cpu().tolist() == [[0, 1], [2, 3]]
    live = len(driver.blocks)
    tensor.resize_(3, 4)
    assert tensor.stride() == (4, 1)
    assert tensor.flatten()[:6].cpu().tolist() == [0, 1, 2, 3, 4, 5]
    assert len(driver.blocks) == live
    tensor.resize_(0)
    assert tensor.shape == (0,)
    tensor.resize_(1, 2, 3, 4, memory_format=torch.channels_last)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="Unsupported memory format"):
        tensor.resize_(1, memory_format=torch.preserve_format)


def test_resize_of_a_view_reaches_only_as_far_as_it_must(driver: FakeDriver) -> None:
    base = card(8)
    view = base[2:4]
    view.resize_(3)
    assert view.cpu().tolist() == [2, 3, 4]
    assert base.untyped_storage().nbytes() == 32
    view.resize_(10)
    assert base.untyped_storage().nbytes() == 48
    assert view[:6].cpu().tolist() == [2, 3, 4, 5, 6, 7]
    assert base.cpu().tolist() == list(range(8))


def test_set_in_all_its_forms(driver: FakeDriver) -> None:
    source = card(2, 3)
    tensor = torch.empty(0, device="spyre")
    tensor.set_(source)
    assert tensor.cpu().tolist() == source.cpu().tolist()
    tensor.set_(source.untyped_storage(), 1, (2, 2), (3, 1))
    assert tensor.cpu().tolist() == [[1, 2], [4, 5]]
    tensor.set_(source.untyped_storage())
    assert tensor.cpu().tolist() == [0, 1, 2, 3, 4, 5]
    tensor.set_(source.untyped_storage(), 0, (2, 8))
    assert source.untyped_storage().nbytes() == 64
    assert tensor.stride() == (8, 1)
    tensor.set_()
    assert tensor.shape == (0,)
    assert tensor.device == source.device
    assert _bridge.allocation(tensor) is None
    with pytest.raises(RuntimeError, match="devices must match"):
        tensor.set_(torch.ones(1))
    with pytest.raises(RuntimeError, match="devices must match"):
        tensor.set_(torch.ones(1, device="spyre:1"))
    with pytest.raises(RuntimeError, match="invalid storage offset -1"):
        tensor.set_(source.untyped_storage(), -1, (1,), (1,))
    with pytest.raises(torch.OutOfMemoryError):
        tensor.set_(source.untyped_storage(), 0, (1 << 30,))
    with pytest.raises(RuntimeError, match="negative dimension"):
        tensor.set_(source.untyped_storage(), 0, (-1,))
    assert tensor.shape == (0,)
    assert _bridge.allocation(tensor) is None
    with pytest.raises(RuntimeError, match="unequal size length"):
        tensor.set_(source.untyped_storage(), 0, (1, 1), (1,))


def test_a_module_moves_in_place_under_its_optimizer(driver: FakeDriver) -> None:
    module = torch.nn.Linear(3, 2)
    weight = module.weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module.to("spyre")
    assert module.weight is weight
    assert weight.device == torch.device("spyre:0")
    before = weight.detach().cpu()
    module(torch.ones(1, 3, device="spyre")).sum().backward()
    optimizer.step()
    assert torch.allclose(before - weight.detach().cpu(), torch.full((2, 3), 0.5))
    module.cpu()
    assert module.weight is weight
    assert weight.is_cpu


def test_deterministic_mode_fills_fresh_memory(driver: FakeDriver) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="spyre").isnan().all().item()
        small = torch.empty_strided((2,), (1,), dtype=torch.int8, device="spyre")
        assert small.tolist() == [127] * 2
        assert small.fill_(1).resize_(4).tolist() == [1, 1, 127, 127]
    finally:
        torch.use_deterministic_algorithms(False)


def test_autocast_lets_unlisted_ops_through(driver: FakeDriver) -> None:
    with torch.autocast("spyre", dtype=torch.float16):
        assert (card(3) + 1).tolist() == [1, 2, 3]


def test_a_legacy_constructor_and_an_untyped_storage(driver: FakeDriver) -> None:
    assert torch.tensor([1, 2], device="spyre").new_zeros(2).device == torch.device("spyre:0")
    storage = torch.UntypedStorage(8, device="spyre:1")
    assert _bridge.storage_allocation(storage).device == 1
