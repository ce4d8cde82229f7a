"""What streams stand on: the pool of a card's streams, and what torch.spyre offers about them."""
