"""FedGNN (Wu et al. 2021): a graph attention network on each device, with matched neighbours."""
