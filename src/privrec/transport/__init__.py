"""How the messages of a federation travel: processes on this machine, and Flower."""
