"""Device identity: torch.device("spyre"), torch.spyre and torch.accelerator, which agree."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def on_card_zero() -> Iterator[None]:
    torch.spyre.set_device(0)
    yield
    torch.spyre.set_device(0)


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert torch.spyre.is_available()
    device = torch.device("spyre")
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    y = x + 2
    print(y)
    assert "device='spyre:0'" in capsys.readouterr().out
    assert y.cpu().tolist() == [[3.0, 4.0], [5.0, 6.0]]


def test_the_device_is_torchs_own_kind_of_device() -> None:
    assert torch.device("spyre", 1) == torch.device("spyre:1")
    assert torch.device("spyre:1").type == "spyre" and torch.device("spyre:1").index == 1
    assert torch.device("spyre").index is None
    assert torch.utils.backend_registration._privateuse1_backend_name == "spyre"
    assert torch._C._get_privateuse1_backend_name() == "spyre"
    assert torch.device("spyre:1") in {torch.device("spyre:1")}


def test_torch_accelerator_speaks_of_the_card() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("spyre")
    assert torch.accelerator.device_count() == torch.spyre.device_count() == 2
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == torch.spyre.current_device() == 1
    assert torch.empty(1, device="spyre").device.index == 1
    torch.accelerator.set_device_index("spyre:0")
    with torch.accelerator.device_index(1):
        assert torch.ones(1, device="spyre").device.index == 1
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.synchronize()
    torch.accelerator.synchronize("spyre:1")
    torch.accelerator.empty_host_cache()
    with torch.accelerator.current_stream(1) as stream:
        assert stream.device == torch.device("spyre:1")
    with pytest.raises(RuntimeError, match="not supported on device type: spyre"):
        torch.accelerator.Graph()


def test_dtypes_of_the_card() -> None:
    from tests.support import NUMBERS

    supported = torch.accelerator.get_device_capability("spyre:0")["supported_dtypes"]
    assert set(NUMBERS) <= set(supported)
    assert torch.spyre.get_device_capability(1)["supported_dtypes"] == supported
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_the_current_card_by_context() -> None:
    with torch.spyre.device(1):
        assert torch.spyre.current_device() == 1
        with torch.spyre.device("spyre:0"):
            assert torch.empty(1, device="spyre").device.index == 0
        with torch.spyre.device(None):
            assert torch.spyre.current_device() == 1
        with torch.spyre.device_of(torch.empty(0, device="spyre:0")):
            assert torch.spyre.current_device() == 0
        with torch.spyre.device_of(torch.empty(0)):
            assert torch.spyre.current_device() == 1
    assert torch.spyre.current_device() == 0
    with pytest.raises(KeyError), torch.spyre.device(1):
        raise KeyError
    assert torch.spyre.current_device() == 0


def test_torch_device_as_context_and_default() -> None:
    with torch.device("spyre:1"):
        assert torch.ones(2).device == torch.device("spyre:1")
        assert torch.nn.Linear(2, 2).weight.device == torch.device("spyre:1")
    torch.set_default_device("spyre")
    try:
        assert torch.arange(3).device == torch.device("spyre:0")
        assert torch.tensor([1.0]).device == torch.device("spyre:0")
    finally:
        torch.set_default_device(None)


def test_properties_of_a_card() -> None:
    properties = torch.spyre.get_device_properties("spyre:1")
    assert properties.name == torch.spyre.get_device_name(1)
    assert (properties.index, properties.multi_processor_count) == (1, 32)
    assert (properties.stick_bytes, properties.scratchpad_bytes) == (128, 2 << 20)
    assert properties.total_memory == torch.accelerator.get_memory_info(1)[1]
    assert properties.mode in ("pf", "vf") and "Emulated" in repr(properties)


def test_methods_that_torch_generates() -> None:
    host = torch.ones(2, 3)
    card = host.spyre(1)
    assert card.is_spyre and not host.is_spyre
    assert card.device == torch.device("spyre:1")
    assert host.spyre().device == torch.device("spyre:0")
    assert card.untyped_storage().is_spyre and host.untyped_storage().spyre().is_spyre
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).spyre()
    assert all(tensor.is_spyre for tensor in module.state_dict().values())
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
    assert packed.spyre().is_spyre


def test_moving_a_module_keeps_its_parameters() -> None:
    module = torch.nn.Linear(3, 2)
    weight = module.weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module.to("spyre")
    assert module.weight is weight and weight.is_spyre
    module(torch.ones(1, 3, device="spyre")).sum().backward()
    before = weight.detach().cpu().clone()
    optimizer.step()
    assert weight.detach().cpu().allclose(before - 0.5)
    module.cpu()
    assert module.weight is weight and weight.device.type == "cpu"


@pytest.mark.finds("uninitialised")
def test_factories_take_the_device() -> None:
    device = torch.device("spyre:1")
    like = torch.empty(2, 2, device=device)
    for made in (
        torch.empty((2, 3), device=device),
        torch.empty_strided((2, 3), (1, 2), device=device),
        torch.arange(4, device=device),
        torch.linspace(0, 1, 3, device=device),
        torch.eye(2, device=device),
        torch.tensor([1, 2], device=device),
        torch.as_tensor([1, 2], device=device),
        torch.randn(2, device=device),
        torch.zeros_like(like),
        torch.ones_like(torch.ones(2), device=device),
        like.new_empty(3),
        like.new_tensor([1.0]),
        like.new_full((2,), 3),
        torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last),
        torch.asarray([1.0], device=device),
        torch.tril_indices(2, 2, device=device),
        torch.complex(like, like),
    ):
        assert made.device == device
    assert torch.eye(2, device=device).tolist() == [[1, 0], [0, 1]]
    assert torch.empty_strided((2, 3), (1, 2), device=device).stride() == (1, 2)


def test_the_card_starts_with_the_first_tensor_and_says_so() -> None:
    torch.ones(1, device="spyre")
    assert torch.spyre.is_initialized()
    assert repr(torch.accelerator.current_stream("spyre:1")).count("spyre") >= 1
