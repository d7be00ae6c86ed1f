"""One round of everything that is learned from people: tell, contribute, publish, absorb."""
