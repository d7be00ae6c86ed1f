"""Pages for people: reports and charts."""
