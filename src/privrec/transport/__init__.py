"""How the messages of a federation travel: HTTPS, and processes on this machine."""
