//! Between HTTP and the endpoints: routes, keys, origins, limits, streams.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tracing::{Instrument, Span};

use crate::api::ENDPOINTS;
use crate::error::{ApiError, Kind, Protocol, RETRY_AFTER};
use crate::fields::{Field, Fields, kind};
use crate::page;
use crate::server::App;

/// What an endpoint's function returns.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send>>;

/// One path of the server.
pub(crate) struct Endpoint {
    pub(crate) method: Verb,
    /// As axum writes it: `{name}` for one part, `{*name}` for the rest.
    pub(crate) path: &'static str,
    pub(crate) protocol: Protocol,
    /// Whether it answers without a key.
    pub(crate) public: bool,
    pub(crate) fields: &'static [&'static [Field]],
    pub(crate) about: &'static str,
    pub(crate) run: fn(Call) -> Answer,
}

/// The methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
}

impl Verb {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::Post => "post",
        }
    }

    fn filter(self) -> MethodFilter {
        match self {
            Verb::Get => MethodFilter::GET,
            Verb::Post => MethodFilter::POST,
        }
    }
}

/// A request to an endpoint.
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    /// The request's id, which the response carries too.
    pub(crate) id: String,
    /// Whose request it is, for fairness: the same number for the same key or address.
    pub(crate) user: u64,
    pub(crate) fields: Fields,
    pub(crate) query: String,
    /// The part of the path that the endpoint leaves open.
    pub(crate) tail: String,
}

impl Call {
    /// A value of the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let paths: std::collections::BTreeSet<&'static str> = ENDPOINTS.iter().map(|e| e.path).collect();
    let mut router = Router::new();
    for path in paths {
        let mut methods = axum::routing::MethodRouter::new();
        for endpoint in ENDPOINTS.iter().filter(|e| e.path == path) {
            let handler = move |State(app): State<Arc<App>>, request: Request| run(app, endpoint, request);
            methods = methods.merge(on(endpoint.method.filter(), handler));
        }
        router = router.route(path, methods.fallback(wrong_method));
    }
    for file in page::FILES {
        let handler = move |State(app): State<Arc<App>>, request: Request| async move {
            let headers = request.headers();
            let response = match check_host(&app, headers) {
                Ok(()) => file.response(headers),
                Err(e) => failure(&e, Protocol::OpenAi),
            };
            finish(&app, &request_id(headers), headers, response)
        };
        router = router.route(file.path, on(MethodFilter::GET, handler).fallback(wrong_method));
    }
    router.fallback(no_such_path).with_state(app)
}

/// Whose conventions errors follow at a path.
fn protocol_of(path: &str) -> Protocol {
    match path {
        _ if path.starts_with("/api/") => Protocol::Ollama,
        _ if path.starts_with("/v1/messages") => Protocol::Anthropic,
        _ => Protocol::OpenAi,
    }
}

async fn no_such_path(State(app): State<Arc<App>>, request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        return preflight(&app, request.headers());
    }
    let path = request.uri().path().to_owned();
    let e = ApiError::new(Kind::NotFound, format!("nothing is at {path}; GET /openapi.json lists all paths"));
    finish(&app, &request_id(request.headers()), request.headers(), failure(&e, protocol_of(&path)))
}

async fn wrong_method(State(app): State<Arc<App>>, request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        return preflight(&app, request.headers());
    }
    let path = request.uri().path();
    let e = ApiError::new(Kind::Method, format!("{path} does not take {}", request.method()));
    let mut response = failure(&e, protocol_of(path));
    let allowed: Vec<String> = ENDPOINTS
        .iter()
        .filter(|e| e.path == path)
        .map(|e| e.method.name().to_ascii_uppercase())
        .chain(["OPTIONS".to_owned()])
        .collect();
    insert(&mut response, header::ALLOW, &allowed.join(", "));
    finish(&app, &request_id(request.headers()), request.headers(), response)
}

/// Answers a request at an endpoint: checks it, runs it, and notes what became of it.
async fn run(app: Arc<App>, endpoint: &'static Endpoint, request: Request) -> Response {
    let started = Instant::now();
    let headers = request.headers().clone();
    let id = request_id(&headers);
    let method = request.method().as_str();
    // Health checks would fill the log.
    let span = match endpoint.public {
        true => tracing::debug_span!("request", id, method, path = request.uri().path()),
        false => tracing::info_span!("request", id, method, path = request.uri().path()),
    };
    let response = answer(app.clone(), endpoint, &id, request).instrument(span.clone()).await;
    let response = span.in_scope(|| {
        let response = response.unwrap_or_else(|e| {
            tracing::debug!("{e}");
            failure(&e, endpoint.protocol)
        });
        let (status, ms) = (response.status().as_u16(), millis(started.elapsed()));
        match endpoint.public {
            true => tracing::debug!(status, ms, "responded"),
            false => tracing::info!(status, ms, "responded"),
        }
        response
    });
    finish(&app, &id, &headers, response)
}

/// Milliseconds to three places, for the log.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

