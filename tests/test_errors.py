"""Bad input: a Python exception that says what was asked and what is wrong, and nothing changed."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from torch_spyre_ref import backend
from torch_spyre_ref.emulator.program.errors import IndexFaultError
from torch_spyre_ref.runtime import HostCallback, QueueError


@pytest.fixture(autouse=True)
def memory_and_queues_as_before() -> Iterator[None]:
    """Invariant 7: what is refused leaves queues, memory and statistics as before."""

    def state() -> tuple[object, ...]:
        cards = (0, 1)
        return (
            [torch.accelerator.memory_stats(card)["allocation.all.current"] for card in cards],
            [backend.current().queue(card).error for card in cards],
            torch.spyre.current_device(),
        )

    torch.ones(1, device="spyre:0"), torch.ones(1, device="spyre:1")
    before = state()
    yield
    assert state()[1:] == before[1:]
    assert torch.ones(2, device="spyre").add(1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "text", ["spyre:x", "spyre:", "spyre:-1", "spyre:01", "spyre:0:1", "spyre 0", "spyree", ":0"]
)
def test_device_strings_that_are_malformed(text: str) -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.device(text)


@pytest.mark.parametrize("index", [2, 7, 127])
def test_a_card_that_does_not_exist(index: int) -> None:
    device, named = torch.device("spyre", index), rf"spyre:{index}\b"
    host, card = torch.ones(2), torch.ones(2, device="spyre")
    uses: list[Callable[[], object]] = [
        lambda: torch.empty(2, device=device),
        lambda: host.to(device),
        lambda: card.to(device),
        lambda: host.spyre(index),
        lambda: torch.accelerator.set_device_index(index),
        lambda: torch.accelerator.synchronize(index),
        lambda: torch.accelerator.current_stream(index),
        lambda: torch.accelerator.memory_allocated(index),
        lambda: torch.accelerator.get_memory_info(index),
        lambda: torch.spyre.set_device(index),
        lambda: torch.spyre.device(index),
        lambda: torch.spyre.synchronize(index),
        lambda: torch.spyre.get_device_properties(index),
        lambda: torch.spyre.memory_summary(index),
        lambda: torch.Generator(device),
    ]
    for use in uses:
        with pytest.raises((RuntimeError, ValueError), match=f"{named}|does not exist"):
            use()


@pytest.mark.parametrize("index", [1000, -2])
def test_an_index_that_no_device_can_have(index: int) -> None:
    for use in (torch.spyre.set_device, torch.spyre.device, torch.spyre.memory_summary):
        with pytest.raises(ValueError, match=f"spyre:{index} does not exist"):
            use(index)


def test_another_kind_of_device_where_a_card_is_meant() -> None:
    for use in (torch.spyre.set_device, torch.spyre.device, torch.spyre.memory_allocated):
        with pytest.raises(ValueError, match="expected a spyre device, got cpu"):
            use("cpu")


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_layouts_that_a_card_does_not_store() -> None:
    sparse = torch.eye(4).to_sparse()
    for layout in (sparse, sparse.to_sparse_csr(), sparse.to_sparse_bsr((2, 2))):
        with pytest.raises(NotImplementedError, match="stores strided, unquantized tensors only"):
            layout.to("spyre")
    with pytest.raises((NotImplementedError, RuntimeError), match=r"strided|dense|Sparse"):
        torch.eye(3, device="spyre").to_sparse()
    with pytest.raises(NotImplementedError, match="stores strided, unquantized tensors only"):
        torch.empty(3, layout=torch.sparse_coo, device="spyre")
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2,), device="spyre")
    with pytest.raises((NotImplementedError, RuntimeError), match=r"strided|nested|Nested"):
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided).to("spyre")
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.eye(3).to_mkldnn().to("spyre")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors_stay_on_the_cpu() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"quantized|Quantized"):
        quantized.to("spyre")


def test_a_failing_op_on_a_temporary_keeps_its_message() -> None:
    """The temporaries' deleters run while the exception is on its way."""
    for device in ("spyre", "cpu"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            torch.ones(2, 3, device=device) @ (torch.ones(2, 3, device=device) + 1)
        assert "2x3 and 2x3" in str(caught.value)
    with pytest.raises(RuntimeError, match=r"must match the existing size \(3\)"):
        (torch.ones(2, device="spyre") + 1).copy_(torch.ones(3))


def test_an_index_out_of_bounds_is_found_by_the_card_and_poisons_its_queue() -> None:
    torch.ones(2, device="spyre")[torch.tensor([5], device="spyre")]
    with pytest.raises(IndexFaultError, match="index 5 is out of bounds"):
        torch.spyre.synchronize()
    torch.spyre.reset()
    assert torch.ones(2, device="spyre").tolist() == [1, 1]


def test_an_exception_of_the_users_own_passes_through_freed_tensors() -> None:
    class OwnError(Exception):
        pass

    def fail() -> None:
        tensor = torch.ones(2, device="spyre")
        raise OwnError("mine") if tensor.is_spyre else None

    with pytest.raises(OwnError, match=r"^mine$"):
        fail()


def test_in_place_ops_check_dtypes_and_shapes_first() -> None:
    card = torch.ones(3, dtype=torch.int32, device="spyre")
    with pytest.raises(RuntimeError, match="can't be cast"):
        card.add_(0.5)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        card.add_(torch.ones(2, 3, dtype=torch.int32, device="spyre"))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        card.view(2, 2)
    with pytest.raises(RuntimeError, match=r"view size is not compatible|use .reshape"):
        torch.ones(2, 3, device="spyre").t().view(6)
    assert card.tolist() == [1, 1, 1]


def test_wrong_kinds_of_arguments_to_the_bridge() -> None:
    from torch_spyre_ref import _bridge

    for use in (_bridge.allocation, _bridge.locate, _bridge.storage_allocation):
        with pytest.raises(TypeError):
            use(torch.ones(2))
        with pytest.raises(TypeError):
            use("no tensor")


@pytest.fixture
def poisoned() -> Iterator[None]:
    """An operation of card 1 fails: its queue refuses everything until it is reset."""
    from torch_spyre_ref.runtime import HostCallback

    queue = backend.current().queue(1)

    def fail() -> None:
        raise ArithmeticError("the unit failed")

    queue.submit(HostCallback(fail))
    yield
    queue.reset()


def test_what_fails_in_execution_is_raised_once_by_synchronize(poisoned: None) -> None:
    """Invariant 7, the other half: the queue stays poisoned until it is reset."""
    other = torch.ones(2, device="spyre:0")
    with pytest.raises(ArithmeticError, match="the unit failed"):
        torch.accelerator.synchronize("spyre:1")
    torch.accelerator.synchronize("spyre:1")
    with pytest.raises(RuntimeError, match=r"poisoned .* ArithmeticError\('the unit failed'\)"):
        other.to("spyre:1")
    assert other.add(1).tolist() == [2.0, 2.0]


def test_an_allocation_on_a_poisoned_queue_is_not_lost(poisoned: None) -> None:
    before = torch.accelerator.memory_stats(1)["allocation.all.current"]
    with pytest.raises(ArithmeticError):
        torch.accelerator.synchronize("spyre:1")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="poisoned"):
            torch.empty(100, device="spyre:1")
    assert torch.accelerator.memory_stats(1)["allocation.all.current"] == before


