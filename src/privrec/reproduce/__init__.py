"""The paper's tables and figures: what is trained for them, what is kept, what is said of them."""
