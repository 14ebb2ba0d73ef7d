"""Layers at fixed addresses, some of them streamed: the choice of these layers, and their loads
before they run."""
