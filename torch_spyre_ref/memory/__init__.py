"""What surrounds the allocator: placement, statistics, maps, and what PyTorch asks of it."""
