"""Several devices behind one address: a server process for each, and one router before them."""
