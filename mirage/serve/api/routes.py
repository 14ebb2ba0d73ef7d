"""Routes of vLLM's and other servers, the router's treatment of each, and the reason. Pure.

`tests/engine/test_routes.py` asks the installed vLLM for its routes, and fails for one that is
missing here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class RouteWay(StrEnum):
    """Ways to treat a request to a route."""

    JSON = "passed on"
    """Passed on to the tenant that the key ``model`` of a JSON body names."""
    FORM = "passed on, by the form"
    """Passed on to the tenant that the field ``model`` of a form names. The form also has a file.
    """
    OWN = "own"
    """Answered by the router, for all tenants."""
    REFUSED = "refused"


class RouteDecision(NamedTuple):
    """Way of a route, and the reason in one sentence, which is in the answer of a refused route."""

    way: RouteWay
    why: str


def _each(way: RouteWay, why: str, *paths: str) -> dict[str, RouteDecision]:
    return dict.fromkeys(paths, RouteDecision(way, why))


ROUTES: dict[str, RouteDecision] = {
    # -- passed on
    **_each(
        RouteWay.JSON,
        "text is generated",
        *("/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch"),
    ),
    **_each(
        RouteWay.JSON,
        "text is generated, and no answer is kept: `store: true`, `background: true` and "
        "`previous_response_id` are refused",
        "/v1/responses",
    ),
    **_each(
        RouteWay.JSON,
        "Anthropic's clients; errors have their form",
        *("/v1/messages", "/v1/messages/count_tokens"),
    ),
    **_each(
        RouteWay.JSON,
        "models that pool",
        *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score"),
        *("/rerank", "/v1/rerank", "/v2/rerank"),
    ),
    **_each(
        RouteWay.JSON,
        "one forward pass, of which probabilities of labels are read",
        *("/generative_scoring", "/v1/systemone", "/v1/decisions"),
    ),
    **_each(RouteWay.JSON, "the model's own tokenizer", "/tokenize", "/detokenize"),
    **_each(
        RouteWay.FORM,
        "speech-to-text models; `model` is a field of the form",
        *("/v1/audio/transcriptions", "/v1/audio/translations"),
    ),
    # -- own
    **_each(RouteWay.OWN, "all tenants, with aliases and adapters", "/v1/models"),
    **_each(RouteWay.OWN, "the health of all tenants, without their reasons from afar", "/health"),
    **_each(RouteWay.OWN, "the server's own metrics", "/metrics"),
    **_each(RouteWay.OWN, "the routes of this server, not those of an engine", "/openapi.json"),
    # -- refused
    **_each(
        RouteWay.REFUSED,
        "responses are not kept here, since an engine forgets them when it ends and else never",
        *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"),
    ),
    **_each(
        RouteWay.REFUSED,
        "audio over a WebSocket is not passed on: use POST /v1/audio/transcriptions",
        "/v1/realtime",
    ),
    **_each(
        RouteWay.REFUSED,
        "Cohere's chat is not served: use POST /v1/chat/completions",
        *("/cohere/v2/chat", "/cohere/v2/chat/render"),
    ),
    **_each(
        RouteWay.REFUSED,
        "no client names a folder of this machine: an operator declares adapters, as "
        "`mirage tenants set TENANT adapters.NAME=FOLDER`",
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        *("/adapters", "/adapters/{adapter_name}"),
    ),
    **_each(
        RouteWay.REFUSED,
        "SageMaker's route names its model in no one way: use the route of the API itself",
        "/invocations",
    ),
    **_each(
        RouteWay.REFUSED, "it tells nothing about models: use GET /live or GET /ready", "/ping"
    ),
    **_each(
        RouteWay.REFUSED,
        "prompts are rendered where they are served, and engines do not share that work",
        *("/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render"),
        *("/v1/responses/render", "/v1/chat/completions/derender", "/v1/completions/derender"),
        *("/inference/v1/generate", "/inference/v1/abort_requests"),
    ),
    **_each(
        RouteWay.REFUSED,
        "it names no model, and each has a tokenizer of its own: use POST /tokenize",
        "/tokenizer_info",
    ),
    **_each(
        RouteWay.REFUSED,
        "it names no model, and each has an engine of its own: use GET /metrics",
        *("/load", "/kv_event_sources"),
    ),
    **_each(
        RouteWay.REFUSED,
        "clients do not need the versions here: `mirage --version` says them",
        "/version",
    ),
    **_each(
        RouteWay.REFUSED,
        "this server decides who sleeps: an operator has `mirage tenants sleep` and `wake`",
        *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory"),
        *("/pause", "/resume", "/is_paused"),
    ),
    **_each(
        RouteWay.REFUSED,
        "weights are those of the model's folder: an operator changes it with `mirage apply`",
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"),
        *("/start_weight_update", "/start_draft_weight_update", "/update_weights"),
        *("/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker"),
    ),
    **_each(
        RouteWay.REFUSED,
        "a client ends its own requests alone, when it closes their connections",
        "/abort_requests",
    ),
    **_each(
        RouteWay.REFUSED,
        "all clients share the caches, and no client may empty them",
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
    ),
    **_each(
        RouteWay.REFUSED,
        "it would run code of the caller's choice in an engine",
        "/collective_rpc",
    ),
    **_each(
        RouteWay.REFUSED,
        "it tells an engine's configuration and environment",
        "/server_info",
    ),
    **_each(
        RouteWay.REFUSED,
        "a profile slows every client down: `mirage profile` measures a model apart",
        *("/start_profile", "/stop_profile"),
    ),
    **_each(
        RouteWay.REFUSED,
        "an engine has one device and no ranks that come, go or fail apart",
        *("/scale_elastic_ep", "/is_scaling_elastic_ep", "/get_world_size"),
        *("/fault_tolerance/apply", "/fault_tolerance/status"),
    ),
    **_each(
        RouteWay.REFUSED,
        "an engine's pages would tell of routes that are not passed on: see docs/routes.md",
        *("/docs", "/docs/oauth2-redirect", "/redoc", "/static"),
    ),
}
"""Decisions by path, as FastAPI writes it. A refused path is refused for all methods."""
NEWER = frozenset({"/v1/decisions"})
"""Routes that vLLM 0.33 has, and 0.32 has not."""
OTHERS: dict[str, RouteDecision] = {
    **_each(RouteWay.OWN, "tools for Ollama see what may be asked for", "/api/tags"),
    **_each(RouteWay.OWN, "tools for Ollama see what is on the device", "/api/ps"),
    **_each(RouteWay.OWN, "tools for Ollama ask for it first", "/api/version"),
    **_each(RouteWay.OWN, "tools for llama-swap see what is on the device, or comes", "/running"),
    **_each(
        RouteWay.REFUSED,
        "Ollama's own API is not served: use POST /v1/chat/completions, which Ollama has as well",
        *("/api/generate", "/api/chat"),
    ),
    **_each(
        RouteWay.REFUSED,
        "Ollama's own API is not served: use POST /v1/embeddings, which Ollama has as well",
        *("/api/embed", "/api/embeddings"),
    ),
    **_each(
        RouteWay.REFUSED,
        "files and settings of a model are its operator's: use GET /v1/models",
        "/api/show",
    ),
    **_each(
        RouteWay.REFUSED,
        "models come and go as an operator declares them: `mirage fetch` and `mirage apply`",
        *("/api/create", "/api/copy", "/api/pull", "/api/push", "/api/delete"),
    ),
    **_each(
        RouteWay.REFUSED,
        "this server decides who sleeps: an operator has `mirage tenants sleep` and `stop`",
        *("/unload", "/api/models/unload", "/api/models/unload/{model}"),
        *("/models/load", "/models/unload"),
    ),
    **_each(
        RouteWay.REFUSED,
        "an engine alone is not reached: name the model in the body of POST /v1/chat/completions",
        "/upstream/{model}",
    ),
    **_each(
        RouteWay.REFUSED,
        "GET /v1/models lists the models, and a browser has the page /mirage",
        *("/", "/v1"),
    ),
}
"""Routes of Ollama, llama-swap and llama.cpp, and those where a stranger looks first, in the form
of `ROUTES`."""


def _of(way: RouteWay) -> tuple[str, ...]:
    every = (ROUTES | OTHERS).items()
    return tuple(path for path, decision in every if decision.way is way)


JSON_ROUTES = _of(RouteWay.JSON)
FORM_ROUTES = _of(RouteWay.FORM)
REFUSED_ROUTES = _of(RouteWay.REFUSED)


def why_refused(path: str) -> str:
    """Reason why a route of `REFUSED_ROUTES` is not served."""
    return (ROUTES.get(path) or OTHERS[path]).why
