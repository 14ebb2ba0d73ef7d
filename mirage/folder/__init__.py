"""Files of a model's or an adapter's folder, parsed by a schema where they are read.

Every reader of such a folder outside vLLM takes its values from here. An invalid file raises
`ConfigError` with one line: the file, the value, what to do. Neither torch nor vLLM is imported.
"""
