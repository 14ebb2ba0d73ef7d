"""Adoption: a new server takes over the engines that a killed server left."""
