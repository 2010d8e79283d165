//! All endpoints.

mod about;
mod anthropic;
mod completions;
mod embeddings;
mod native;
mod ollama;
mod openai;
mod responses;

use crate::common::{GENERATION, REASONING, SHAPES};
use crate::error::Protocol::{self, Anthropic, Ollama, OpenAi};
use crate::fields::Field;
use crate::http::{Answer, Call, Endpoint, Verb};
use crate::sampling::SAMPLING;

const fn get(path: &'static str, about: &'static str, run: fn(Call) -> Answer) -> Endpoint {
    Endpoint { method: Verb::Get, path, protocol: OpenAi, public: false, fields: &[], about, run }
}

const fn public(endpoint: Endpoint) -> Endpoint {
    Endpoint { public: true, ..endpoint }
}

const fn post(
    path: &'static str,
    protocol: Protocol,
    fields: &'static [&'static [Field]],
    about: &'static str,
    run: fn(Call) -> Answer,
) -> Endpoint {
    Endpoint { method: Verb::Post, path, protocol, public: false, fields, about, run }
}

/// The function of an endpoint as a pointer.
macro_rules! run {
    ($($function:tt)*) => {
        |call| Box::pin($($function)*(call))
    };
}

const CHAT: &[&[Field]] = &[openai::CHAT, GENERATION, SHAPES, REASONING, SAMPLING];
const COMPLETIONS: &[&[Field]] = &[completions::COMPLETIONS, GENERATION, SHAPES, SAMPLING];
const COMPLETION: &[&[Field]] = &[native::COMPLETION, GENERATION, SHAPES, SAMPLING];
const INFILL: &[&[Field]] = &[native::INFILL, native::COMPLETION, GENERATION, SHAPES, SAMPLING];
const RESPONSES: &[&[Field]] = &[responses::RESPONSES, GENERATION, SAMPLING];
const MESSAGES: &[&[Field]] = &[anthropic::CONVERSATION, anthropic::MESSAGES, SAMPLING];
const COUNT: &[&[Field]] = &[anthropic::CONVERSATION, anthropic::MESSAGES, SAMPLING];
const EMBEDDINGS: &[&[Field]] = &[embeddings::EMBEDDINGS];
const EMBEDDING: &[&[Field]] = &[embeddings::NATIVE];
const RERANK: &[&[Field]] = &[embeddings::RERANK];
const CHAT_ABOUT: &str = "Answer a conversation.";
const EMBED_ABOUT: &str = "Embeddings of texts, by a model that gives them.";
const RANK_ABOUT: &str = "Rank documents by a query, by a model that does so.";

/// Every path of the server.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    public(get("/health", "Whether models are ready.", run!(about::health))),
    public(get("/v1/health", "Whether models are ready.", run!(about::health))),
    public(get("/openapi.json", "This document.", run!(about::openapi))),
    get("/metrics", "Counters for Prometheus.", run!(about::metrics)),
    get("/v1/models", "The models.", run!(about::models)),
    get("/models", "The models.", run!(about::models)),
    get("/v1/models/{*id}", "One model.", run!(about::one_model)),
    post("/models/load", OpenAi, &[about::MODEL], "Bring a model into memory.", run!(about::load)),
    post("/models/unload", OpenAi, &[about::MODEL], "Take a model out of memory.", run!(about::unload)),
    post("/v1/chat/completions", OpenAi, CHAT, CHAT_ABOUT, run!(openai::chat)),
    post("/chat/completions", OpenAi, CHAT, CHAT_ABOUT, run!(openai::chat)),
    post("/v1/completions", OpenAi, COMPLETIONS, "Continue texts.", run!(completions::completions)),
    post(
        "/v1/chat/completions/input_tokens",
        OpenAi,
        CHAT,
        "Count a prompt's tokens.",
        run!(openai::input_tokens),
    ),
    post(
        "/v1/responses/input_tokens",
        OpenAi,
        RESPONSES,
        "Count a prompt's tokens.",
        run!(responses::input_tokens),
    ),
    post("/v1/responses", OpenAi, RESPONSES, CHAT_ABOUT, run!(responses::responses)),
    post("/v1/embeddings", OpenAi, EMBEDDINGS, EMBED_ABOUT, run!(embeddings::openai)),
    post("/embedding", OpenAi, EMBEDDING, EMBED_ABOUT, run!(embeddings::native)),
    post("/embeddings", OpenAi, EMBEDDING, EMBED_ABOUT, run!(embeddings::native)),
    post("/v1/rerank", OpenAi, RERANK, RANK_ABOUT, run!(embeddings::rerank)),
    post("/v1/reranking", OpenAi, RERANK, RANK_ABOUT, run!(embeddings::rerank)),
    post("/rerank", OpenAi, RERANK, RANK_ABOUT, run!(embeddings::rerank)),
    post("/reranking", OpenAi, RERANK, RANK_ABOUT, run!(embeddings::rerank)),
    post("/v1/messages", Anthropic, MESSAGES, CHAT_ABOUT, run!(anthropic::messages_endpoint)),
    post(
        "/v1/messages/count_tokens",
        Anthropic,
        COUNT,
        "Count a prompt's tokens.",
        run!(anthropic::count_tokens),
    ),
    post("/completion", OpenAi, COMPLETION, "Continue texts.", run!(native::completion)),
    post("/completions", OpenAi, COMPLETION, "Continue texts.", run!(native::completion)),
    post("/infill", OpenAi, INFILL, "Write what stands between two texts.", run!(native::infill)),
    post("/tokenize", OpenAi, &[native::TOKENIZE], "The tokens of a text.", run!(native::tokenize)),
    post("/detokenize", OpenAi, &[native::DETOKENIZE], "The text of tokens.", run!(native::detokenize)),
    post("/apply-template", OpenAi, CHAT, "The prompt of a conversation.", run!(native::apply_template)),
    get("/props", "Properties of a model.", run!(native::props)),
    get("/slots", "What runs, as llama.cpp's slots.", run!(native::slots)),
    post("/api/chat", Ollama, &[ollama::COMMON, ollama::CHAT], CHAT_ABOUT, run!(ollama::chat)),
    post(
        "/api/generate",
        Ollama,
        &[ollama::COMMON, ollama::GENERATE],
        "Answer or continue a text.",
        run!(ollama::generate),
    ),
    post("/api/embed", Ollama, &[embeddings::OLLAMA], EMBED_ABOUT, run!(embeddings::ollama)),
    post("/api/embeddings", Ollama, &[embeddings::OLLAMA_OLD], EMBED_ABOUT, run!(embeddings::ollama_old)),
    post("/api/show", Ollama, &[ollama::SHOW], "Properties of a model.", run!(ollama::show)),
    ollama_get("/api/tags", "The models.", run!(ollama::tags)),
    ollama_get("/api/ps", "The models in memory.", run!(ollama::ps)),
    public(ollama_get("/api/version", "The version.", run!(ollama::version))),
];

const fn ollama_get(path: &'static str, about: &'static str, run: fn(Call) -> Answer) -> Endpoint {
    Endpoint { protocol: Ollama, ..get(path, about, run) }
}
