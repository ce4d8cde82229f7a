"""What the cards did, for people and for ``torch.profiler``."""
