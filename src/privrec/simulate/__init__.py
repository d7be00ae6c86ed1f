"""How a training runs on this machine, and what it would ask of a phone."""
