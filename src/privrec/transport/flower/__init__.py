"""Send the messages of a federation over Flower, for people who run it already.

`server` and `client` have the two apps of a Flower run; they import `flwr`. `app` writes the folder
for `flwr run`, and stores the terms that the owner of a node accepted; it works without `flwr`.
"""
