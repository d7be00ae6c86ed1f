"""The transport of a federation: Flower's SuperLink on the server, a SuperNode on every node."""
