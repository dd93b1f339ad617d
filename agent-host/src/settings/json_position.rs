//! Where the strings of a JSON text stand. The text is known to be JSON; serde has read it before.

/// A string value: the keys and indexes that lead to it, and its byte range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StringAt {
    pub(crate) path: Vec<String>,
    pub(crate) span: std::ops::Range<usize>,
}

/// An open object or array.
enum Open {
    Object { key: Option<String> },
    Array { index: usize },
}

/// All string values in the order of the text.
pub(crate) fn strings(text: &str) -> Vec<StringAt> {
    let bytes = text.as_bytes();
    let mut open: Vec<Open> = Vec::new();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' => open.push(Open::Object { key: None }),
            b'[' => open.push(Open::Array { index: 0 }),
            b'}' | b']' => {
                open.pop();
            }
            b',' => match open.last_mut() {
                Some(Open::Object { key }) => *key = None,
                Some(Open::Array { index }) => *index += 1,
                None => {}
            },
            b'"' => {
                let end = string_end(bytes, at);
                match open.last_mut() {
                    Some(Open::Object { key: key @ None }) => {
                        *key = serde_json::from_str(text.get(at..end).unwrap_or_default()).ok();
                    }
                    _ => found.push(StringAt { path: path(&open), span: at..end }),
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

fn path(open: &[Open]) -> Vec<String> {
    open.iter()
        .map(|open| match open {
            Open::Object { key } => key.clone().unwrap_or_default(),
            Open::Array { index } => index.to_string(),
        })
        .collect()
}

/// Behind the closing quote.
fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}
