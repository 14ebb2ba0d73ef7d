"""What a model's or an adapter's folder holds, parsed by a schema where it is read.

Every reader of such a folder outside vLLM takes its values from here. What is odd raises
`ConfigError` with one line: the file, the value, what to do. Neither torch nor vLLM is imported.
"""
