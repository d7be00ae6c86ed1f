"""Training on devices: a client's training data, its local training, and adaptation."""
