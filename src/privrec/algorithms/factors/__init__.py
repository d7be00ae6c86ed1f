"""Matrix factorisation: devices solve the vectors of people, the server those of items."""
