//! The OpenAPI document, from the same tables that check requests.

use serde_json::{Map, Value, json};

use crate::api::ENDPOINTS;
use crate::error::Protocol;
use crate::http::{Endpoint, Verb};

/// The document.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let path = endpoint.path.replace("{*", "{");
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[endpoint.method.name()] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "wootz",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Local language models by the protocols of OpenAI, Anthropic, llama.cpp and Ollama.",
        },
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": {
                "OpenAiError": {
                    "type": "object",
                    "required": ["error"],
                    "properties": { "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": { "type": "string" },
                            "type": { "type": "string" },
                            "param": { "type": ["string", "null"] },
                            "code": { "type": ["string", "null"] },
                        },
                    } },
                },
                "AnthropicError": {
                    "type": "object",
                    "required": ["type", "error"],
                    "properties": { "type": { "const": "error" }, "error": {
                        "type": "object",
                        "required": ["type", "message"],
                        "properties": { "type": { "type": "string" }, "message": { "type": "string" } },
                    } },
                },
                "OllamaError": {
                    "type": "object",
                    "required": ["error"],
                    "properties": { "error": { "type": "string" } },
                },
            },
        },
        "security": [{}, { "key": [] }],
        "paths": paths,
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let error = match endpoint.protocol {
        Protocol::OpenAi => "OpenAiError",
        Protocol::Anthropic => "AnthropicError",
        Protocol::Ollama => "OllamaError",
    };
    let kind = match endpoint.path {
        "/metrics" => "text/plain",
        _ => "application/json",
    };
    let error = json!({
        "description": "What went wrong.",
        "content": { "application/json": { "schema": { "$ref": format!("#/components/schemas/{error}") } } },
    });
    let mut operation = json!({
        "summary": endpoint.about,
        "responses": {
            "200": { "description": "The answer.", "content": { kind: {} } },
            "default": error,
        },
    });
    let names = endpoint.path.split('{').skip(1).filter_map(|part| part.split('}').next());
    let parameters: Vec<Value> = names
        .map(|name| {
            let name = name.trim_start_matches('*');
            json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
        })
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if endpoint.method == Verb::Post {
        let mut properties = Map::new();
        for field in endpoint.fields.iter().flat_map(|table| table.iter()) {
            let mut schema = field.takes.schema();
            schema["description"] = field.about.into();
            properties.insert(field.name.to_owned(), schema);
        }
        operation["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": { "type": "object", "properties": properties } } },
        });
    }
    if endpoint.public {
        operation["security"] = json!([]);
    }
    operation
}
