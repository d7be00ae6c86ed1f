"""What the parties of a federation say to each other: bytes in, bytes out, without a network."""