def test_a_storage_of_negative_size_is_refused() -> None:
    storage = torch.empty(4, device="spyre").untyped_storage()
    with pytest.raises(RuntimeError, match="cannot resize a storage to -8 bytes"):
        storage.resize_(-8)
    assert storage.nbytes() == 16


def test_the_capability_of_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match="7"):
        torch.accelerator.get_device_capability(7)


def test_a_reset_makes_a_card_good_again() -> None:
    def fail() -> None:
        raise OSError("the link is down")

    queue = backend.current().runtime.cards[0].default_queue
    queue.submit(HostCallback(fail))
    with pytest.raises(OSError, match="the link is down"):
        torch.spyre.synchronize(0)
    kept = torch.ones(3)
    with pytest.raises(QueueError, match="poisoned"):
        kept.to("spyre:0")
    assert torch.equal(kept.to("spyre:1").cpu(), kept)
    torch.spyre.reset(0)
    assert torch.equal(kept.to("spyre:0").cpu(), kept)


@pytest.mark.parametrize("index", [128, 200, 254])
def test_an_index_that_torch_wraps_to_a_negative_one_is_refused(index: int) -> None:
    with pytest.raises(RuntimeError, match="does not exist"):
        torch.ones(1, device=f"spyre:{index}")


def test_recursion_to_the_limit_leaves_the_card_as_it_was() -> None:
    card, host = torch.ones(1000, device="spyre"), torch.ones(1000)

    def deeper(use: Callable[[], object]) -> None:
        use()
        deeper(use)

    uses: list[Callable[[], object]] = [
        lambda: card.copy_(host),
        lambda: card.cpu(),
        lambda: card + card,
        lambda: torch.empty(random.randrange(1, 9999), device="spyre"),
        lambda: torch.spyre.synchronize(),
    ]
    handler = signal.getsignal(signal.SIGINT)
    for use in uses:
        with pytest.raises(RecursionError):
            deeper(use)
        assert signal.getsignal(signal.SIGINT) is handler
        assert gc.isenabled()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: torch.ones(3, device="spyre").sum().item()).result(60) == 3.0
