"""The router, a process of its own: the OpenAI API of all tenants behind one address."""
