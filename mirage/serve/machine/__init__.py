"""Several devices behind one address: a server process for each device, and one router for all."""
