//! From the bytes of a body to what they say: which kind of text it is, and in which charset.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use crate::tools::view::looks_binary;

/// Where a charset may be declared in HTML.
const META_BYTES: usize = 1024;

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Html,
    /// Anything that is read as it stands.
    Text,
}

/// The kind of a content type; none for what is no text.
pub(super) fn kind(content_type: &str) -> Option<Kind> {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "text/html" | "application/xhtml+xml" => Some(Kind::Html),
        "" => Some(Kind::Text),
        "application/json"
        | "application/ld+json"
        | "application/xml"
        | "application/javascript"
        | "application/ecmascript"
        | "application/x-javascript"
        | "application/yaml"
        | "application/x-yaml"
        | "application/toml"
        | "application/x-ndjson"
        | "application/jsonl"
        | "application/sql"
        | "application/graphql"
        | "application/x-sh"
        | "application/markdown"
        | "image/svg+xml" => Some(Kind::Text),
        other if other.starts_with("text/") || other.ends_with("+json") || other.ends_with("+xml") => {
            Some(Kind::Text)
        }
        _ => None,
    }
}

/// Whether a body of this type is read at all.
pub(super) fn is_wanted(content_type: &str) -> bool {
    kind(content_type).is_some()
}

/// The body of a text with its kind, HTML as it came; or what it is instead.
pub(super) fn text_of(content_type: Option<&str>, bytes: &[u8]) -> Result<(Kind, String), String> {
    let declared = content_type.and_then(kind);
    let charset = content_type.and_then(charset_parameter);
    // UTF-16 is full of zeros.
    let is_wide = charset.is_some_and(|charset| charset == UTF_16LE || charset == UTF_16BE)
        || Encoding::for_bom(bytes).is_some();
    if !is_wide && looks_binary(bytes) {
        return Err(format!("binary data of {} bytes", bytes.len()));
    }
    let kind = match declared {
        Some(kind) if content_type.is_some_and(|text| !text.trim().is_empty()) => kind,
        _ if looks_like_html(bytes) => Kind::Html,
        _ => Kind::Text,
    };
    Ok((kind, decode(bytes, charset, kind)))
}

fn looks_like_html(bytes: &[u8]) -> bool {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(META_BYTES)]).to_ascii_lowercase();
    let start = start.trim_start_matches('\u{feff}').trim_start();
    start.starts_with("<!doctype html") || start.starts_with("<html")
}

fn charset_parameter(content_type: &str) -> Option<&'static Encoding> {
    let mut parameters = content_type.split(';').skip(1).filter_map(|part| part.split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))?;
    Encoding::for_label(value.trim().trim_matches(['"', '\'']).as_bytes())
}

/// The charset that HTML names in a `meta` element near its start.
fn charset_of_meta(bytes: &[u8]) -> Option<&'static Encoding> {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(META_BYTES)]).to_ascii_lowercase();
    let after = start.split("<meta").skip(1).find_map(|element| {
        let element = element.split('>').next().unwrap_or_default();
        element.split_once("charset=").map(|(_, label)| label.to_owned())
    })?;
    let label = after.trim_start_matches(['"', '\'', ' ']).split(['"', '\'', ' ', ';', '/']).next()?;
    Encoding::for_label(label.as_bytes())
}

/// By a byte order mark, the header, the page's own word, or what the bytes look like.
fn decode(bytes: &[u8], charset: Option<&'static Encoding>, kind: Kind) -> String {
    let named = charset.or_else(|| (kind == Kind::Html).then(|| charset_of_meta(bytes)).flatten());
    let encoding = named.unwrap_or_else(|| match std::str::from_utf8(bytes) {
        Ok(_) => UTF_8,
        Err(_) => {
            let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
            detector.feed(bytes, true);
            detector.guess(None, Utf8Detection::Allow)
        }
    });
    let (text, ..) = encoding.decode(bytes);
    text.into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charset_is_the_headers_the_pages_or_what_the_bytes_look_like() {
        let cases: [(Option<&str>, &[u8], &str); 7] = [
            (Some("text/plain; charset=ISO-8859-1"), b"caf\xe9", "café"),
            (Some("text/plain; charset=\"shift_jis\""), b"\x93\xfa\x96\x7b", "日本"),
            (
                Some("text/html"),
                b"<meta charset='windows-1251'><p>\xcf\xf0\xe8</p>",
                "<meta charset='windows-1251'><p>При</p>",
            ),
            (
                Some("text/html"),
                b"<meta http-equiv=content-type content='text/html; charset=iso-8859-2'><p>\xb1</p>",
                "<meta http-equiv=content-type content='text/html; charset=iso-8859-2'><p>ą</p>",
            ),
            (Some("text/plain"), "naïve".as_bytes(), "naïve"),
            (None, b"\xef\xbb\xbfmarked", "marked"),
            (Some("text/plain"), b"\xff\xfeh\0i\0", "hi"),
        ];
        for (content_type, bytes, expected) in cases {
            assert_eq!(text_of(content_type, bytes).unwrap().1, expected, "{content_type:?}");
        }
    }

    #[test]
    fn types_that_are_text_pass_and_others_do_not() {
        for (content_type, expected) in [
            ("text/html;charset=utf-8", Some(Kind::Html)),
            ("application/xhtml+xml", Some(Kind::Html)),
            ("TEXT/Markdown", Some(Kind::Text)),
            ("application/vnd.api+json", Some(Kind::Text)),
            ("application/atom+xml", Some(Kind::Text)),
            ("application/pdf", None),
            ("application/octet-stream", None),
            ("image/png", None),
            ("video/mp4", None),
        ] {
            assert_eq!(kind(content_type), expected, "{content_type}");
        }
        assert!(text_of(Some("text/plain"), b"\x7fELF\0\0\0").is_err(), "a program that says it is text");
        assert_eq!(
            text_of(None, b"<!DOCTYPE html><p>x").unwrap(),
            (Kind::Html, "<!DOCTYPE html><p>x".to_owned())
        );
        assert_eq!(text_of(None, b"plain").unwrap().0, Kind::Text);
    }
}
