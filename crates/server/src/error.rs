//! What goes wrong with a request, and how each protocol says it.

use axum::http::StatusCode;
use serde_json::{Value, json};
use wootz::sample::ParamError;
use wootz::template::TemplateError;

/// Whose conventions an endpoint follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    OpenAi,
    Anthropic,
    Ollama,
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Invalid,
    Context,
    Unauthorized,
    Forbidden,
    NotFound,
    Method,
    TooLarge,
    Busy,
    Timeout,
    Internal,
    Unsupported,
    Unavailable,
}

impl Kind {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Kind::Invalid | Kind::Context => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// OpenAI's `type`, with llama.cpp's names where OpenAI has none.
    fn openai(self) -> &'static str {
        match self {
            Kind::Invalid | Kind::Method | Kind::TooLarge => "invalid_request_error",
            Kind::Context => "exceed_context_size_error",
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::Busy => "rate_limit_error",
            Kind::Timeout => "timeout_error",
            Kind::Internal => "server_error",
            Kind::Unsupported => "not_supported_error",
            Kind::Unavailable => "unavailable_error",
        }
    }

    fn anthropic(self) -> &'static str {
        match self {
            Kind::Invalid | Kind::Context | Kind::Method | Kind::Unsupported => "invalid_request_error",
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Timeout => "timeout_error",
            Kind::Internal => "api_error",
            Kind::Unavailable => "overloaded_error",
        }
    }
}

/// A request that is answered with an error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
    /// Prompt tokens and positions of the context, where they do not fit.
    pub(crate) sizes: Option<(usize, usize)>,
}

/// Seconds after which a client should try again where the queue is full.
pub(crate) const RETRY_AFTER: u32 = 1;

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> ApiError {
        ApiError { kind, message: message.into(), param: None, sizes: None }
    }

    /// A field has a value that it does not take.
    pub(crate) fn field(param: impl Into<String>, expected: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        let message = format!("`{param}`: expected {expected}");
        ApiError { param: Some(param), ..ApiError::new(Kind::Invalid, message) }
    }

    /// Something that the protocol has and this server has not.
    pub(crate) fn unsupported(param: impl Into<String>, why: impl std::fmt::Display) -> ApiError {
        let param = param.into();
        let message = format!("`{param}` is not supported: {why}");
        ApiError { param: Some(param), ..ApiError::new(Kind::Invalid, message) }
    }

    /// A short name for programs.
    fn code(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Context => Some("context_length_exceeded"),
            Kind::Unauthorized => Some("invalid_api_key"),
            Kind::NotFound if self.param.as_deref() == Some("model") => Some("model_not_found"),
            Kind::Busy => Some("queue_full"),
            _ => None,
        }
    }

    /// The error as a protocol writes it.
    pub(crate) fn body(&self, protocol: Protocol) -> Value {
        match protocol {
            Protocol::OpenAi => {
                let mut error = json!({
                    "message": self.message,
                    "type": self.kind.openai(),
                    "param": self.param,
                    "code": self.code(),
                });
                if let Some((prompt, context)) = self.sizes {
                    error["n_prompt_tokens"] = prompt.into();
                    error["n_ctx"] = context.into();
                }
                json!({ "error": error })
            }
            Protocol::Anthropic => {
                let error = json!({ "type": self.kind.anthropic(), "message": self.message });
                json!({ "type": "error", "error": error })
            }
            Protocol::Ollama => json!({ "error": self.message }),
        }
    }
}

impl From<ParamError> for ApiError {
    fn from(e: ParamError) -> ApiError {
        ApiError { param: Some(e.field.to_owned()), ..ApiError::new(Kind::Invalid, e.to_string()) }
    }
}

impl From<wootz::Error> for ApiError {
    fn from(e: wootz::Error) -> ApiError {
        let message = e.to_string();
        let kind = match &e {
            wootz::Error::ContextFull { prompt, context, .. } => {
                let sizes = Some((*prompt, *context));
                return ApiError { sizes, ..ApiError::new(Kind::Context, message) };
            }
            wootz::Error::Param(e) => return e.clone().into(),
            wootz::Error::Template(TemplateError::Crashed | TemplateError::Thread(_)) => Kind::Internal,
            wootz::Error::Template(_) => {
                return ApiError { param: Some("messages".into()), ..ApiError::new(Kind::Invalid, message) };
            }
            wootz::Error::TextTooLong { tokens, context } => {
                let sizes = Some((*tokens, *context));
                return ApiError { sizes, ..ApiError::new(Kind::Context, message) };
            }
            // A model that generates does not do other things at all; others are asked for the wrong thing.
            wootz::Error::WrongUse { gives: "text", .. } => Kind::Unsupported,
            wootz::Error::WrongUse { .. } | wootz::Error::Dimensions { .. } => Kind::Invalid,
            wootz::Error::EmptyPrompt | wootz::Error::BadToken { .. } => Kind::Invalid,
            wootz::Error::QueueFull { .. } => Kind::Busy,
            wootz::Error::Stopped => Kind::Unavailable,
            // Every token that the constraint allows is banned by the request's own biases.
            wootz::Error::Sample(wootz::sample::SampleError::NoCandidate { .. }) => Kind::Invalid,
            _ => Kind::Internal,
        };
        ApiError::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_has_its_own_form() {
        let e = ApiError::field("top_p", "a number from 0 to 1, found a string");
        assert_eq!(e.kind.status(), StatusCode::BAD_REQUEST);
        assert_eq!(e.body(Protocol::OpenAi)["error"]["param"], "top_p");
        assert_eq!(e.body(Protocol::OpenAi)["error"]["type"], "invalid_request_error");
        assert_eq!(e.body(Protocol::Anthropic)["error"]["type"], "invalid_request_error");
        assert_eq!(
            e.body(Protocol::Ollama)["error"],
            "`top_p`: expected a number from 0 to 1, found a string"
        );
    }

    #[test]
    fn a_prompt_that_does_not_fit_tells_the_numbers() {
        let e: ApiError =
            wootz::Error::ContextFull { prompt: 300, max_tokens: 1, context: 256, hint: "" }.into();
        let body = e.body(Protocol::OpenAi);
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert_eq!((&body["error"]["n_prompt_tokens"], &body["error"]["n_ctx"]), (&300.into(), &256.into()));
    }
}
