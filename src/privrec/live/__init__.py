"""Pages that this machine serves to itself: a run while it trains, and the accountant as a form."""
