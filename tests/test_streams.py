"""Streams, through PyTorch's own classes: which exist, what runs on them, who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.conftest import Run
from tests.streaming import LONG, busy, pinned, queue_of, recorded, settle
from tests.support import same_bits, values
from torch_spyre_ref import backend
from torch_spyre_ref.queueing.pool import STREAMS


@pytest.fixture(autouse=True)
def default_streams_again() -> Iterator[None]:
    yield
    settle()
    assert [torch.spyre.current_stream(card).stream_id for card in (0, 1)] == [0, 0]
    assert torch.accelerator.current_device_index() == 0


def test_the_classes_are_pytorchs_own() -> None:
    assert torch.spyre.Stream is torch.Stream and torch.spyre.Event is torch.Event
    assert type(torch.Stream()) is type(torch.accelerator.current_stream()) is torch.Stream


def test_making_and_naming_streams_starts_no_card(run_python: Run) -> None:
    out = run_python(
        """
        import torch
        stream = torch.Stream("spyre:1", priority=-1)
        with stream, torch.spyre.stream(torch.spyre.default_stream(0)):
            print(torch.spyre.current_stream(1) == stream)
        print(stream.query(), stream.synchronize(), torch.Event("spyre").query())
        torch.accelerator.synchronize()
        print(torch.spyre.is_initialized())
        """
    )
    assert out.split() == ["True", "True", "None", "True", "False"]


def test_every_card_has_a_default_stream_and_it_has_number_0() -> None:
    for card in (0, 1):
        default = torch.spyre.default_stream(card)
        assert default.stream_id == 0 and default.device == torch.device("spyre", card)
        assert default == torch.spyre.current_stream(f"spyre:{card}")
        assert queue_of(default) is backend.current().runtime.cards[card].default_queue
    assert torch.spyre.default_stream(0) != torch.spyre.default_stream(1)


def test_streams_are_told_apart_by_card_and_number() -> None:
    made = [torch.Stream(device) for device in ("spyre:0", "spyre:0", "spyre:1")]
    everyone = [*made, torch.spyre.default_stream(0), torch.spyre.default_stream(1)]
    assert len(set(everyone)) == len({s.native_handle for s in everyone}) == 5
    assert all(s.native_handle != 0 for s in everyone)
    again = torch.Stream(
        stream_id=made[1].stream_id, device_index=0, device_type=made[1].device_type
    )
    assert again == made[1] and hash(again) == hash(made[1])
    assert again.native_handle == made[1].native_handle and again != made[0]
    with torch.spyre.device(1):
        assert torch.Stream().device == torch.device("spyre:1")


@pytest.mark.parametrize("priority", [0, -1])
def test_a_card_has_32_streams_of_a_priority_and_hands_them_out_in_turn(priority: int) -> None:
    made = [torch.Stream("spyre:1", priority=priority) for _ in range(2 * STREAMS)]
    assert len(set(made)) == STREAMS == 32
    assert made[:STREAMS] == made[STREAMS:]
    assert {queue_of(stream).priority for stream in made} == {priority}


@pytest.mark.parametrize(("asked", "given"), [(3, 0), (0, 0), (-1, -1), (-9, -1)])
def test_a_priority_out_of_range_is_the_nearest_there_is(asked: int, given: int) -> None:
    assert queue_of(torch.Stream("spyre", priority=asked)).priority == given


def test_the_stream_of_higher_priority_gets_the_pipeline_first() -> None:
    streams = [torch.Stream("spyre"), torch.Stream("spyre"), torch.Stream("spyre", priority=-1)]
    target = torch.empty(3, LONG, device="spyre")
    source = pinned(LONG)
    with recorded() as done:
        for stream, row in zip(streams, target, strict=True):
            with stream:
                row.copy_(source, non_blocking=True)
    order = [streams[i] for i in (0, 2, 1)]
    assert [record.queue for record in done] == [queue_of(stream).name for stream in order]


WORK: dict[str, Callable[[torch.Tensor], object]] = {
    "copy from the host": lambda card: card.copy_(torch.ones(64)),
    "copy to the host": lambda card: card.cpu(),
    "copy on the card": lambda card: card.clone(),
    "copy to another card": lambda card: card.to("spyre:1"),
    "fill": lambda card: card.zero_(),
    "item": lambda card: card[3].item(),
    "new memory": lambda card: torch.ones(8, device="spyre"),
    "fallback": lambda card: torch.special.i0e(card),
    "fallback, in place": lambda card: card.erfinv_(),
    "random numbers": lambda card: card.normal_(),
    "resized storage": lambda card: card.clone().resize_(1 << 12),
    "matrix product": lambda card: card.view(8, 8) @ card.view(8, 8),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_work_goes_to_the_current_stream(work: Callable[[torch.Tensor], object]) -> None:
    stream, card = torch.Stream("spyre:0"), torch.ones(64, device="spyre:0")
    work(card)  # whatever has to be compiled and loaded is there now
    with recorded() as default:
        work(card)
    with recorded() as other, stream:
        work(card)
    assert [r[3:6] for r in default if r.card == 0] == [r[3:6] for r in other if r.card == 0]
    assert {r.queue.removesuffix(" preparation") for r in default if r.card == 0} == {"0.0"}
    assert {r.queue.removesuffix(" preparation") for r in other if r.card == 0} == {
        queue_of(stream).name
    }


@pytest.mark.finds("uninitialised")
def test_poison_goes_to_the_stream_that_takes_the_memory() -> None:
    stream = torch.Stream("spyre")
    busy(torch.spyre.default_stream())
    with stream:
        fresh = torch.empty(64, device="spyre")
        assert fresh.isnan().all()
    assert not torch.spyre.default_stream().query()


def test_each_thread_has_current_streams_of_its_own() -> None:
    mine, seen = torch.Stream("spyre:1"), []
    barrier = threading.Barrier(2)

    def look() -> None:
        seen.append(torch.spyre.current_stream(1))
        torch.spyre.set_stream(torch.Stream("spyre:1", priority=-1))
        barrier.wait(60)
        seen.append(torch.spyre.current_stream(1))
        seen.append(torch.spyre.current_device())

    with torch.spyre.stream(mine):
        thread = threading.Thread(target=look)
        thread.start()
        barrier.wait(60)
        assert torch.spyre.current_stream(1) == mine
        thread.join()
        assert torch.spyre.current_stream(1) == mine
    assert seen[0] == torch.spyre.default_stream(1)
    assert queue_of(seen[1]).priority == -1 and seen[2] == 1


def test_the_context_managers_put_streams_and_card_back() -> None:
    here, there = torch.Stream("spyre:0"), torch.Stream("spyre:1")

    def now() -> tuple[int, int, int]:
        current = (torch.spyre.current_stream(card).stream_id for card in (0, 1))
        return (torch.spyre.current_device(), *current)

    def inside(enter: Callable[[torch.Stream], object]) -> list[tuple[int, int, int]]:
        steps = []
        with enter(there) as entered:  # type: ignore[attr-defined]
            assert entered is there
            steps.append(now())
            with enter(here):  # type: ignore[attr-defined]
                steps.append(now())
            steps.append(now())
        return [*steps, now()]

    expected = [
        (1, 0, there.stream_id),
        (0, here.stream_id, there.stream_id),
        (1, 0, there.stream_id),
        (0, 0, 0),
    ]
    assert inside(torch.spyre.stream) == inside(lambda stream: stream) == expected
    with pytest.raises(KeyError), torch.spyre.stream(there):
        raise KeyError
    assert now() == (0, 0, 0)


def test_one_context_manager_can_be_entered_again_while_it_is_open() -> None:
    context, other = torch.spyre.stream(torch.Stream("spyre")), torch.Stream("spyre")
    with context as mine, torch.spyre.stream(other), context:
        assert torch.spyre.current_stream() == mine
    assert torch.spyre.current_stream() == torch.spyre.default_stream()


def test_none_in_the_place_of_a_stream_changes_nothing() -> None:
    with torch.Stream("spyre") as mine, torch.spyre.stream(None) as nothing:
        torch.spyre.set_stream(None)
        assert nothing is None and torch.spyre.current_stream() == mine


def test_setting_a_stream_makes_its_card_current() -> None:
    for set_stream in (torch.spyre.set_stream, torch.accelerator.set_stream):
        set_stream(torch.spyre.default_stream(1))
        assert torch.spyre.current_device() == 1
        torch.spyre.set_device(0)


def test_a_stream_number_that_the_pool_lacks_is_refused() -> None:
    kind = torch.spyre.default_stream().device_type
    stream = torch.Stream(stream_id=65, device_index=0, device_type=kind)
    with pytest.raises(ValueError, match="has no stream 65: its streams are 0 to 64"):
        stream.query()
    for number in (65, -1):
        stream = torch.Stream(stream_id=number, device_index=0, device_type=kind)
        for enter in (torch.accelerator.set_stream, torch.spyre.set_stream, stream.__enter__):
            with pytest.raises(ValueError, match=f"has no stream {number}"):
                enter(stream) if enter != stream.__enter__ else enter()
            assert torch.spyre.current_stream(0).stream_id == 0


def test_a_stream_that_was_never_handed_out_is_there_all_the_same(run_python: Run) -> None:
    out = run_python(
        """
        import torch
        kind = torch.spyre.default_stream().device_type
        with torch.Stream(stream_id=64, device_index=0, device_type=kind) as last:
            print(torch.spyre.current_stream().stream_id, torch.ones(1, device="spyre").item())
        """
    )
    assert out.split() == ["64", "1.0"]


def test_two_streams_move_both_ways_at_once_and_one_stream_does_not() -> None:
    there, back = pinned(LONG), pinned(LONG)
    cards = torch.ones(2, LONG, device="spyre")

    def makespan(first: torch.Stream, second: torch.Stream) -> float:
        with recorded() as done:
            with first:
                cards[0].copy_(there, non_blocking=True)
            with second:
                back.copy_(cards[1], non_blocking=True)
        duration = done[0].end - done[0].start
        return (done[-1].end - done[0].start) / duration

    one, other = torch.Stream("spyre"), torch.Stream("spyre")
    assert makespan(one, other) < 1.2
    assert makespan(one, one) >= 2


def test_a_copy_to_the_host_waits_for_its_own_stream_only() -> None:
    other, card = torch.Stream("spyre"), torch.ones(3, device="spyre")
    torch.spyre.synchronize()
    busy(other, 10_000_000)
    assert card.cpu().tolist() == [1, 1, 1] and card[0].item() == 1
    with torch.Stream("spyre"):
        assert card.tolist() == [1, 1, 1]
    torch.spyre.current_stream().synchronize()
    assert not other.query()
    torch.spyre.synchronize(1)
    assert not other.query()
    torch.accelerator.synchronize(0)
    assert other.query()


def test_a_stream_is_done_when_all_that_it_was_given_is() -> None:
    stream = torch.Stream("spyre")
    assert stream.query()
    busy(stream)
    assert not stream.query()
    stream.synchronize()
    assert stream.query()


def test_a_stream_that_waits_for_another_sees_what_that_one_wrote(no_derivation: None) -> None:
    writer, reader = torch.Stream("spyre"), torch.Stream("spyre")
    card, host = torch.zeros(LONG, device="spyre"), pinned(LONG, 0)
    torch.spyre.synchronize()
    with writer:
        card.copy_(pinned(LONG, 7), non_blocking=True)
    reader.wait_stream(writer)
    with reader:
        host.copy_(card, non_blocking=True)
    reader.synchronize()
    assert host.eq(7).all() and writer.query()


def test_waiting_holds_back_only_what_comes_later(no_derivation: None) -> None:
    slow, waiting = torch.Stream("spyre"), torch.Stream("spyre")
    busy(slow)
    before = waiting.record_event()
    waiting.wait_stream(slow)
    busy(slow, 1_000_000)  # after the wait was asked for
    after = waiting.record_event()
    before.synchronize()
    assert not after.query()
    after.synchronize()
    assert not slow.query()


def test_a_tensor_is_recorded_on_a_stream_without_more_ado() -> None:
    stream, tensor = torch.Stream("spyre"), torch.ones(3, device="spyre")
    tensor.record_stream(stream)
    torch.ones(0, device="spyre").record_stream(stream)
    del tensor
    stream.synchronize()


@pytest.mark.parametrize("stream", ["default", "other"])
def test_the_backward_pass_runs_on_the_streams_of_the_forward_pass(stream: str) -> None:
    """As torch documents it for CUDA: and gradients may be used after backward() as ever."""
    weight = values((16, 16), torch.float32)
    reference = weight.clone().requires_grad_()
    (reference @ reference).tanh().sum().backward()

    leaf = weight.to("spyre").requires_grad_()
    torch.spyre.synchronize()
    used = torch.Stream("spyre") if stream == "other" else torch.spyre.default_stream()
    with used:
        loss = (leaf @ leaf).tanh().sum()
    with recorded() as done:
        loss.backward()
        gradient = leaf.grad
    assert queue_of(used).name in {record.queue for record in done}
    assert gradient is not None and torch.allclose(gradient.cpu(), reference.grad)  # type: ignore[arg-type]
    leaf.grad = None


def test_threads_compute_on_streams_of_their_own() -> None:
    def work(seed: int) -> bool:
        host = values((32, 32), torch.float32, seed)
        device = f"spyre:{seed % 2}"
        with torch.Stream(device):
            card = host.to(device)
            for _ in range(3):
                card = (card @ card.t() / 100).tanh() + card
            expected = host
            for _ in range(3):
                expected = (expected @ expected.t() / 100).tanh() + expected
            return torch.allclose(card.cpu(), expected, rtol=1e-3, atol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))


def test_the_same_stream_from_two_threads_is_one_queue() -> None:
    stream = torch.Stream("spyre", priority=-1)
    barrier = threading.Barrier(4)

    def ask(_: int) -> object:
        barrier.wait(60)
        return queue_of(stream)

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1


def test_a_copy_between_cards_uses_the_current_stream_of_each() -> None:
    here, there = torch.Stream("spyre:0"), torch.Stream("spyre:1")
    source = values((100,), torch.float32).to("spyre:0")
    torch.spyre.synchronize(0)
    with recorded() as done, here, there:
        moved = source.to("spyre:1")
    assert {r.queue for r in done} == {queue_of(here).name, queue_of(there).name}
    assert same_bits(moved, source.cpu())


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("view", [False, True])
def test_a_copy_between_cards_is_done_for_whoever_comes_after_either_stream(
    no_derivation: None, side: str, view: bool
) -> None:
    here, there, third = torch.Stream("spyre:0"), torch.Stream("spyre:1"), torch.Stream("spyre:1")
    source, target = torch.ones(64, 64, device="spyre:0"), torch.zeros(64, 64, device="spyre:1")
    fetched = torch.zeros(64, 64).pin_memory()
    torch.spyre.synchronize(0), torch.spyre.synchronize(1)
    busy(there, 200_000)
    with here, there:
        if view:
            target[:, ::2].copy_(source[:, ::2])
        else:
            target.copy_(source)
    third.wait_stream(here if side == "source" else there)
    with third:
        fetched.copy_(target, non_blocking=True)
    third.synchronize()
    assert fetched[:, ::2].eq(1).all()