async fn answer(
    app: Arc<App>,
    endpoint: &'static Endpoint,
    id: &str,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    check_host(&app, &parts.headers)?;
    if endpoint.method != Verb::Get {
        check_origin(&app, &parts.headers)?;
    }
    let key = if endpoint.public { None } else { check_key(&app, &parts.headers)? };
    let fields = if endpoint.method == Verb::Post {
        let bytes = read(body, app.options.body_limit).await?;
        let (fields, unknown) = Fields::check(object(&bytes)?, "", endpoint.fields)?;
        if !unknown.is_empty() {
            tracing::debug!("ignores the unknown fields {}", unknown.join(", "));
        }
        fields
    } else {
        Fields::default()
    };
    let prefix = endpoint.path.split('{').next().unwrap_or_default();
    let tail = parts.uri.path().strip_prefix(prefix).unwrap_or_default();
    let address = parts.extensions.get::<ConnectInfo<std::net::SocketAddr>>().map(|info| info.0.ip());
    let call = Call {
        app,
        id: id.to_owned(),
        user: user(key.as_deref(), fields.text("user"), address),
        fields,
        query: parts.uri.query().unwrap_or_default().to_owned(),
        tail: percent_decoded(tail),
    };
    (endpoint.run)(call).await
}

/// The user that a request counts for.
fn user(key: Option<&str>, name: Option<&str>, address: Option<std::net::IpAddr>) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (key, name, address).hash(&mut hasher);
    hasher.finish()
}

/// Refuses names of other hosts where only this machine is served: a page elsewhere could have pointed its own name
/// here.
fn check_host(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let local = name.is_empty()
        || name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<std::net::IpAddr>().is_ok();
    if app.loopback && !local {
        let message = format!("this server answers on this machine only, not as {name:?}");
        return Err(ApiError::new(Kind::Forbidden, message));
    }
    Ok(())
}

/// Refuses what a page of an unknown origin sends, which browsers let through where it needs no answer.
fn check_origin(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return Ok(()) };
    let own = origin.split_once("://").is_some_and(|(_, host)| Some(host) == text(header::HOST));
    if own || app.options.origins.iter().any(|o| o == "*" || o == origin) {
        return Ok(());
    }
    let message =
        format!("pages of {origin:?} may not use this server; it is started with --origin for that");
    Err(ApiError::new(Kind::Forbidden, message))
}

/// Checks the key, which may come as OpenAI, Anthropic or llama.cpp send it.
fn check_key(app: &App, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = header("authorization").and_then(|v| {
        let (scheme, key) = v.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    let given = bearer.or_else(|| header("x-api-key")).or_else(|| header("api-key"));
    if app.options.api_keys.is_empty() {
        return Ok(given.map(str::to_owned));
    }
    let known = |given: &str| app.options.api_keys.iter().any(|key| same(key.as_bytes(), given.as_bytes()));
    match given {
        Some(key) if known(key) => Ok(Some(key.to_owned())),
        Some(_) => Err(ApiError::new(Kind::Unauthorized, "the API key is not one of this server's")),
        None => {
            let how = "an API key is needed, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`";
            Err(ApiError::new(Kind::Unauthorized, how))
        }
    }
}

/// Compares in a time that does not tell where the difference is.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0u8, |all, (x, y)| all | (x ^ y));
    a.len() == b.len() && differences == 0
}

async fn read(body: Body, limit: usize) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, limit).await.map_err(|e| {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&e);
        while let Some(at) = cause {
            // Only the limit's own error says this; the other is a client that broke off.
            if at.to_string().contains("length limit exceeded") {
                let message = format!("the request is longer than {limit} bytes");
                return ApiError::new(Kind::TooLarge, message);
            }
            cause = at.source();
        }
        ApiError::new(Kind::Invalid, "the request's body broke off")
    })
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let message = format!("the body: expected a JSON object, found {}", kind(&other));
            Err(ApiError::new(Kind::Invalid, message))
        }
        Err(e) => Err(ApiError::new(Kind::Invalid, format!("the body is not JSON: {e}"))),
    }
}

fn percent_decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let decoded = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *byte == b'%');
        out.push(decoded.unwrap_or(*byte));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The client's request id if it sent a plain one, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let plain = |id: &&str| {
        (1..=64).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    };
    let given = headers.get("x-request-id").and_then(|v| v.to_str().ok()).filter(plain);
    given.map_or_else(|| format!("req_{:08x}", NEXT.fetch_add(1, Ordering::Relaxed)), str::to_owned)
}

/// Puts on what every response carries.
fn finish(app: &App, id: &str, headers: &HeaderMap, mut response: Response) -> Response {
    app.metrics.response(response.status().as_u16());
    insert(&mut response, HeaderName::from_static("x-request-id"), id);
    // Anthropic's clients look for this name.
    insert(&mut response, HeaderName::from_static("request-id"), id);
    allow_origin(app, headers, &mut response);
    response
}

