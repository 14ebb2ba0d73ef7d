"""Routes of vLLM's server that the router passes on: their body says which model it is for."""

JSON_ROUTES = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
    "/generative_scoring",
    "/tokenize",
    "/detokenize",
)
"""``model`` is a field of a JSON object."""

FORM_ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations")
"""``model`` is a field of a form, beside a file."""
