//! HTML as Markdown. Only what is shallow enough is converted, with a good word about the rest: the process that this
//! runs in is bounded anyway.

use std::rc::Rc;

use htmd::{HtmlToMarkdown, Node};
use html5ever::{
    ParseOpts, parse_document,
    tendril::{StrTendril, TendrilSink as _},
};
use markup5ever_rcdom::{NodeData, RcDom};

/// Elements inside one another. Pages that people read stay below a hundred.
const MAX_DEPTH: usize = 400;
/// Bytes that are parsed before the depth is looked at again.
const PIECE_BYTES: usize = 4 * 1024;

/// The page, its title before it.
pub(super) fn markdown(html: &str) -> Result<String, String> {
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
    let mut rest = html;
    while !rest.is_empty() {
        let mut end = rest.len().min(PIECE_BYTES);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        parser.process(StrTendril::from_slice(&rest[..end]));
        rest = &rest[end..];
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
    for _ in 0..=MAX_DEPTH {
        level = level.iter().flat_map(|node| node.children.borrow().clone()).collect();
    }
    if level.is_empty() { Ok(dom) } else { Err(too_deep()) }
}

fn too_deep() -> String {
    format!("it has more than {MAX_DEPTH} elements inside one another")
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
        .assert_eq(&markdown(page).unwrap());
    }

    #[test]
    fn nesting_without_an_end_is_refused_before_it_costs_time_or_the_stack() {
        let deep = "<div>".repeat(2_000_000);
        assert!(markdown(&deep).unwrap_err().contains("inside one another"));
        let shallow = format!("<p>{}</p>", "<b>x</b>".repeat(20_000));
        assert!(markdown(&shallow).is_ok());
    }
}
