//! From the bytes of a body to a text for a model. HTML becomes Markdown; what is text already stays as it is.
//!
//! Pages are hostile: nesting without an end would take the stack, and looking through it time. So a page is parsed
//! in pieces with an eye on its depth, and only what is shallow enough is turned into Markdown.

use std::{rc::Rc, time::Duration};

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};
use htmd::{HtmlToMarkdown, Node};
use html5ever::{
    ParseOpts, parse_document,
    tendril::{StrTendril, TendrilSink as _},
};
use markup5ever_rcdom::{NodeData, RcDom};
use tokio::time::Instant;

use crate::tools::view::looks_binary;

/// Elements inside one another. Pages that people read stay below a hundred.
const MAX_DEPTH: usize = 400;
/// Nodes of a page; some markup makes many out of few bytes.
const MAX_NODES: usize = 1_000_000;
/// For parsing; some markup takes ever longer. A page of ten megabytes that people read takes a second or two.
const PARSE_TIME: Duration = Duration::from_secs(10);
/// Bytes that are parsed before depth and time are looked at again.
const PIECE_BYTES: usize = 4 * 1024;
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

/// The text of a body, or what it is instead.
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
    let text = decode(bytes, charset, kind);
    match kind {
        Kind::Text => Ok((kind, text)),
        Kind::Html => markdown(&text).map(|markdown| (kind, markdown)),
    }
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

fn markdown(html: &str) -> Result<String, String> {
    let dom = parse(html)?;
    let converter = HtmlToMarkdown::builder()
        .skip_tags(vec!["script", "style", "noscript", "template", "svg", "iframe", "object", "head"])
        .build();
    let text = converter.tree_to_markdown(&dom.document);
    let title = title(&dom.document).filter(|title| !text.contains(title.as_str()));
    let text = squeezed(&text);
    Ok(match title {
        Some(title) => format!("# {title}\n\n{text}"),
        None => text,
    })
}

fn parse(html: &str) -> Result<RcDom, String> {
    let mut parser = parse_document(RcDom::default(), ParseOpts::default());
    let deadline = Instant::now() + PARSE_TIME;
    let mut rest = html;
    while !rest.is_empty() {
        let mut end = rest.len().min(PIECE_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        parser.process(StrTendril::from_slice(&rest[..end]));
        rest = &rest[end..];
        if Instant::now() > deadline {
            return Err(format!("HTML that takes more than {} s to parse", PARSE_TIME.as_secs()));
        }
        // What is open now is the last child of what it is in: the way down is as long as the depth.
        let mut depth = 0;
        let mut node = parser.tokenizer.sink.sink.document.clone();
        while let Some(last) = last_child(&node) {
            node = last;
            depth += 1;
            if depth > MAX_DEPTH {
                return Err(too_deep());
            }
        }
    }
    let dom = parser.finish();
    let mut level = vec![dom.document.clone()];
    let mut n_nodes = 0;
    for _ in 0..=MAX_DEPTH {
        n_nodes += level.len();
        level = level.iter().flat_map(|node| node.children.borrow().clone()).collect();
    }
    if !level.is_empty() {
        return Err(too_deep());
    }
    if n_nodes > MAX_NODES { Err(format!("HTML of {n_nodes} nodes, too many to show")) } else { Ok(dom) }
}

fn too_deep() -> String {
    format!("HTML with more than {MAX_DEPTH} elements inside one another, which is not turned into text")
}

fn last_child(node: &Rc<Node>) -> Option<Rc<Node>> {
    node.children.borrow().last().cloned()
}

/// The page's name, which is in no heading of many pages.
fn title(document: &Rc<Node>) -> Option<String> {
    let mut open = vec![document.clone()];
    // The first one in the order of the page; the last of a list is looked at next.
    while let Some(node) = open.pop() {
        if let NodeData::Element { name, .. } = &node.data
            && &*name.local == "title"
        {
            let mut text = String::new();
            for child in node.children.borrow().iter() {
                if let NodeData::Text { contents } = &child.data {
                    text.push_str(&contents.borrow());
                }
            }
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            return (!text.is_empty()).then_some(text);
        }
        open.extend(node.children.borrow().iter().rev().cloned());
    }
    None
}

/// Without blanks at line ends and more than one empty line between others; code stays as it is.
fn squeezed(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut n_empty, mut in_code) = (0, false);
    for line in text.lines().map(str::trim_end) {
        in_code ^= line.trim_start().starts_with("```");
        if line.is_empty() && !in_code {
            n_empty += 1;
            continue;
        }
        if n_empty > 0 && !out.is_empty() {
            out.push('\n');
        }
        n_empty = 0;
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(page: &str) -> String {
        text_of(Some("text/html; charset=utf-8"), page.as_bytes()).unwrap().1
    }

    #[test]
    fn a_page_becomes_markdown_with_its_title_and_without_its_scripts() {
        let page = "<!doctype html><html><head><title>The\n Manual</title><style>p{}</style><script>evil()</script></head>\
                    <body><h2>Use</h2><p>Call <code>f()</code>, see <a href='/x'>here</a>.</p>\
                    <pre><code>a\n\n\n  b\n</code></pre><ul><li>one</li><li>two</li></ul>\
                    <table><tr><th>k</th><th>v</th></tr><tr><td>1</td><td>2</td></tr></table><script>more()</script></body></html>";
        expect_test::expect![[r#"
            # The Manual

            ## Use

            Call `f()`, see [here](/x).

            ```
            a


              b
            ```

            *   one
            *   two

            | k | v |
            | - | - |
            | 1 | 2 |
        "#]]
        .assert_eq(&html(page));
    }

    #[test]
    fn the_charset_is_the_headers_the_pages_or_what_the_bytes_look_like() {
        let cases: [(Option<&str>, &[u8], &str); 7] = [
            (Some("text/plain; charset=ISO-8859-1"), b"caf\xe9", "café"),
            (Some("text/plain; charset=\"shift_jis\""), b"\x93\xfa\x96\x7b", "日本"),
            (Some("text/html"), b"<meta charset='windows-1251'><p>\xcf\xf0\xe8</p>", "При\n"),
            (
                Some("text/html"),
                b"<meta http-equiv=content-type content='text/html; charset=iso-8859-2'><p>\xb1</p>",
                "ą\n",
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
        assert_eq!(text_of(None, b"<!DOCTYPE html><p>x").unwrap(), (Kind::Html, "x\n".to_owned()));
        assert_eq!(text_of(None, b"plain").unwrap().0, Kind::Text);
    }

    #[test]
    fn nesting_without_an_end_is_refused_before_it_costs_time_or_the_stack() {
        let deep = "<div>".repeat(2_000_000);
        assert!(text_of(Some("text/html"), deep.as_bytes()).unwrap_err().contains("inside one another"));
        // Elements that are moved out of tables make parsing slower and slower.
        let tables = "<table><b>".repeat(300_000);
        let begin = Instant::now();
        assert!(text_of(Some("text/html"), tables.as_bytes()).is_err());
        assert!(begin.elapsed() < 3 * PARSE_TIME, "{:?}", begin.elapsed());
        let shallow = format!("<p>{}</p>", "<b>x</b>".repeat(20_000));
        assert!(text_of(Some("text/html"), shallow.as_bytes()).is_ok());
    }
}
