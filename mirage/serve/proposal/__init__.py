"""A configuration that nobody wrote: proposed for a machine and the models that shall be served."""
