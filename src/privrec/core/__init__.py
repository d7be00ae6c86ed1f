"""The round that every algorithm shares: tell, contribute, publish, absorb."""
