"""How training is simulated on this machine, and what it would cost a phone."""
