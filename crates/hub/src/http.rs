//! HTTP requests with redirects, retries and a token that only its own server sees.
//!
//! The client is `ureq`: blocking, so no runtime comes with it, and with a limit on the
//! silence of a connection. It speaks TLS through the system's library on Windows and
//! macOS and through rustls elsewhere, and trusts what the system trusts. Redirects are
//! followed here, since only here it is known which server may see the token.

use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use ureq::http::{HeaderMap, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::store::pause;

const USER_AGENT: &str = concat!("wootz/", env!("CARGO_PKG_VERSION"));
const MOST_REDIRECTS: usize = 8;

/// A client for one hub.
pub(crate) struct Client {
    agent: Agent,
    token: Option<(Origin, String)>,
    attempts: u32,
    backoff: Duration,
    longest_wait: Duration,
}

/// Scheme, host and port: who is on the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let scheme = uri.scheme_str()?.to_lowercase();
        let port = uri.port_u16().or(match scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        })?;
        Some(Self { scheme, host: uri.host()?.to_lowercase(), port })
    }
}

fn is_local(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A request that failed, and whether another attempt may help.
pub(crate) enum Failure {
    /// Trying again is pointless.
    Final(Error),
    /// It may go better later; the server may have said when.
    Passing(Error, Option<Duration>),
}

/// An answer with status 200, 206 or 416.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) url: String,
    headers: HeaderMap,
    /// Headers of the first answer, which may have been a redirect.
    first_headers: HeaderMap,
    body: Body,
}

impl Answer {
    /// A header of the server that sends the body.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// A header of the server that was asked first.
    pub(crate) fn first_header(&self, name: &str) -> Option<&str> {
        self.first_headers.get(name)?.to_str().ok()
    }

    /// The body, with errors of the connection as `std::io` errors.
    pub(crate) fn body(self) -> impl Read {
        self.body.into_reader()
    }

    /// A body of at most `limit` bytes.
    pub(crate) fn text(mut self, limit: u64) -> Result<Vec<u8>, Failure> {
        let body = self.body.with_config().limit(limit).read_to_vec();
        body.map_err(|error| Failure::Passing(network(&self.url, &error), None))
    }
}

impl Client {
    /// # Errors
    /// [`Error::BadReference`] when the hub's address is none.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let endpoint = config.hf_endpoint.parse::<Uri>().ok().as_ref().and_then(Origin::of);
        let endpoint = endpoint.ok_or_else(|| Error::BadReference {
            reference: config.hf_endpoint.clone(),
            reason: "the address of the hub (HF_ENDPOINT) must be like https://HOST".into(),
        })?;
        let mut agent = Agent::config_builder();
        if is_local(&endpoint.host) {
            // A proxy of the environment cannot reach a mirror on this machine.
            agent = agent.proxy(None);
        }
        let agent = agent
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(USER_AGENT)
            .tls_config(tls_config())
            .timeout_connect(Some(config.silence))
            .timeout_recv_response(Some(config.silence))
            .timeout_per_read(Some(config.silence))
            .build()
            .new_agent();
        Ok(Self {
            agent,
            token: config.hf_token.as_ref().map(|token| (endpoint, format!("Bearer {}", token.reveal()))),
            attempts: config.attempts.max(1),
            backoff: config.backoff,
            longest_wait: config.longest_wait,
        })
    }

    /// Asks for `url`, from byte `from` on if that is not 0. `what` names it in errors.
    pub(crate) fn get(&self, url: &str, from: u64, what: &str) -> Result<Answer, Failure> {
        let mut url = url.to_owned();
        let mut first_headers = None;
        for _ in 0..=MOST_REDIRECTS {
            let (response, with_token) = self.ask(&url, from)?;
            let (parts, body) = response.into_parts();
            let first = first_headers.get_or_insert_with(|| parts.headers.clone());
            match parts.status.as_u16() {
                301 | 302 | 303 | 307 | 308 => {
                    let target = parts.headers.get("location").and_then(|value| value.to_str().ok());
                    url = target.and_then(|target| join(&url, target)).ok_or_else(|| {
                        bad_reply(&url, format!("it redirects to {:?}", target.unwrap_or_default()))
                    })?;
                }
                status @ (200 | 206 | 416) => {
                    let first_headers = first.clone();
                    return Ok(Answer { status, url, headers: parts.headers, first_headers, body });
                }
                _ => return Err(refusal(&url, parts.status, &parts.headers, what, with_token)),
            }
        }
        Err(bad_reply(&url, "it redirects without end".into()))
    }

    fn ask(&self, url: &str, from: u64) -> Result<(ureq::http::Response<Body>, bool), Failure> {
        let uri: Uri = url.parse().map_err(|_| bad_reply(url, "this is no address".into()))?;
        let origin = Origin::of(&uri).ok_or_else(|| bad_reply(url, "this is no address".into()))?;
        // Compressed content would have other lengths than the file.
        let mut request = self.agent.get(uri).header("accept-encoding", "identity");
        if from > 0 {
            request = request.header("range", format!("bytes={from}-"));
        }
        let token = self.token.as_ref().filter(|(owner, _)| *owner == origin);
        if let Some((_, value)) = token {
            request = request.header("authorization", value);
        }
        match request.call() {
            Ok(response) => Ok((response, token.is_some())),
            Err(error) if is_final(&error) => Err(Failure::Final(network(url, &error))),
            Err(error) => Err(Failure::Passing(network(url, &error), None)),
        }
    }

    /// A count of attempts for one request or one file.
    pub(crate) fn attempts(&self) -> Attempts<'_> {
        Attempts { client: self, failed: 0 }
    }

    /// Runs a request until it succeeds or its failure is final.
    pub(crate) fn retried<T>(
        &self,
        progress: &mut dyn Progress,
        mut request: impl FnMut(&Self) -> Result<T, Failure>,
    ) -> Result<T> {
        let mut attempts = self.attempts();
        loop {
            match request(self) {
                Ok(value) => return Ok(value),
                Err(failure) => attempts.wait(failure, progress)?,
            }
        }
    }
}

