//! What the server tells about itself.

use axum::response::Response;
use serde_json::{Value, json};

use crate::error::{ApiError, Kind};
use crate::fields::{Field, Takes, field};
use crate::http::{self, Call};
use crate::models::Listing;

/// `GET /health`
pub(crate) async fn health(call: Call) -> Result<Response, ApiError> {
    let models = &call.app.models;
    let list = models.list();
    let has = |status: &str| list.iter().any(|l| l.status == status);
    if has("loaded") || !(has("loading") || has("failed")) {
        return Ok(http::json(&json!({ "status": "ok" })));
    }
    match models.failure() {
        Some(e) if !has("loading") => Err(ApiError::new(Kind::Unavailable, format!("loading failed: {e}"))),
        _ => Err(ApiError::new(Kind::Unavailable, "Loading model")),
    }
}

/// `GET /metrics`
pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    let text = call.app.metrics.text(&call.app.present());
    Ok(http::content("text/plain; version=0.0.4; charset=utf-8", text))
}

fn model(call: &Call, listing: &Listing) -> Value {
    let mut model = json!({
        "id": listing.name,
        "object": "model",
        "type": "model",
        "created": call.app.models.started,
        "created_at": crate::common::timestamp(call.app.models.started),
        "owned_by": "wootz",
        "display_name": listing.name,
        "aliases": listing.aliases,
        "source": listing.source,
        "status": { "value": listing.status },
    });
    if let Some(loaded) = call.app.models.loaded().iter().find(|m| m.name == listing.name) {
        let (file, hp) = (loaded.model().file(), loaded.model().arch().hparams());
        model["meta"] = json!({
            "architecture": file.meta().opt_str("general.architecture").ok().flatten(),
            "n_ctx": loaded.engine.limits().context,
            "n_ctx_train": hp.context_length,
            "n_embd": hp.dim,
            "n_vocab": hp.vocab,
            "size": loaded.model().arch().weights().total_bytes(),
        });
    }
    model
}

/// `GET /v1/models`
pub(crate) async fn models(call: Call) -> Result<Response, ApiError> {
    let list: Vec<Value> = call.app.models.list().iter().map(|l| model(&call, l)).collect();
    let id = |v: Option<&Value>| v.map(|v| v["id"].clone());
    Ok(http::json(&json!({
        "object": "list",
        "first_id": id(list.first()),
        "last_id": id(list.last()),
        "has_more": false,
        "data": list,
    })))
}

/// `GET /v1/models/{id}`
pub(crate) async fn one_model(call: Call) -> Result<Response, ApiError> {
    match call.app.models.listing(&call.tail) {
        Some(listing) => Ok(http::json(&model(&call, &listing))),
        None => {
            let message = format!("no model {:?}", call.tail);
            Err(ApiError { param: Some("model".into()), ..ApiError::new(Kind::NotFound, message) })
        }
    }
}

pub(crate) const MODEL: &[Field] = &[field("model", Takes::Text, "The model's name or alias.")];

/// `POST /models/load`
pub(crate) async fn load(call: Call) -> Result<Response, ApiError> {
    call.app.models.acquire(Some(call.fields.required_text("model")?)).await?;
    Ok(http::json(&json!({ "success": true })))
}

/// `POST /models/unload`
pub(crate) async fn unload(call: Call) -> Result<Response, ApiError> {
    call.app.models.unload(call.fields.required_text("model")?)?;
    Ok(http::json(&json!({ "success": true })))
}

/// `GET /openapi.json`
pub(crate) async fn openapi(_: Call) -> Result<Response, ApiError> {
    Ok(http::json(&crate::openapi::document()))
}
