"""Files of a model's or an adapter's folder, each parsed by a schema when it is read.

Code outside vLLM reads such a folder only through this package. An invalid file raises
`ConfigError` with one line: the file, the value, what to do. Neither torch nor vLLM is imported.
"""