/// Counts the failures of one request or one file.
pub(crate) struct Attempts<'c> {
    client: &'c Client,
    failed: u32,
}

impl Attempts<'_> {
    /// Forgets earlier failures, since something has moved.
    pub(crate) fn reset(&mut self) {
        self.failed = 0;
    }

    /// Waits for the time of the next attempt.
    ///
    /// # Errors
    /// The failure itself if it is final, the last allowed, or asks for too long a wait.
    pub(crate) fn wait(&mut self, failure: Failure, progress: &mut dyn Progress) -> Result<()> {
        let (error, asked) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Passing(error, asked) => (error, asked),
        };
        self.failed += 1;
        let longest = self.client.longest_wait;
        if self.failed >= self.client.attempts || asked.is_some_and(|asked| asked > longest) {
            return Err(error);
        }
        let own = self.client.backoff.saturating_mul(1 << (self.failed - 1).min(16)).min(longest);
        let wait = asked.unwrap_or(own);
        progress.waiting(&format!("{error}; trying again in {:.1} s", wait.as_secs_f64()));
        pause(wait, progress)
    }
}

/// An answer that does not fit the protocol.
pub(crate) fn bad_reply(url: &str, reason: String) -> Failure {
    Failure::Final(Error::BadReply { url: shown(url), reason })
}

/// A failed connection.
pub(crate) fn network(url: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Network { url: shown(url), reason: error.to_string() }
}

/// An address without its query, which may hold a signature.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

/// Errors of the request itself, or of who the other side claims to be.
fn is_final(error: &ureq::Error) -> bool {
    use ureq::Error as E;
    matches!(error, E::BadUri(_) | E::Http(_) | E::Tls(_) | E::InvalidProxyUrl | E::RequireHttpsOnly(_))
        || is_tls(error)
}

#[cfg(any(windows, target_vendor = "apple"))]
fn is_tls(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::NativeTls(_))
}

#[cfg(not(any(windows, target_vendor = "apple")))]
fn is_tls(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Rustls(_))
}

#[cfg(any(windows, target_vendor = "apple"))]
fn tls_config() -> TlsConfig {
    TlsConfig::builder()
        .provider(ureq::tls::TlsProvider::NativeTls)
        .root_certs(RootCerts::PlatformVerifier)
        .build()
}

