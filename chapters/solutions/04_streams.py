"""Answers to the exercises of chapter 4.

1. Predict. A read waits for the writer before it: 2 and 3 for 1. Step 4 reads too, but on the stream
   of step 1, which is in order. The write of step 5 comes after all three readers: 3 is of its own
   stream, 4 and 2 are not, and nothing orders those two with each other, so both are needed; that it
   comes after 1 follows. From then on each step comes after the one before it, and all else follows.
"""

import torch

PREDICTION = {
    "1: A writes x": (),
    "2: B reads x": (1,),
    "3: C reads x": (1,),
    "4: A reads x": (),
    "5: C writes x": (4, 2),
    "6: B writes x": (5,),
    "7: A reads x": (6,),
}


# 2. Extend. Behind each computation an event is recorded; the copy that uses the buffer again, two
# batches later, waits for that one. What `work` was given in between it does not wait for. (One event
# will do, since it means its latest recording: recorded in front of each computation, it stands for
# the one before, and the next copy waits for it. `by_one_event` is that.)
def double_buffered(sources, buffers, send, work, use):
    """Copy each of ``sources`` to one of two ``buffers`` in turn, and compute on it."""
    read = {}
    for number, source in enumerate(sources):
        buffer = buffers[number % 2]
        if number >= 2:
            send.wait_event(read[number - 2])
        with send:
            buffer.copy_(source, non_blocking=True)
        work.wait_stream(send)
        with work:
            use(buffer, number)
        read[number] = work.record_event()


def by_one_event(sources, buffers, send, work, use):
    """The same, by an event that is recorded again for each batch."""
    before = torch.Event("spyre")
    for number, source in enumerate(sources):
        buffer = buffers[number % 2]
        send.wait_event(before)
        with send:
            buffer.copy_(source, non_blocking=True)
        work.wait_stream(send)
        before.record(work)
        with work:
            use(buffer, number)


# 3. Open. Walk back from the operation that ended last, to one that ended at the moment at which this
# one started; where there is none, it had just been submitted, and the path begins. In the tight loop
# the path is every operation there is: only memory keeps the streams apart, so holding the tensors one
# turn longer shortens it. In the roomy one it is the first copy, all computations, and the last fetch:
# shorter computations, or none, would be next. When several operations end at one instant, the
# timeline does not say which of them was waited for. The order chosen here (the queue's own, then
# the pipeline's, then anybody) is a guess; the edges and the waits that were enqueued would tell.
def critical_path(records):
    """The chain of operations, first to last, that made the run as long as it was."""
    taking_time = [record for record in records if record.end > record.start]
    path = [max(taking_time, key=lambda record: record.end)]
    while True:
        now = path[0]
        before = [record for record in taking_time if record.end == now.start]
        if not before:
            return path
        path.insert(
            0,
            max(
                before,
                key=lambda one: (one.queue == now.queue, one.pipeline == now.pipeline, one.ticket),
            ),
        )