/// Lets pages of the origins that the server's options name read the response.
fn allow_origin(app: &App, headers: &HeaderMap, response: &mut Response) {
    let Some(origin) = headers.get(header::ORIGIN) else { return };
    let allowed = app.options.origins.iter().any(|o| o == "*" || o.as_bytes() == origin.as_bytes());
    if allowed {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        insert(response, header::VARY, "Origin");
    }
}

/// Answers the question that browsers ask before a request to another origin.
fn preflight(app: &App, headers: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    allow_origin(app, headers, &mut response);
    if response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        insert(&mut response, header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS");
        if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        insert(&mut response, header::ACCESS_CONTROL_MAX_AGE, "600");
    }
    response
}

fn insert(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// An error as a response.
fn failure(e: &ApiError, protocol: Protocol) -> Response {
    let mut response = json(&e.body(protocol));
    *response.status_mut() = e.kind.status();
    if matches!(e.kind, Kind::Busy | Kind::Unavailable) {
        insert(&mut response, header::RETRY_AFTER, &RETRY_AFTER.to_string());
    }
    if e.kind == Kind::Unauthorized {
        insert(&mut response, header::WWW_AUTHENTICATE, "Bearer");
    }
    response
}

/// A JSON response.
pub(crate) fn json(value: &Value) -> Response {
    content("application/json", value.to_string())
}

/// A response of a type.
pub(crate) fn content(kind: &'static str, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events,
    /// A JSON object a line.
    Lines,
}

/// Writes a stream to its client.
pub(crate) struct Writer {
    framing: Framing,
    chunks: mpsc::Sender<Bytes>,
}

/// The client has gone.
#[derive(Debug)]
pub(crate) struct Gone;

impl Writer {
    /// Writes an object; waits while the client is slow.
    pub(crate) async fn object(&self, value: &Value) -> Result<(), Gone> {
        match self.framing {
            Framing::Events => self.raw(format!("data: {value}\n\n")).await,
            Framing::Lines => self.raw(format!("{value}\n")).await,
        }
    }

    /// Writes an object as an event with a name.
    pub(crate) async fn event(&self, name: &str, value: &Value) -> Result<(), Gone> {
        self.raw(format!("event: {name}\ndata: {value}\n\n")).await
    }

    pub(crate) async fn raw(&self, text: String) -> Result<(), Gone> {
        self.chunks.send(text.into()).await.map_err(|_| Gone)
    }
}

/// Chunks on their way to a client.
const CHUNKS: usize = 32;

/// A response that `write` writes piece by piece.
///
/// Where the client goes away, `write` is dropped where it stands, and with it what it holds. A quiet stream of events
/// gets a comment now and then, so that nothing in between takes it for dead.
pub(crate) fn stream<F>(app: &App, framing: Framing, write: impl FnOnce(Writer) -> F) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (chunks, receiver) = mpsc::channel(CHUNKS);
    let keep = chunks.clone();
    let writing = write(Writer { framing, chunks });
    let every = app.options.keep_alive;
    let write_all = async move {
        tokio::pin!(writing);
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + every, every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                // Whether all was written or the client has gone, there is nothing more to do.
                _ = &mut writing => return,
                () = keep.closed() => return,
                _ = tick.tick() => {
                    // A full channel is not quiet.
                    if framing == Framing::Events && keep.capacity() == CHUNKS {
                        let _ = keep.try_send(Bytes::from_static(b": still here\n\n"));
                    }
                }
            }
        }
    };
    tokio::spawn(write_all.instrument(Span::current()));
    let kind = match framing {
        Framing::Events => "text/event-stream",
        Framing::Lines => "application/x-ndjson",
    };
    let mut response = content(kind, Body::new(Chunks(receiver)));
    insert(&mut response, header::CACHE_CONTROL, "no-cache");
    // Proxies such as nginx would otherwise collect the stream.
    insert(&mut response, HeaderName::from_static("x-accel-buffering"), "no");
    response
}

/// The chunks of a stream as a body.
struct Chunks(mpsc::Receiver<Bytes>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// How often a quiet stream of events gets a comment, by default.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded() {
        assert_eq!(percent_decoded("hf%3Aa%2Fb"), "hf:a/b");
        assert_eq!(percent_decoded("100%"), "100%");
        assert_eq!(percent_decoded("%zz%41"), "%zzA");
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(same(b"secret", b"secret"));
        assert!(!same(b"secret", b"secre") && !same(b"secret", b"secreT") && !same(b"", b"x"));
    }

    #[test]
    fn every_path_and_method_is_listed_once() {
        for (i, a) in ENDPOINTS.iter().enumerate() {
            assert!(!ENDPOINTS[..i].iter().any(|b| (a.path, a.method) == (b.path, b.method)), "{}", a.path);
        }
    }

    #[test]
    fn no_endpoint_names_a_field_twice() {
        for endpoint in ENDPOINTS {
            let mut names: Vec<_> = endpoint.fields.iter().flat_map(|t| t.iter()).map(|f| f.name).collect();
            names.sort_unstable();
            let count = names.len();
            names.dedup();
            assert_eq!(names.len(), count, "{}", endpoint.path);
        }
    }
}