#[cfg(not(any(windows, target_vendor = "apple")))]
fn tls_config() -> TlsConfig {
    let found = rustls_native_certs::load_native_certs().certs;
    let own: Vec<_> = found.iter().map(|der| ureq::tls::Certificate::from_der(der).to_owned()).collect();
    // A bare container has no certificates; then those of Mozilla, built in, have to do.
    let roots = if own.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&own) };
    TlsConfig::builder().root_certs(roots).build()
}

/// What an error status means.
fn refusal(url: &str, status: StatusCode, headers: &HeaderMap, what: &str, with_token: bool) -> Failure {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code = header("x-error-code").unwrap_or_default();
    match status.as_u16() {
        401 | 403 => {
            Failure::Final(Error::Refused { what: what.into(), gated: code == "GatedRepo", with_token })
        }
        404 | 410 => Failure::Final(Error::NotFound { what: what.into() }),
        429 => {
            let seconds = header("retry-after").and_then(|value| value.trim().parse().ok());
            let retry_after = seconds.map(Duration::from_secs);
            let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
            let error = Error::RateLimited { host: host.unwrap_or_else(|| shown(url)), retry_after };
            Failure::Passing(error, retry_after)
        }
        408 | 500..=599 => Failure::Passing(Error::Status { url: shown(url), status: status.as_u16() }, None),
        _ => Failure::Final(Error::Status { url: shown(url), status: status.as_u16() }),
    }
}

/// The address that a redirect from `base` to `target` means.
///
/// `None` for other protocols, and for a step from https down to http.
fn join(base: &str, target: &str) -> Option<String> {
    let (scheme, rest) = base.split_once("://")?;
    let (host, path) = match rest.find(['/', '?', '#']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    if let Some((to, _)) =
        target.split_once("://").filter(|(to, _)| to.bytes().all(|b| b.is_ascii_alphanumeric()))
    {
        let to = to.to_lowercase();
        let allowed = to == "https" || to == "http" && scheme.eq_ignore_ascii_case("http");
        return allowed.then(|| target.to_owned());
    }
    if let Some(rest) = target.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    if target.starts_with('/') {
        return Some(format!("{scheme}://{host}{target}"));
    }
    if target.is_empty() {
        return None;
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    Some(format!("{scheme}://{host}{folder}{target}"))
}

/// Escapes a path for use in an address; `keep_slashes` leaves those between its parts.
pub(crate) fn escape(path: &str, keep_slashes: bool) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            b'/' if keep_slashes => out.push('/'),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_targets() {
        let base = "https://hub.example:8443/a/b?x=1";
        for (target, expected) in [
            ("https://cdn.example/f?sig=2", Some("https://cdn.example/f?sig=2")),
            ("//cdn.example/f", Some("https://cdn.example/f")),
            ("/c/d", Some("https://hub.example:8443/c/d")),
            ("c", Some("https://hub.example:8443/a/c")),
            ("/c?to=http://x", Some("https://hub.example:8443/c?to=http://x")),
            ("http://cdn.example/f", None),
            ("ftp://cdn.example/f", None),
            ("", None),
        ] {
            assert_eq!(join(base, target).as_deref(), expected, "{target}");
        }
        assert_eq!(join("http://h", "x").as_deref(), Some("http://h/x"));
        assert_eq!(join("http://h:1/", "HTTP://H:2/").as_deref(), Some("HTTP://H:2/"));
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |url: &str| Origin::of(&url.parse().unwrap()).unwrap();
        assert_eq!(origin("https://Hub.example/x"), origin("https://hub.example:443"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("http://127.0.0.1:1"), origin("http://127.0.0.1:2"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example.evil"));
    }

    #[test]
    fn local_addresses_need_no_proxy() {
        for host in ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1", "huggingface.co", "[::2]"] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn escapes_what_is_not_plain() {
        assert_eq!(escape("a b/ü#?.gguf", true), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(escape("refs/pr/1", false), "refs%2Fpr%2F1");
    }

    #[test]
    fn signatures_are_not_shown() {
        assert_eq!(shown("https://cdn.example/f?Signature=secret"), "https://cdn.example/f");
    }
}
