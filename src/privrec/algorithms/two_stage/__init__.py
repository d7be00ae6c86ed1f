"""Item vectors by self-supervision on ordered sequences: the first of the paper's two stages."""
