"""What prepared programs stand on: their memory, sharing, and the check of arguments."""
