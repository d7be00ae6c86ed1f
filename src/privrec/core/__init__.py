"""The round that all algorithms share, and the interfaces of its parts."""
