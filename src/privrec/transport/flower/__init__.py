"""Send the messages of a federation over Flower, for people who run it already.

`server` and `client` are the two apps of a Flower run; they and `payload` import `flwr`. `node` has
the work of the ClientApp, and `app` prepares a run; these two work without `flwr`.
"""
