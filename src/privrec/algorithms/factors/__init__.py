"""Matrix factorisation: a person's vector is solved on her device, items' vectors on the server."""
