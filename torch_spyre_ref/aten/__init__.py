"""What the card does for aten: copies, fills, random numbers, and what runs on the CPU instead."""
