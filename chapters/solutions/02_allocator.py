"""Answers to the exercises of chapter 2.

1. Predict. 100 numbers are 400 bytes, in a block of four sticks: 512. A view holds nothing of its
   own. The clone has 50 numbers, 200 bytes, two sticks: 256 more. `del x` frees nothing, because `y`
   looks at the same storage; `del y` does.
"""

from torch_spyre_ref.runtime import D2D, Chunk, CompositeAddress, DeviceRange

PREDICTION = {
    "x = torch.empty(100)": 512,
    "y = x[50:]": 512,
    "z = y.clone()": 768,
    "del x": 768,
    "del y": 256,
}


# 2. Extend. Each request and each free looks at all holes: short, and slow when there are many.
class FirstFit:
    """The free blocks of one region, in a list."""

    def __init__(self, region):
        self.region = region
        self.free = [(0, region.size)]

    @property
    def free_bytes(self):
        return sum(length for _, length in self.free)

    def holes(self):
        return list(self.free)

    def take(self, size):
        for place, (start, length) in enumerate(self.free):
            if length >= size:
                self.free[place : place + 1] = [(start + size, length - size)] * (length > size)
                return start
        return None

    def give(self, start, length):
        joined = []
        for hole in sorted([*self.free, (start, length)]):
            if joined and sum(joined[-1]) == hole[0]:
                joined[-1] = joined[-1][0], joined[-1][1] + hole[1]
            else:
                joined.append(hole)
        self.free = joined


# 3. Open. Move every chunk to the lowest free place of its region, in the order in which they lie,
# so that nothing is overwritten before it has moved. Operations already in this queue come before
# the moves, and are right; those of other queues must be over first. Whoever has looked up the old
# composite address and will use it later is wrong afterwards: so a launch must look addresses up and
# enqueue what uses them with no compaction in between, and must never keep them for the next launch.
# (The sanitizer would have to be told, too: it believes that blocks stay where they are.)
def compact(memory, queue):
    """Push the live blocks of each region together, so that all that is free is one hole."""
    memory.flush()
    for index, space in memory.space.regions.items():
        packed = type(space)(space.region)
        pieces = [
            (chunk.offset, number, block)
            for block in memory.live.values()
            for number, chunk in enumerate(block.composite.chunks)
            if chunk.region == index
        ]
        for _, number, block in sorted(pieces, key=lambda piece: piece[0]):
            chunks = list(block.composite.chunks)
            old, new = chunks[number], packed.take(chunks[number].length)
            chunks[number] = Chunk(index, new, old.length)
            if chunks[number] != old:
                queue.submit(D2D(whole(old), whole(chunks[number])))
                block.composite = CompositeAddress(tuple(chunks), block.composite.grain)
        memory.space.regions[index] = packed


def whole(chunk):
    """All bytes of a chunk."""
    return DeviceRange.contiguous(CompositeAddress((chunk,)), 0, chunk.length)
