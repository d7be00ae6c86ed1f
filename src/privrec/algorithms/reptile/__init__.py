"""Training of the DSSM on devices: a client's training data, local training, and adaptation."""
