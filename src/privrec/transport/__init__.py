"""Send the messages of a federation over HTTPS; run servers and nodes as processes."""
