"""The protocol between the server and the nodes of a federation, without any network."""
