"""`mirage tune --devices`: how many devices a traffic needs, and what each step saves of them."""
