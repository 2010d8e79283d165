//! The web page: static files that are part of the program.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::http::content;

/// A file of the page.
pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

macro_rules! files {
    ($($path:literal $file:literal $kind:ident,)*) => {
        &[$(File { path: $path, kind: $kind, text: include_str!(concat!("../web/", $file)) },)*]
    };
}

/// All files of the page.
pub(crate) static FILES: &[File] = files![
    "/" "index.html" HTML,
    "/style.css" "style.css" STYLE,
    "/api.js" "api.js" SCRIPT,
    "/app.js" "app.js" SCRIPT,
    "/dom.js" "dom.js" SCRIPT,
    "/highlight.js" "highlight.js" SCRIPT,
    "/markdown.js" "markdown.js" SCRIPT,
    "/panel.js" "panel.js" SCRIPT,
    "/sidebar.js" "sidebar.js" SCRIPT,
    "/store.js" "store.js" SCRIPT,
    "/thread.js" "thread.js" SCRIPT,
];

/// What the page may do: nothing but talk with this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

impl File {
    /// The file, or the note that the browser has it already.
    pub(crate) fn response(&self, headers: &HeaderMap) -> Response {
        let tag = self.tag();
        let known =
            headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
        let mut response = content(self.kind, if known { "" } else { self.text });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.body_mut() = Body::empty();
        }
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers
            .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        response
    }

    /// A name of this very content, by the FNV-1a hash.
    fn tag(&self) -> String {
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        format!("\"{:016x}\"", self.text.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
    }
}
