//! The dashboard, embedded. Paths without a file get its page: the routes are the page's own.

use axum::{
    http::{HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use rust_embed::RustEmbed;

use super::problem::Fault;

#[derive(RustEmbed)]
#[folder = "$DASHBOARD_DIST"]
struct Dashboard;

/// Scripts from this origin only; inline styles, since the diff viewer inserts them.
const POLICY: &str = "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self' 'unsafe-inline'; \
img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
frame-ancestors 'none'";

/// A file of the dashboard, or its page.
pub(super) async fn serve(uri: Uri) -> Response {
    let path = uri.path().trim_start_matches('/');
    if path.starts_with("api/") {
        return Fault::new(StatusCode::NOT_FOUND, "unknown_call", format!("no call {}", uri.path()))
            .hint("/openapi.json lists the calls")
            .into_response();
    }
    if let Some(file) = Dashboard::get(path).filter(|_| !path.is_empty()) {
        // Names under assets/ carry a hash of their content.
        let cache =
            if path.starts_with("assets/") { "public, max-age=31536000, immutable" } else { "no-cache" };
        return answer(path, file.data.into_owned(), cache);
    }
    if path.starts_with("assets/") {
        return (StatusCode::NOT_FOUND, "no such file\n").into_response();
    }
    match Dashboard::get("index.html") {
        Some(page) => answer("index.html", page.data.into_owned(), "no-cache"),
        None => (StatusCode::NOT_FOUND, "this binary was built without the dashboard\n").into_response(),
    }
}

fn answer(path: &str, data: Vec<u8>, cache: &'static str) -> Response {
    let kind = match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("json" | "map") => "application/json",
        Some("webmanifest") => "application/manifest+json",
        _ => "application/octet-stream",
    };
    let mut response = data.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}
