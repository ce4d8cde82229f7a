"""Answers to the exercises of chapter 0. ``ops`` is a module or namespace that has the operations.

1. Predict. A submission is on the clock before its operation can start, so "load" starts at 1000
   and ends at 10192. "think" is the third submission, on an idle queue with an idle pipeline: 3000.
   The wait is over when the signal fires, at 10192: "save" starts there. "more" is submitted sixth,
   to a queue in order: it starts behind the signal, at 10192, on a pipeline long free.
"""

from collections import Counter

PREDICTION = {"load": 1000, "think": 3000, "save": 10192, "more": 10192}


# 2. Extend. Forwards, a block's steps wait for one another. Backwards, a place may be written again
# only when the block before it in that place has been fetched.
def stream_through(ops, bench, blocks, results, duration):
    """Fill ``results`` with the bytes of ``blocks``, doubled, through two places on the card."""
    send, work, fetch = bench.queue, bench.card.new_queue(), bench.card.new_queue()
    emptied = [None, None]

    def signal(queue):
        queue.submit(fired := ops.EventSignal())
        return fired

    for number, (block, result) in enumerate(zip(blocks, results, strict=True)):
        place = bench.block(number % 2)
        if emptied[number % 2] is not None:
            send.submit(ops.EventWait(emptied[number % 2]))
        send.submit(ops.H2D(block, place))
        work.submit(ops.EventWait(signal(send)))
        work.submit(ops.Compute(duration, doubling(place), (place,), (place,)))
        fetch.submit(ops.EventWait(signal(work)))
        fetch.submit(ops.D2H(place, result))
        emptied[number % 2] = signal(fetch)


def doubling(span):
    """The effect of a computation: every byte of ``span`` times two."""
    return lambda memory: memory.write(span, memory.read(span) * 2)


# 3. Open. Each queue keeps a clock: how many operations of every queue are known to be over when
# its next one starts. A signal stores its queue's clock, a wait takes it over. An earlier operation
# that the clock does not cover may still be running. Each submission looks at all earlier ones,
# which is slow with a thousand pending: a map from bytes to their last writer and readers is not.
def races(submitted):
    """The pairs of operations in ``submitted``, (queue, operation) in order, that race."""
    clocks, at_signal, earlier, found = {}, {}, [], []
    for queue, operation in submitted:
        clock = clocks.setdefault(queue, Counter())
        if signal := getattr(operation, "signal", None):
            clock |= at_signal[signal]  # of two counts, the larger
        for other_queue, number, other in earlier:
            if number > clock[other_queue] and conflict(other, operation):
                found.append((other, operation))
        clock[queue] += 1
        earlier.append((queue, clock[queue], operation))
        if hasattr(operation, "event"):
            at_signal[operation] = clock.copy()
    return found


def conflict(one, two):
    """Whether two operations share a byte that one of them writes."""
    pairs = [(one.writes, two.writes), (one.writes, two.reads), (one.reads, two.writes)]
    return any(overlap(a, b) for left, right in pairs for a in left for b in right)


def overlap(one, two):
    """Whether the footprints of two ranges share a byte."""
    return any(
        region == other and start < end and begin < stop
        for region, start, stop in one.footprint()
        for other, begin, end in two.footprint()
    )
