//! Pages of a PDF: which are meant, and how they are given.

use std::ops::RangeInclusive;

use query_engine::ports::ToolOutput;
use serde_json::Value;

use crate::convert::{Converter, Job};

/// These pages, or the first ones.
pub(super) async fn shown(
    converter: &Converter,
    bytes: Vec<u8>,
    wanted: Option<RangeInclusive<u32>>,
    given: &str,
) -> ToolOutput {
    let size = bytes.len();
    match converter.text(Job::Pdf(wanted), bytes).await {
        Ok(text) => ToolOutput::text(text),
        Err(problem) => ToolOutput::error(format!(
            "{given} is a PDF of {size} bytes that cannot be read: {problem}. Perhaps a program in Bash can (pdftotext)."
        )),
    }
}

/// `3`, `1-5`, `7-`; nothing when none are named.
pub(super) fn range(value: &Value) -> Result<Option<RangeInclusive<u32>>, String> {
    let text = match value {
        Value::Null => return Ok(None),
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    if text.is_empty() {
        return Ok(None);
    }
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let pages = match text.split_once('-') {
        None => number(&text).map(|page| page..=page),
        Some((first, "")) => number(first).map(|first| first..=u32::MAX),
        Some((first, last)) => number(first).zip(number(last)).map(|(first, last)| first..=last),
    };
    match pages {
        Some(pages) if pages.start() <= pages.end() => Ok(Some(pages)),
        _ => Err(format!("`{text}` names no pages; write `3` or `1-5`.")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pages_are_named_by_number() {
        for (text, expected) in [("3", 3..=3), (" 1-5 ", 1..=5), ("7-", 7..=u32::MAX), ("2 - 2", 2..=2)] {
            assert_eq!(range(&json!(text)), Ok(Some(expected)), "{text}");
        }
        assert_eq!(range(&json!(4)), Ok(Some(4..=4)));
        for nothing in [json!(null), json!(" ")] {
            assert_eq!(range(&nothing), Ok(None));
        }
        for wrong in ["0", "5-2", "x", "1-2-3", "-"] {
            assert!(range(&json!(wrong)).unwrap_err().contains("names no pages"), "{wrong}");
        }
    }
}
